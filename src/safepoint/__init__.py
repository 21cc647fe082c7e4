"""Safepoint: a Python runtime for AI agents in which stopping works.

Press Stop. Get a receipt. Keep the conversation.

The names everybody needs are here; the rest comes from its room, such as `safepoint.abort`.
"""

from .abort import (
    AbortController,
    AbortError,
    AbortReason,
    AbortSignal,
    AbortTimeout,
    checkpoint,
    current_signal,
    fence,
    on_abort_timeout,
    run_in_thread,
    run_process,
    shield,
)
from .agent import Agent, AgentResult, ToolContext, tool
from .errors import SafepointError, UsageError
from .run import Aborted, Completed, Failed, Outcome, Receipt, Retry, StopAck, StopAt, TimedOut

__all__ = [
    "AbortController",
    "AbortError",
    "AbortReason",
    "AbortSignal",
    "AbortTimeout",
    "Aborted",
    "Agent",
    "AgentResult",
    "Completed",
    "Failed",
    "Outcome",
    "Receipt",
    "Retry",
    "SafepointError",
    "StopAck",
    "StopAt",
    "TimedOut",
    "ToolContext",
    "UsageError",
    "checkpoint",
    "current_signal",
    "fence",
    "on_abort_timeout",
    "run_in_thread",
    "run_process",
    "shield",
    "tool",
]
