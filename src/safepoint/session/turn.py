"""Owns a turn of a session as its caller holds it: one id for life, a status, a stop, a result. Knows no store."""

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..abort import AbortController, AbortReason, AbortSignal
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.listeners import Registration
from ..agent.conversation import AgentResult
from ..errors import UsageError
from ..run.context import Context
from ..run.messages import Message
from ..run.outcome import Outcome
from ..run.stop import NO_STOP, Scope, StopAck, StopAt, StopOptions, StopRequest
from .wait_cycles import refuse_cycle

__all__ = ["MessagesFn", "SessionTurn", "TurnResult", "TurnStatus", "check_id"]

TurnStatus: TypeAlias = Literal["queued", "running", "stopping", "completed", "aborted", "timed_out", "failed"]
MessagesFn: TypeAlias = Callable[[Sequence[Message]], "Sequence[Message | str] | Awaitable[Sequence[Message | str]]"]


def check_id(what: str, given: str) -> str:
    """An id that every store can keep. Raises: UsageError."""
    if not isinstance(given, str):
        raise UsageError(f"the id of a {what} must be a string, not {given!r}")
    if not given:
        raise UsageError(f"the id of a {what} is empty")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the id of a {what} cannot be written as UTF-8: {given!r}") from None
    return given


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended. The messages in the outcome are those that this turn has added."""

    turn_id: str
    status: TurnStatus
    outcome: Outcome[AgentResult]


class SessionTurn:
    """One turn, from its acceptance on. Await it for its TurnResult; `stop()` works at any moment."""

    def __init__(
        self,
        turn_id: str | None,
        messages: tuple[Message, ...] | MessagesFn,
        stop: "Callable[[SessionTurn, StopOptions, str | None], StopAck]",
        *,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        origin: str | None = None,
        continues: str | None = None,
        resumes: int = 0,
    ) -> None:
        parents = [] if signal is None else [signal]
        if timeout is not None:
            parents.append(Deadline(check_seconds("timeout", timeout), "deadline", origin))
        self.id = uuid.uuid4().hex if turn_id is None else check_id("turn", turn_id)
        self.messages = messages
        self.controller = AbortController(AbortSignal.any(parents) if parents else None)
        self.urgent = False  # it comes before what waits
        self.continues = continues  # the stopped turn that goes on
        self.resumes = resumes  # how many times its work was resumed by itself after its process had died
        self.request = NO_STOP
        self.recorded = NO_STOP  # what the log knows of the request
        self.asked_to_stop = False  # by somebody, and not only by a host that goes
        self.interrupted_at: float | None = None  # when a message with when_busy="interrupt" first asked it to make way
        self.ctx: Context | None = None  # while it runs
        self.gate: Registration | None = None  # on the caller's signal, until the end
        self.session_id = ""
        self.queue: Mapping[str, SessionTurn] = {}  # the turns of its session that have not ended
        self.awaits: list[SessionTurn] = []  # those that its work awaits
        self.base = 0  # how many messages there were before it
        self.outcome: Outcome[AgentResult] | None = None  # decided; its end is being written
        self.end_seq = 0  # where the log has its end; 0: it was never accepted, or has not ended
        self.result: TurnResult | None = None
        self._stop = stop
        self._lock = threading.Lock()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def signal(self) -> AbortSignal:
        """The signal of this turn alone."""
        return self.controller.signal

    @property
    def status(self) -> TurnStatus:
        """Where it is on its way."""
        if self.result is not None:
            return self.result.status
        if self.signal.aborted or self.request is not NO_STOP:
            return "stopping"
        return "queued" if self.ctx is None else "running"

    @property
    def waits(self) -> bool:
        """True: it is in the queue."""
        return self.ctx is None and self.outcome is None and self.result is None

    @property
    def runs(self) -> bool:
        """True: its work has begun and has not ended."""
        return self.ctx is not None and self.outcome is None

    def ask(self, request: StopRequest) -> bool:
        """One more request to stop. True: it is the first. Any thread."""
        with self._lock:
            first = self.request is NO_STOP and not self.signal.aborted
            self.request = self.request.join(request)
        if self.ctx is not None:
            self.ctx.stop.join(request)
        return first

    def begin(self, ctx: Context) -> None:
        """It runs. What was asked for before counts from now on."""
        self.ctx = ctx
        if self.request is not NO_STOP:
            ctx.stop.join(self.request)

    def stop(
        self,
        at: StopAt | None = None,
        *,
        scope: Scope | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | BaseException | str | None = None,
    ) -> StopAck:
        """Stop this turn and no other. The arguments are those of `Session.stop`."""
        return self._stop(self, StopOptions(at, scope, within, abandon, reason), None)

    def end(self, result: TurnResult) -> None:
        """It is over: whoever waits is told."""
        self.result = result
        self.ctx = None
        if self.gate is not None:
            self.gate.remove()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            wake(waiter)

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> TurnResult:
        """Wait for the result. Whoever stops waiting does not stop the turn. Any event loop.

        Args:
            timeout: Seconds to wait for.

        Raises:
            TimeoutError: It has not ended by then. It goes on.
            UsageError: The caller is the work of a turn for which this one has to wait.
        """
        if self.result is not None:
            return self.result
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        with self.awaited("awaiting this turn"):
            return await limit.run(self.until_ended())

    @contextmanager
    def awaited(self, what: str) -> Iterator[None]:
        """While the work of another turn awaits this one. Raises: UsageError if it waited for itself."""
        waiting = refuse_cycle(what, [self])
        if waiting is not None:
            waiting.awaits.append(self)
        try:
            yield
        finally:
            if waiting is not None:
                waiting.awaits.remove(self)

    async def until_ended(self) -> TurnResult:
        """The result, for the session itself: whoever waits here is not checked."""
        while self.result is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self.result is None:  # `end` writes the result first and tells the waiters second: one sees the other
                await waiter
        return self.result


def wake(waiter: "asyncio.Future[None]") -> None:
    """Tell whoever waits, in the event loop in which it waits: that may be the one of another thread."""
    loop = waiter.get_loop()
    try:
        if asyncio.get_running_loop() is loop:
            resolve(waiter)
            return
    except RuntimeError:
        pass  # no event loop runs here
    try:
        loop.call_soon_threadsafe(resolve, waiter)
    except RuntimeError:
        pass  # that loop is closed: nobody waits there any more


def resolve(waiter: "asyncio.Future[None]") -> None:
    """Unless it has stopped waiting."""
    if not waiter.done():
        waiter.set_result(None)
