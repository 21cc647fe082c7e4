"""Owns a model whose answers are written down in advance: for tests, demos and first steps, without server or key.

Knows nothing of how its answers are used.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..abort import AbortSignal
from ..abort.clock import check_seconds
from ..agent.model import (
    AnswerEnded,
    CallDelta,
    Chunk,
    ModelError,
    ModelRequest,
    TextDelta,
    UsageReported,
)
from ..errors import UsageError
from ..messages import AssistantMessage, FinishReason, Message, ToolResult
from ..receipt import Usage

__all__ = ["Answer", "Call", "Delay", "Error", "Finish", "Piece", "ScriptedModel", "Stall"]

WORD = re.compile(r"\s*\S+|\s+")
MAX_ARGUMENT_PIECE = 16  # in characters
CHARACTERS_PER_TOKEN = 4  # a rough average


class Call:
    """A tool call: `Call("search", query="safe points")`."""

    def __init__(self, tool: str, /, **arguments: object) -> None:
        self.tool = tool
        self.text = json.dumps(arguments, ensure_ascii=False)

    @classmethod
    def raw(cls, tool: str, text: str) -> "Call":
        """Make a call whose arguments are exactly this text, even if it is no JSON."""
        call = cls(tool)
        call.text = text
        return call

    def __repr__(self) -> str:
        return f"Call({self.tool!r}, {self.text})"


@dataclass(frozen=True, slots=True)
class Delay:
    """A pause, measured by the current clock."""

    seconds: float

    def __post_init__(self) -> None:
        check_seconds("seconds", self.seconds)


@dataclass(frozen=True, slots=True)
class Stall:
    """No further chunk, until the answer is aborted or closed."""


@dataclass(frozen=True, slots=True)
class Error:
    """The request fails at this point.

    Attributes:
        what: The exception to raise, or the message of a ModelError.
        status: The HTTP status of that ModelError.
        retryable: Whether the same request may succeed later.
        retry_after: How many seconds the provider asks to wait.
    """

    what: Exception | str
    status: int | None = field(default=None, kw_only=True)
    retryable: bool = field(default=False, kw_only=True)
    retry_after: float | None = field(default=None, kw_only=True)

    def exception(self) -> Exception:
        """Return the exception to raise."""
        if isinstance(self.what, Exception):
            return self.what
        return ModelError(self.what, status=self.status, retryable=self.retryable, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer ends at this point, for this reason. With None the stream just ends, as when a connection breaks."""

    reason: FinishReason | None


Piece: TypeAlias = str | Call | Delay | Stall | Error | Finish
Answer: TypeAlias = Piece | Sequence[Piece] | Callable[[ModelRequest], "Answer"]
PIECES = (str, Call, Delay, Stall, Error, Finish)


class ScriptedModel:
    """A model with fixed answers: `ScriptedModel("Hello", [Call("search", query="x")], "Bye")`.

    The first request gets the first answer, and so on. An answer is a text, which is streamed word by word; a list of
    texts, `Call`, `Delay`, `Stall`, `Error` and `Finish`; or a function of the request that returns one of these.

    Attributes:
        name: The name in events and receipts.
        requests: The requests so far.
    """

    def __init__(self, *answers: Answer, name: str = "scripted", chunk_delay: float = 0.0) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        for number, answer in enumerate(answers, 1):
            _check(answer, number)
        self._answers = answers
        self._chunk_delay = check_seconds("chunk_delay", chunk_delay)
        self._call_count = 0

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Yield the next answer, chunk by chunk.

        Raises:
            UsageError: There is no further answer.
            AbortError: The signal was aborted.
            Exception: What an `Error` of the answer says.
        """
        signal.raise_if_aborted()
        # Whatever depends on the order of the requests happens before the first await.
        self.requests.append(request)
        pieces = self._next_answer(request)
        chunks = self._chunks(pieces)
        reason: FinishReason | None = "tool_calls" if any(isinstance(piece, Call) for piece in pieces) else "stop"
        written = 0
        for chunk in chunks:
            match chunk:
                case Delay(seconds):
                    await signal.sleep(seconds)
                case Stall():
                    await signal.wait_async()
                    signal.raise_if_aborted()
                case Error():
                    raise chunk.exception()
                case Finish():
                    reason = chunk.reason
                    break
                case TextDelta() | CallDelta():
                    # As with a real stream, other tasks run between two chunks, and may stop this one there.
                    await (signal.sleep(self._chunk_delay) if self._chunk_delay else asyncio.sleep(0))
                    signal.raise_if_aborted()
                    written += len(chunk.text if isinstance(chunk, TextDelta) else chunk.name + chunk.arguments)
                    yield chunk
        if reason is not None:
            yield UsageReported(Usage(1, _tokens(sum(map(_length, request.messages))), _tokens(written)))
            yield AnswerEnded(reason)

    def done(self) -> None:
        """Check that every answer was used.

        Raises:
            AssertionError: There were fewer requests than answers, or more.
        """
        if len(self.requests) != len(self._answers):
            raise AssertionError(self._counts())

    def _next_answer(self, request: ModelRequest) -> Sequence[Piece]:
        number = len(self.requests)
        if number > len(self._answers):
            raise UsageError(f"{self._counts()}; one argument per answer")
        answer = self._answers[number - 1]
        while callable(answer):
            answer = answer(request)
            _check(answer, number)
        return (answer,) if isinstance(answer, PIECES) else answer

    def _chunks(self, pieces: Sequence[Piece]) -> list[TextDelta | CallDelta | Delay | Stall | Error | Finish]:
        chunks: list[TextDelta | CallDelta | Delay | Stall | Error | Finish] = []
        index = 0
        for piece in pieces:
            match piece:
                case str():
                    chunks += map(TextDelta, WORD.findall(piece))
                case Call():
                    self._call_count += 1
                    chunks += _call(piece, index, f"call-{self._call_count}")
                    index += 1
                case _:
                    chunks.append(piece)
        return chunks

    def _counts(self) -> str:
        requests, answers = len(self.requests), len(self._answers)
        return f"The scripted model {self.name!r} was asked {requests} times and has {answers} answers"


def _call(call: Call, index: int, call_id: str) -> Iterator[CallDelta]:
    """Yield a call in two pieces at least, so that every test also checks that they are put together."""
    size = min(MAX_ARGUMENT_PIECE, max(1, (len(call.text) + 1) // 2))
    yield CallDelta(index=index, call_id=call_id, name=call.tool, arguments=call.text[:size])
    for start in range(size, max(len(call.text), size + 1), size):
        yield CallDelta(index=index, arguments=call.text[start : start + size])


def _check(answer: object, number: int) -> None:
    if isinstance(answer, PIECES) or (callable(answer) and not isinstance(answer, type)):
        return
    if isinstance(answer, Sequence) and all(isinstance(piece, PIECES) for piece in answer):
        return
    raise UsageError(
        f"answer {number} must be a text, a list of texts, Call, Delay, Stall, Error and Finish,"
        f" or a function of the request, not {answer!r}"
    )


def _length(message: Message) -> int:
    match message:
        case ToolResult():
            return len(message.content)
        case AssistantMessage():
            return len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)
        case _:
            return len(message.text)


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)
