"""Safepoint: a Python runtime for AI agents in which stopping works.

Press Stop. Get a receipt. Keep the conversation.

This package exports the names that most programs need. Events are in `safepoint.events`, messages in
`safepoint.messages`, and everything else in a package of its own, such as `safepoint.flow`. Sessions, workers, flows
and models are imported when they are first used.
"""

from typing import TYPE_CHECKING

from .abort import (
    AbortController,
    AbortError,
    AbortReason,
    AbortSignal,
    AbortTimeout,
    current_signal,
    run_in_thread,
    shield,
)
from .agent import Agent, AgentResult, ToolContext, tool
from .errors import SafepointError, UsageError
from .events import Event
from .messages import Message
from .process import run_process
from .run import Aborted, Completed, Failed, Outcome, Receipt, Retry, StopAck, StopAt, TimedOut
from .version import __version__

if TYPE_CHECKING:
    from .flow import Flow
    from .models import AnthropicModel, OllamaModel, OpenAIModel
    from .session import LocalHost, MemoryStore, Session, SqliteStore
    from .worker import RemoteHost, Worker
else:
    from . import events as _events
    from . import messages as _messages
    from .lazy_imports import lazy_imports as _lazy_imports

    __getattr__ = _lazy_imports(
        __name__,
        {
            "AnthropicModel": ".models",
            "Flow": ".flow",
            "LocalHost": ".session",
            "MemoryStore": ".session",
            "OllamaModel": ".models",
            "OpenAIModel": ".models",
            "RemoteHost": ".worker",
            "Session": ".session",
            "SqliteStore": ".session",
            "Worker": ".worker",
        },
        moved={"checkpoint": ".abort", "fence": ".abort", "on_abort_timeout": ".abort"},
        elsewhere={"safepoint.events": _events.__all__, "safepoint.messages": _messages.__all__},
    )

__all__ = [
    "AbortController",
    "AbortError",
    "AbortReason",
    "AbortSignal",
    "AbortTimeout",
    "Aborted",
    "Agent",
    "AgentResult",
    "AnthropicModel",
    "Completed",
    "Event",
    "Failed",
    "Flow",
    "LocalHost",
    "MemoryStore",
    "Message",
    "OllamaModel",
    "OpenAIModel",
    "Outcome",
    "Receipt",
    "RemoteHost",
    "Retry",
    "SafepointError",
    "Session",
    "SqliteStore",
    "StopAck",
    "StopAt",
    "TimedOut",
    "ToolContext",
    "UsageError",
    "Worker",
    "__version__",
    "current_signal",
    "run_in_thread",
    "run_process",
    "shield",
    "tool",
]
