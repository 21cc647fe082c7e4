"""Agents: a model, tools, and one loop between them that can be stopped at any moment and keeps a valid conversation.

Owns the loop, the tools and the history. Knows nothing of providers, turns and sessions.
"""

from .agent import Agent, LimitExceeded
from .agent_run import AgentRun
from .builtin import ask_user, wait
from .context import ToolContext
from .conversation import AgentResult
from .history import HistoryError, repair, validate
from .model import (
    AnswerEnded,
    CallDelta,
    Chunk,
    Model,
    ModelError,
    ModelRequest,
    TextDelta,
    ToolSpec,
    UsageReported,
)
from .provider_rules import Provider
from .tool import AnyTool, BadArguments, Tool, tool

__all__ = [
    "Agent",
    "AgentResult",
    "AgentRun",
    "AnswerEnded",
    "AnyTool",
    "BadArguments",
    "CallDelta",
    "Chunk",
    "HistoryError",
    "LimitExceeded",
    "Model",
    "ModelError",
    "ModelRequest",
    "Provider",
    "TextDelta",
    "Tool",
    "ToolContext",
    "ToolSpec",
    "UsageReported",
    "ask_user",
    "repair",
    "tool",
    "validate",
    "wait",
]
