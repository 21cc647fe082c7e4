"""Owns the turn of a session as callers see it: one id for life, a status, a stop, a result, and what is
checked before it is accepted and before it is awaited. Knows no store.

A turn waits for the turns ahead of it in its own session, which runs one at a time, and for those that its work awaits.
When the work of a turn is about to await another turn, these edges are followed from there: if they lead back to the
waiting turn, none of them would ever end, so the await raises instead.
"""

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..abort import AbortController, AbortReason, AbortSignal, current_clock
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.event_loop import wake
from ..abort.listeners import Registration
from ..agent.conversation import AgentResult
from ..errors import UsageError
from ..messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from ..outcome import Outcome
from ..run.context import Context
from ..run.stop import NO_STOP, Scope, Stop, StopAck, StopAt, StopOptions, StopRequest

__all__ = [
    "RUNNING",
    "MessagesFn",
    "SessionTurn",
    "TurnOptions",
    "TurnResult",
    "TurnStatus",
    "as_messages",
    "check_id",
    "refuse_cycle",
]

TurnStatus: TypeAlias = Literal["queued", "running", "stopping", "completed", "aborted", "timed_out", "failed"]
MessagesFn: TypeAlias = Callable[[Sequence[Message]], "Sequence[Message | str] | Awaitable[Sequence[Message | str]]"]
# The turn whose work the current code belongs to.
RUNNING: "ContextVar[SessionTurn | None]" = ContextVar("safepoint_session_turn", default=None)
MESSAGE = str | SystemMessage | UserMessage | AssistantMessage | ToolResult


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


def refuse_cycle(what: str, targets: "Iterable[SessionTurn]") -> "SessionTurn | None":
    """Refuse a wait that would never end.

    Args:
        what: What is about to wait, for the message.
        targets: The turns that it would wait for.

    Returns:
        The turn whose work is about to wait; `None` if the calling code does not belong to a running turn.

    Raises:
        UsageError: One of the targets cannot end before that turn. The message has the chain of sessions.
    """
    waiting = RUNNING.get()
    if waiting is None or not waiting.running:
        return None
    for target in targets:
        chain = _chain(target, waiting)
        if chain is not None:
            sessions = _without_repeats([waiting.session_id, *chain])
            raise UsageError(
                f"{what} would wait for itself: turn {waiting.id!r} waits along the sessions"
                f" {' → '.join(map(repr, sessions))}. Use send() without awaiting its turn, or another session"
            )
    return waiting


def _chain(start: "SessionTurn", goal: "SessionTurn") -> list[str] | None:
    """Return the sessions on a path from one turn to another that it waits for; `None` if there is no such path."""
    came_from: dict[SessionTurn, SessionTurn | None] = {start: None}
    to_visit = [start]
    while to_visit:
        turn: SessionTurn | None = to_visit.pop()
        assert turn is not None  # only turns are put into the list
        if turn is goal:
            path = []
            while turn is not None:
                path.append(turn.session_id)
                turn = came_from[turn]
            return path[::-1]
        for other in _waited_for(turn):
            if other not in came_from:
                came_from[other] = turn
                to_visit.append(other)
    return None


def _waited_for(turn: "SessionTurn") -> "Iterable[SessionTurn]":
    """Yield the turns that must end before this one: those that its work awaits, and those ahead of it in the queue."""
    yield from list(turn.awaited_turns)
    ahead = True
    for other in list(turn.session_turns.values()):
        ahead = ahead and other is not turn
        if ahead or (other.running and other is not turn):
            yield other


def _without_repeats(sessions: list[str]) -> list[str]:
    last = len(sessions) - 1
    return [each for index, each in enumerate(sessions) if index in (0, last) or each != sessions[index - 1]]


def as_messages(given: "str | Message | Sequence[str | Message] | MessagesFn") -> tuple[Message, ...] | MessagesFn:
    """Turn what a caller gives into messages.

    Args:
        given: A text, a message, several of them, or a function of the current messages, which is returned as it is.

    Raises:
        UsageError: It is none of these, or there is no message, or a message is empty.
    """
    if callable(given):
        return given
    several: object = [given] if isinstance(given, MESSAGE) else given  # callers without a type checker give anything
    if not isinstance(several, Iterable) or isinstance(several, bytes | Mapping):
        raise UsageError(f"a message must be a text, a Message, or several of them, not {given!r}")
    messages = tuple(UserMessage(text=one) if isinstance(one, str) else one for one in several)
    for message in messages:
        if not isinstance(message, MESSAGE):
            raise UsageError(f"a message must be a text or a Message, not {message!r}")
        if isinstance(message, UserMessage) and not message.text.strip():
            raise UsageError("the message is empty")
    if not messages:
        raise UsageError("there is no message")
    return messages
