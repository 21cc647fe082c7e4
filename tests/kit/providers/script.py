"""Owns how a fake provider is scripted: the pieces of an answer, one answer per request, played over real HTTP.

Knows nothing of any provider's format: a `Format` writes what is said. `provider.py` shows how it is used.

    "words"                       text, a chunk per word
    ToolCall(name, arguments)     a call, its arguments in several chunks where the format has that
    Silence(seconds=None)         before the headers; None: for ever
    Pause(seconds)                inside the stream; as the first piece: a slow first byte
    Stall()                       inside the stream, for ever
    Cut()                         the connection is closed in the middle of a chunk
    Raw(data)                     these bytes of the stream, as they are: malformed events
    Fails(message, …)             an error inside of the stream
    End(reason, done=…)           another finish reason (None: none at all), and whether the end mark follows
    Refusal(status, …)            an error status instead of an answer
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeAlias

from tests.kit.providers.wire import Answering, Exchange, WireServer

__all__ = [
    "Answer",
    "Cut",
    "End",
    "Fails",
    "Format",
    "Pause",
    "Piece",
    "Raw",
    "Refusal",
    "ScriptedServer",
    "Silence",
    "Stall",
    "ToolCall",
    "new_id",
]

WORD = re.compile(r"\s*\S+|\s+")
_ids = count(1)


def new_id(prefix: str) -> str:
    """An id that no other thing in this process has."""
    return f"{prefix}_{next(_ids)}"


@dataclass(frozen=True)
class ToolCall:
    """A call; `arguments` as an object, or as any text; without an `id` it gets a new one."""

    name: str
    arguments: dict[str, Any] | str
    id: str | None = None

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)

    def pieces(self) -> list[str]:
        """The arguments in about three pieces."""
        size = max(1, (len(self.text) + 2) // 3)
        return [self.text[start : start + size] for start in range(0, len(self.text), size)]


@dataclass(frozen=True)
class Silence:
    seconds: float | None = None


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Stall:
    pass


@dataclass(frozen=True)
class Cut:
    pass


@dataclass(frozen=True)
class Raw:
    data: bytes


@dataclass(frozen=True)
class Fails:
    message: str
    type: str | None = "server_error"
    code: str | int | None = None


@dataclass(frozen=True)
class End:
    reason: str | None = ""
    done: bool = True


@dataclass(frozen=True)
class Refusal:
    status: int
    message: str = "refused"
    retry_after: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


Piece: TypeAlias = str | ToolCall | Silence | Pause | Stall | Cut | Raw | Fails | End | Refusal
Answer: TypeAlias = Piece | Sequence[Piece] | Callable[[dict[str, Any]], "Answer"]


class Format(Protocol):
    """Writes one answer the way a provider does. One object per request."""

    content_type: str

    def opening(self) -> list[bytes]: ...
    def text(self, word: str) -> list[bytes]: ...
    def call(self, call: ToolCall) -> list[bytes]: ...
    def failure(self, fails: Fails) -> list[bytes]: ...
    def ending(self, end: End) -> list[bytes]: ...
    def whole(self, text: str, calls: list[ToolCall], end: End) -> dict[str, Any]:
        """The answer as one document."""
        ...


class ScriptedServer(WireServer):
    """A provider; its format and its rules come from a subclass."""

    path = ""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(self._answer_request)
        self._answers: deque[Answer] = deque(answers)
        self._otherwise: Answer | None = None

    def will(self, *answers: Answer) -> None:
        """Answer the next requests so."""
        self._answers.extend(answers)

    def always(self, answer: Answer) -> None:
        """Answer so whenever nothing else is scripted."""
        self._otherwise = answer

    def format(self, body: dict[str, Any]) -> Format:
        """Who writes the answer to this request."""
        raise NotImplementedError

    def fault(self, body: dict[str, Any]) -> str | None:
        """What the provider would not accept about this request."""
        raise NotImplementedError

    def error(self, message: str) -> dict[str, Any]:
        """The body of an error answer."""
        raise NotImplementedError

    async def _answer_request(self, exchange: Exchange, answering: Answering) -> None:
        if exchange.path.partition("?")[0] != self.path:
            return answering.whole(404, self.error(f"Invalid URL (POST {exchange.path})"))
        if found := self.fault(exchange.body):
            return answering.whole(400, self.error(found))
        answer = self._answers.popleft() if self._answers else self._otherwise
        if answer is None:
            return answering.whole(400, self.error(f"request {len(self.exchanges)} is not in the script"))
        while callable(answer):
            answer = answer(exchange.body)
        pieces = list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]
        if pieces and isinstance(silence := pieces[0], Silence):
            await (asyncio.Event().wait() if silence.seconds is None else _pause(silence.seconds))
            pieces = pieces[1:]
        if pieces and isinstance(refusal := pieces[0], Refusal):
            return self._refuse(refusal, answering)
        play = _stream if exchange.body.get("stream") else _whole
        return await play(self.format(exchange.body), answering, pieces)

    def _refuse(self, refusal: Refusal, answering: Answering) -> None:
        headers = dict(refusal.headers)
        if refusal.retry_after is not None:
            headers["retry-after"] = refusal.retry_after
        body = self.error(refusal.message) if refusal.body is None else refusal.body
        answering.whole(refusal.status, body, headers)


async def _stream(form: Format, wire: Answering, pieces: Sequence[Piece]) -> None:
    def send(events: list[bytes]) -> None:
        for event in events:
            wire.chunk(event)

    wire.head(headers={"content-type": form.content_type, "x-request-id": new_id("req")})
    send(form.opening())
    end = End()
    for piece in pieces:
        match piece:
            case str():
                for word in WORD.findall(piece):
                    send(form.text(word))
            case ToolCall():
                send(form.call(piece))
            case Pause(seconds):
                await _pause(seconds)
            case Stall():
                await asyncio.Event().wait()
            case Cut():
                data = form.text("never whole")[0]
                wire.raw(f"{len(data):x}\r\n".encode() + data[: len(data) // 2])
                wire.cut()
                return
            case Raw(data):
                wire.chunk(data)
            case Fails():
                send(form.failure(piece))
            case End():
                end = piece
            case _:
                raise TypeError(f"{piece!r} cannot stand inside of a stream")
    send(form.ending(end))
    wire.end()


async def _whole(form: Format, wire: Answering, pieces: Sequence[Piece]) -> None:
    text, calls, end = "", [], End()
    for piece in pieces:
        match piece:
            case str():
                text += piece
            case ToolCall():
                calls.append(piece)
            case Pause(seconds):
                await _pause(seconds)
            case Stall():
                await asyncio.Event().wait()
            case Cut():
                wire.head(headers={"content-type": "application/json"}, length=1000)
                wire.raw(b'{"id": "never who')
                wire.cut()
                return
            case Raw(data):
                wire.whole(200, data)
                return
            case End():
                end = piece
            case _:
                raise TypeError(f"{piece!r} cannot stand in a whole answer")
    wire.whole(200, form.whole(text, calls, end))


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)  # real time: the client on the other side of the socket has no other
