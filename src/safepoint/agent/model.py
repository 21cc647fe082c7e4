"""Owns the interface of models: one method that streams an answer in chunks. Knows nothing of providers."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ..abort import AbortSignal
from ..errors import SafepointError
from ..messages import FinishReason, Message
from ..receipt import Usage
from ..run.retry import asks_to_wait

__all__ = [
    "AnswerEnded",
    "CallDelta",
    "Chunk",
    "Model",
    "ModelError",
    "ModelRequest",
    "TextDelta",
    "ToolSpec",
    "UsageReported",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model sees it.

    Attributes:
        name: The name by which the model calls it.
        description: What it does, for the model.
        parameters: A JSON schema of type object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    Attributes:
        messages: The conversation so far.
        tools: The tools that the model may call.
        max_tokens: The limit of the answer; by default that of the provider.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A piece of a tool call.

    Attributes:
        index: The number of the call in this answer: all pieces of a call have the same.
        call_id: The id of the call, in one of its pieces.
        name: The name of the tool, in one of its pieces.
        arguments: A part of the JSON text of the arguments, in order.
    """

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class UsageReported:
    """What this request has cost so far. A later report of the same request replaces an earlier one."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The answer is complete, and nothing after it is read. A stream that ends without this chunk was cut off."""

    reason: FinishReason = "stop"


Chunk: TypeAlias = TextDelta | CallDelta | UsageReported | AnswerEnded


class Model(Protocol):
    """A model that an agent can use.

    A provider that does not stream yields its answer in one piece.
    """

    @property
    def name(self) -> str:
        """The name that events, receipts and errors show."""
        ...

    def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
        """Send one request and yield the answer in chunks.

        Closing the iterator must close the connection, so that the provider stops at once. It makes one attempt only:
        the caller retries, because it can be stopped between two attempts.

        Raises:
            ModelError: The request failed, or the answer was cut off.
        """
        ...


@dataclass(eq=False)
class ModelError(SafepointError):
    """A request to a model failed.

    Attributes:
        message: What happened, for people.
        status: The HTTP status, if there was one.
        retryable: Whether the same request may succeed later.
        retry_after: In how many seconds, if the provider says so.
        finish_reason: Why the answer ended, if it ended without a word.
    """

    message: str
    status: int | None = field(default=None, kw_only=True)
    retryable: bool = field(default=False, kw_only=True)
    retry_after: float | None = field(default=None, kw_only=True)
    finish_reason: FinishReason | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        text = self.message if self.status is None else f"{self.message} (status {self.status})"
        super().__init__(text if self.retry_after is None else f"{text}; {asks_to_wait(self.retry_after)}")
