"""Owns what a model is for an agent: one method that streams an answer, chunk by chunk. Knows nothing of providers."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ..abort import AbortSignal
from ..errors import SafepointError
from ..run.messages import Message
from ..run.receipt import Usage
from ..run.retry import asks_to_wait

__all__ = [
    "AnswerEnded",
    "CallDelta",
    "Chunk",
    "FinishReason",
    "Model",
    "ModelError",
    "ModelRequest",
    "TextDelta",
    "ToolSpec",
    "UsageReported",
]

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model sees it. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model: the conversation so far, and what it may call."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A piece of a tool call. `index` says of which: id and name come once, `arguments` piece by piece."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class UsageReported:
    """What this request has cost so far; a later report of the same request replaces an earlier one."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The answer is whole, and nothing after it is read. A stream that ends without it broke off."""

    reason: FinishReason = "stop"


Chunk: TypeAlias = TextDelta | CallDelta | UsageReported | AnswerEnded


class Model(Protocol):
    """What an agent asks. One method, streaming; a provider that does not stream yields its answer in one piece."""

    @property
    def name(self) -> str:
        """For people: in events, receipts and errors."""
        ...

    def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
        """Ask. Closing the iterator closes the connection: the provider stops, whatever it was doing.

        Makes one attempt: trying again is the caller's, who can be stopped in between. Raises: ModelError.
        """
        ...


@dataclass(eq=False)
class ModelError(SafepointError):
    """A request failed. `retryable`: the same request may succeed later; `retry_after` says when, if that is known."""

    message: str
    status: int | None = field(default=None, kw_only=True)
    retryable: bool = field(default=False, kw_only=True)
    retry_after: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        text = self.message if self.status is None else f"{self.message} (status {self.status})"
        super().__init__(text if self.retry_after is None else f"{text}; {asks_to_wait(self.retry_after)}")
