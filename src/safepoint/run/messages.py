"""Owns what is said in a conversation: a closed union of frozen messages. Knows nothing of providers.

A tool call has exactly one result, and the result says truthfully what became of it.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["AssistantMessage", "CallStatus", "Message", "SystemMessage", "ToolCall", "ToolResult", "UserMessage"]

CallStatus: TypeAlias = Literal["completed", "failed", "interrupted", "not_started", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage:
    """Instructions."""

    text: str
    kind: Literal["system"] = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What a person said."""

    text: str
    kind: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What the model wants done. `arguments` is the JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """What the model said; `interrupted`: it was stopped in the middle, and this is what there was."""

    text: str = ""
    calls: tuple[ToolCall, ...] = field(default=())
    interrupted: bool = False
    kind: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of one tool call."""

    call_id: str
    name: str
    content: str
    status: CallStatus = "completed"
    kind: Literal["tool_result"] = "tool_result"


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolResult
