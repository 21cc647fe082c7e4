"""Owns the turn of a session as callers see it: one id for life, a status, a stop, a result. Knows no store."""

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..abort import AbortController, AbortReason, AbortSignal, current_clock
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.event_loop import wake
from ..abort.listeners import Registration
from ..agent.conversation import AgentResult
from ..errors import UsageError
from ..messages import Message
from ..outcome import Outcome
from ..run.context import Context
from ..run.stop import NO_STOP, Scope, Stop, StopAck, StopAt, StopOptions, StopRequest
from .wait_cycles import refuse_cycle

__all__ = ["MessagesFn", "SessionTurn", "TurnOptions", "TurnResult", "TurnStatus", "check_id"]

TurnStatus: TypeAlias = Literal["queued", "running", "stopping", "completed", "aborted", "timed_out", "failed"]
MessagesFn: TypeAlias = Callable[[Sequence[Message]], "Sequence[Message | str] | Awaitable[Sequence[Message | str]]"]


def check_id(what: str, given: str) -> str:
    """Return an id that every store can keep.

    Args:
        what: What the id is for, for the message.
        given: What the caller gave.

    Raises:
        UsageError: It is no string, is empty, or cannot be written as UTF-8.
    """
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
    """How a turn ended. The messages in the outcome are those that this turn has added.

    Attributes:
        turn_id: The id of the turn.
        status: The status of the turn.
        outcome: Its outcome.
    """

    turn_id: str
    status: TurnStatus
    outcome: Outcome[AgentResult]


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """What ends a turn besides its own `stop()`.

    Attributes:
        signal: A signal of the caller. When it is aborted, so is the turn.
        timeout: Seconds that the turn may take, from its acceptance on.
        origin: The place in the caller's code, for the reason of a timeout.
    """

    signal: AbortSignal | None = None
    timeout: float | None = None
    origin: str | None = None

    def controller(self) -> AbortController:
        """Make the controller of a turn with these options. Raises: UsageError for a timeout that is no duration."""
        parents = [] if self.signal is None else [self.signal]
        if self.timeout is not None:
            parents.append(Deadline(check_seconds("timeout", self.timeout), "deadline", self.origin))
        return AbortController(AbortSignal.any(parents) if parents else None)


NO_OPTIONS = TurnOptions()


class SessionTurn:
    """One turn, from its acceptance on. Await it for its TurnResult; `stop()` works at any moment.

    Args:
        turn_id: Its id. `None` gives it a new one.
        messages: Its messages, or the function that makes them when it begins.
        stop: Stops it, with the options and the place in the caller's code.
        options: What else ends it.
        continues: The stopped turn that it continues.
        resumes: How many times that work was resumed automatically after its process had died.

    Attributes:
        id: Its id, for life.
        messages: Its messages, or the function that makes them.
        controller: Aborts it.
        urgent: Whether it begins before the turns that are queued.
        continues: The stopped turn that it continues.
        resumes: As the argument.
        stop_request: What was asked of it by `stop()`, its own signal or a shutdown, joined. This is what is recorded.
        live_stop: The one request that acts, from its acceptance to its end. It also has what asks it to make way for
            another turn, and while it runs what the loop is asked for.
        recorded_stop: The request as it is in the log.
        stop_wanted: Whether somebody wants it to stop. A host that shuts down stops it without that.
        interrupted_at: When a message with `when_busy="interrupt"` first asked it to make way.
        ctx: Its context, while it runs.
        signal_listener: Listens to its signal, until it has ended.
        session_id: Its session.
        session_turns: The turns of its session that have not ended, in order.
        awaited_turns: The turns that its work awaits.
        base_length: How many messages the conversation had before it.
        outcome: How it ended. It is decided when its end is added to the log, which may not be written yet.
        end_seq: The number of its end in the log. 0 if it has not ended, or was never accepted.
        result: How it ended, when its end is written.
    """

    def __init__(
        self,
        turn_id: str | None,
        messages: tuple[Message, ...] | MessagesFn,
        stop: "Callable[[SessionTurn, StopOptions, str | None], StopAck]",
        *,
        options: TurnOptions = NO_OPTIONS,
        continues: str | None = None,
        resumes: int = 0,
    ) -> None:
        self.controller = options.controller()
        self.id = uuid.uuid4().hex if turn_id is None else check_id("turn", turn_id)
        self.messages = messages
        self.urgent = False
        self.continues = continues
        self.resumes = resumes
        self.stop_request = NO_STOP
        self.live_stop = Stop(self.controller, current_clock())
        self.recorded_stop = NO_STOP
        self.stop_wanted = False
        self.interrupted_at: float | None = None
        self.ctx: Context | None = None
        self.signal_listener: Registration | None = None
        self.session_id = ""
        self.session_turns: Mapping[str, SessionTurn] = {}
        self.awaited_turns: list[SessionTurn] = []
        self.base_length = 0
        self.outcome: Outcome[AgentResult] | None = None
        self.end_seq = 0
        self.result: TurnResult | None = None
        self._stop = stop
        self._lock = threading.Lock()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def signal(self) -> AbortSignal:
        """The signal of this turn, and of no other."""
        return self.controller.signal

    @property
    def status(self) -> TurnStatus:
        """How far it has come."""
        if self.result is not None:
            return self.result.status
        if self.signal.aborted or self.stop_request is not NO_STOP:
            return "stopping"
        return "queued" if self.ctx is None else "running"

    @property
    def queued(self) -> bool:
        """Whether its work has not begun and can still begin."""
        return self.ctx is None and self.outcome is None and self.result is None

    @property
    def running(self) -> bool:
        """Whether its work has begun and has not ended."""
        return self.ctx is not None and self.outcome is None

    def request_stop(self, request: StopRequest) -> bool:
        """Join one more request to stop it, which aborts it if that is due. Any thread.

        Returns:
            Whether it is the first one.
        """
        queued = self.queued
        with self._lock:
            first = self.stop_request is NO_STOP and not self.signal.aborted
            self.stop_request = self.stop_request.join(request)
        self.live_stop.join(request)
        if queued and self.stop_request.at is not StopAt.TURN_END:
            self.live_stop.abort_run()  # it has nothing to finish first
        return first

    def begin(self, ctx: Context) -> None:
        """Mark it as running."""
        self.ctx = ctx

    def stop(
        self,
        at: StopAt | None = None,
        *,
        scope: Scope | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | BaseException | str | None = None,
    ) -> StopAck:
        """Stop this turn and no other. Any thread. The arguments are those of `Session.stop`."""
        return self._stop(self, StopOptions(at, scope, within, abandon, reason), None)

    def end(self, result: TurnResult) -> None:
        """Set the result, and wake those who wait for it."""
        self.result = result
        self.ctx = None
        self.live_stop.close()
        if self.signal_listener is not None:
            self.signal_listener.remove()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            wake(waiter)

    def __await__(self) -> Generator[object, None, TurnResult]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> TurnResult:
        """Wait for the result. A caller that stops waiting does not stop the turn. Any event loop.

        Args:
            timeout: Seconds to wait for.

        Raises:
            TimeoutError: The turn has not ended by then. It continues.
            UsageError: The caller is the work of a turn that has to end before this one.
        """
        if self.result is not None:
            return self.result
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        with self.awaited("awaiting this turn"):
            return await limit.run(self.until_ended())

    @contextmanager
    def awaited(self, what: str) -> Iterator[None]:
        """Note that the work of another turn awaits this one, for the check for deadlocks.

        Args:
            what: What the caller is about to do, for the message.

        Raises:
            UsageError: The wait would never end.
        """
        waiting = refuse_cycle(what, [self])
        if waiting is not None:
            waiting.awaited_turns.append(self)
        try:
            yield
        finally:
            if waiting is not None:
                waiting.awaited_turns.remove(self)

    async def until_ended(self) -> TurnResult:
        """Wait for the result without the check for deadlocks, for the session itself."""
        while self.result is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self.result is None:  # the waiter is added first; `end` sets the result first: one sees the other
                await waiter
        return self.result
