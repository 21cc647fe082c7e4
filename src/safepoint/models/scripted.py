"""Owns a model that says what it was told to say: for tests, demos and first steps, with no server and no key.

Knows nothing of what is done with its answers.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..abort import AbortSignal
from ..abort.clock import check_seconds
from ..agent.model import (
    AnswerEnded,
    CallDelta,
    Chunk,
    FinishReason,
    ModelError,
    ModelRequest,
    TextDelta,
    UsageReported,
)
from ..errors import UsageError
from ..run.messages import AssistantMessage, Message, ToolResult
from ..run.receipt import Usage

__all__ = ["Answer", "Call", "Delay", "Error", "Finish", "Piece", "ScriptedModel", "Stall"]

WORD = re.compile(r"\s*\S+|\s+")
ARGUMENT_PIECE = 16  # characters
TOKEN = 4  # characters, about


class Call:
    """A tool call: `Call("search", query="safe points")`."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        self.tool = tool
        self.text = json.dumps(arguments, ensure_ascii=False)

    @classmethod
    def raw(cls, tool: str, text: str) -> "Call":
        """A call whose arguments are this text, as it stands, also if it is no JSON."""
        call = cls(tool)
        call.text = text
        return call

    def __repr__(self) -> str:
        return f"Call({self.tool!r}, {self.text})"


@dataclass(frozen=True, slots=True)
class Delay:
    """A pause, on the Safepoint clock."""

    seconds: float

    def __post_init__(self) -> None:
        check_seconds("seconds", self.seconds)


@dataclass(frozen=True, slots=True)
class Stall:
    """Silence, until the answer is aborted or closed."""


@dataclass(frozen=True, slots=True)
class Error:
    """The request fails here: with this exception, or with a ModelError that says this."""

    what: Exception | str
    status: int | None = field(default=None, kw_only=True)
    retryable: bool = field(default=False, kw_only=True)
    retry_after: float | None = field(default=None, kw_only=True)

    def exception(self) -> Exception:
        """What is raised."""
        if isinstance(self.what, Exception):
            return self.what
        return ModelError(self.what, status=self.status, retryable=self.retryable, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer ends here, for this reason; None: the stream just ends, as when a connection breaks off."""

    reason: FinishReason | None


Piece: TypeAlias = str | Call | Delay | Stall | Error | Finish
Answer: TypeAlias = Piece | Sequence[Piece] | Callable[[ModelRequest], "Answer"]
PIECES = (str, Call, Delay, Stall, Error, Finish)


class ScriptedModel:
    """`ScriptedModel("Hello", [Call("search", query="x")], "Bye")`: one argument per answer, given in order of asking.

    An answer is a text, streamed word by word; a list of texts, `Call`, `Delay`, `Stall`, `Error` and `Finish`; or a
    function of the request that returns one of these. `requests` is what it was asked.
    """

    def __init__(self, *answers: Answer, name: str = "scripted", chunk_delay: float = 0.0) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        for number, answer in enumerate(answers, 1):
            _check(answer, number)
        self._answers = answers
        self._chunk_delay = check_seconds("chunk_delay", chunk_delay)
        self._calls = 0

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """The next answer, chunk by chunk. Raises: UsageError when there is none; AbortError; what was scripted."""
        signal.raise_if_aborted()
        # Everything that depends on the order of asking happens here, before the first await.
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
                    # As with a real stream, others have their turn in between, and may stop it there.
                    await (signal.sleep(self._chunk_delay) if self._chunk_delay else asyncio.sleep(0))
                    signal.raise_if_aborted()
                    written += len(chunk.text if isinstance(chunk, TextDelta) else chunk.name + chunk.arguments)
                    yield chunk
        if reason is not None:
            yield UsageReported(Usage(1, _tokens(sum(map(_length, request.messages))), _tokens(written)))
            yield AnswerEnded(reason)

    def done(self) -> None:
        """Raises: AssertionError unless it was asked exactly as often as scripted."""
        if len(self.requests) != len(self._answers):
            raise AssertionError(self._told())

    def _next_answer(self, request: ModelRequest) -> Sequence[Piece]:
        number = len(self.requests)
        if number > len(self._answers):
            raise UsageError(f"{self._told()}; one argument per answer")
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
                    self._calls += 1
                    chunks += _call(piece, index, f"call-{self._calls}")
                    index += 1
                case _:
                    chunks.append(piece)
        return chunks

    def _told(self) -> str:
        asked, scripted = len(self.requests), len(self._answers)
        return f"The scripted model {self.name!r} was asked {asked} times and has {scripted} answers"


def _call(call: Call, index: int, call_id: str) -> Iterator[CallDelta]:
    """Two pieces at least: whoever puts them together must be able to."""
    size = min(ARGUMENT_PIECE, max(1, (len(call.text) + 1) // 2))
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
    return -(-characters // TOKEN)
