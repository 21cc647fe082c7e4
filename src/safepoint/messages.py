"""The messages of a conversation: a closed union of frozen dataclasses, `Message`. No provider is known here.

A tool call has exactly one result, and its status says truthfully whether the tool ran.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .openai_messages import from_openai
    from .wire import message_from_json, message_to_json
else:  # on first use: they are made of these classes, and the JSON needs pydantic, which the classes do not
    from .lazy_imports import lazy_imports as _lazy_imports

    __getattr__ = _lazy_imports(
        __name__,
        {
            "from_openai": "safepoint.openai_messages",
            "message_from_json": "safepoint.wire",
            "message_to_json": "safepoint.wire",
        },
    )

__all__ = [
    "AssistantMessage",
    "CallStatus",
    "FinishReason",
    "Message",
    "SystemMessage",
    "ToolCall",
    "ToolResult",
    "UserMessage",
    "from_openai",
    "message_from_json",
    "message_to_json",
]

CallStatus: TypeAlias = Literal["completed", "failed", "interrupted", "not_started", "unknown"]

# Why an answer ended. `length`: it reached its token limit. `content_filter`: the provider held the rest back.
# `refusal`: the model or its provider refused. `paused`: the provider interrupted long work of its own.
FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage:
    """Instructions for the model."""

    text: str
    kind: Literal["system"] = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """The words of a person."""

    text: str
    kind: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of the model. `arguments` is the JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """An answer of the model. If it is `interrupted`, it was stopped in the middle, and this is the part received.

    `finish_reason` says why it ended. It is None if it was interrupted, and where nobody knows: in conversations from
    elsewhere and of earlier versions. Two answers that differ only in it are equal.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = field(default=())
    interrupted: bool = False
    finish_reason: FinishReason | None = field(default=None, compare=False)
    kind: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of one tool call."""

    call_id: str
    name: str
    content: str
    status: CallStatus = "completed"
    kind: Literal["tool_result"] = "tool_result"


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolResult
