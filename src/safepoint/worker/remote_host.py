"""The sessions that run on workers, as a `Host`. Several hosts may serve the same sessions.

Messages go to the inbox of a session, events are read from its log, and calls are sent to the worker that owns the
session at the moment. Knows nothing of how workers do their work.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal

from ..abort import AbortReason, current_clock
from ..abort.clock import check_seconds
from ..abort.reason import caller
from ..abort.renamed_arguments import accepts_deadline
from ..errors import UsageError
from ..receipt import Receipt
from ..run.stop import AckLevel, AckStatus, Scope, StopAck, StopAt, StopOptions
from ..session.disconnect_timer import DisconnectTimer
from ..session.engine import SessionBusy, SessionEnded, WhenBusy
from ..session.host import NOT_RECORDED, ChangeAck, TurnView, refuse_other_text, view_of
from ..session.log import LoggedEvent
from ..session.session_state import TurnRecord
from ..session.turn import as_messages, check_id
from ..session.turn_endings import never_started, receipt_of
from .broker import Broker, BrokerError, Messaging, NoResponders
from .directory import Directory
from .protocol import (
    AnswerCall,
    Call,
    CloseCall,
    ContinueCall,
    EditCall,
    ForgetCall,
    RemoveCall,
    Reply,
    SendCall,
    StopCall,
    from_json,
    queue_of,
    to_json,
)
from .stop_sender import StopSender

__all__ = ["RemoteHost"]

CALL_SECONDS = 5.0
# How long a stop reads the broker by default for the state of its turn, if the worker did not know the turn.
LOOKUP_SECONDS = 0.5
# How long a stop waits to learn whether any worker has its session. The broker reports "no responders" immediately.
NO_RESPONDERS_SECONDS = 0.25
# How long a call may wait until a worker has taken its session, and the pause between two tries.
WAKE_SECONDS = 10.0
WAKE_TRY_SECONDS = 0.05
NOT_BEGUN = "no worker has it: it will not begin"
WHEN_BUSY = ("queue", "steer", "interrupt", "reject")


class RemoteHost(Directory):
    """The sessions of a broker. Closing the host ends no turn, because turns run on workers."""

    def __init__(
        self,
        broker: Broker,
        *,
        on_disconnect: Literal["continue"] | float = "continue",
        lookup_seconds: float = LOOKUP_SECONDS,
    ) -> None:
        """Create a host; it connects when it is first used.

        Args:
            broker: The broker.
            on_disconnect: What happens to the turns of a session that nobody reads, on any server: "continue", or the
                seconds after the last reader has left before they are stopped.
            lookup_seconds: How long a stop whose turn the worker did not know waits for the broker to show the state of
                the turn. After that the acknowledgement says that the state is not known.
        """
        super().__init__(broker)
        self._lookup_seconds = check_seconds("lookup_seconds", lookup_seconds)
        self._grace = None if on_disconnect == "continue" else check_seconds("on_disconnect", on_disconnect)
        self._disconnect_timers: dict[str, DisconnectTimer] = {}

    @accepts_deadline
    async def send(
        self,
        session_id: str,
        text: str,
        *,
        turn_id: str | None = None,
        timeout: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> TurnView:
        """Send a message to a session. When this returns, the broker has stored the message.

        Args:
            session_id: The session.
            text: The message.
            turn_id: The id of the turn, so that a repeated call sends the message only once; by default a new id.
            timeout: The seconds after which the turn is stopped, the time in the queue included.
            when_busy: What to do if another turn is running.

        Returns:
            The turn as it is then: a worker may have begun it already, or even ended it.

        Raises:
            SessionBusy: Another turn is open and `when_busy` is "reject".
            UsageError: Another message was sent with the same `turn_id`.
        """
        as_messages(text)
        if when_busy not in WHEN_BUSY:
            raise UsageError(f"when_busy must be one of {', '.join(WHEN_BUSY)}, not {when_busy!r}")
        seconds = None if timeout is None else check_seconds("timeout", timeout)
        placement, connection = await self._placement(session_id), await self._connection()
        given = turn_id is not None
        turn_id = uuid.uuid4().hex if turn_id is None else check_id("turn", turn_id)
        if given or when_busy == "reject":
            follower = await self._follower(session_id)
            if given and (sent := await self._sent_before(session_id, turn_id, text)) is not None:
                return sent
            if when_busy == "reject" and (follower.state.open_turns or await self._unseen(session_id, follower)):
                raise SessionBusy(f"session {session_id!r} is busy")
        record = await connection.last("stops", (session_id, turn_id)) if given else None
        if record is not None:
            return _never_started(turn_id, from_json(StopCall, record.data).abort_reason)
        if seconds is not None and seconds <= 0:
            return _never_started(turn_id, AbortReason("deadline", "its time was up before it began", caller(1)))
        await connection.append("inbox", (session_id,), to_json(SendCall(turn_id, text, seconds, when_busy)))
        await connection.enqueue(queue_of(placement), session_id, to_json(placement))
        await connection.publish(("poke", session_id), b"")
        if seconds is not None:
            self._loop_tasks.spawn(self._enforce_time_limit(session_id, turn_id, seconds), f"deadline of {turn_id}")
        # Another call may have used the id at the same moment. Of two such messages the first one in the inbox counts.
        first = await self._sent_before(session_id, turn_id, text) if given else None
        return first or TurnView(turn_id, "queued", text=text)

    async def _sent_before(self, session_id: str, turn_id: str, text: str) -> TurnView | None:
        """The turn with this id, if its message was sent before. Raises: UsageError if that was another message."""
        follower = await self._follower(session_id)
        unseen = None
        if turn_id not in follower.state.turns:
            unseen = (await self._unseen(session_id, follower)).get(turn_id)
        if unseen is not None:
            refuse_other_text(session_id, turn_id, text, as_messages(unseen.text))
            return unseen
        if turn_id in follower.state.turns:
            refuse_other_text(session_id, turn_id, text, follower.state.turns[turn_id].sent_messages)
        return view_of(follower.state, turn_id)

    async def _enforce_time_limit(self, session_id: str, turn_id: str, seconds: float) -> None:
        """Stop a turn when its time is up, even if no worker has it yet. The worker does so too: this host may die."""
        follower = await self._follower(session_id)
        try:
            async with asyncio.timeout(seconds):
                await follower.outcome_of(turn_id, follow_successors=True)
        except TimeoutError:
            await self.stop(session_id, turn_id, reason=AbortReason("deadline", f"after {seconds:g} s"))
        except BrokerError:
            pass

    async def stop(
        self,
        session_id: str,
        turn_id: str,
        at: StopAt | None = None,
        *,
        scope: Scope | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | str | None = None,
    ) -> StopAck:
        """Stop a turn, or the turn that continues it, wherever it runs.

        Args:
            session_id: The session.
            turn_id: The turn. One that is not known yet will not begin.
            at: Where it stops; by default at once.
            scope: Whether sub-agents stop at their own safe points.
            within: The seconds after which a stop at a safe point becomes an immediate one.
            abandon: The seconds after which work that ignores the stop is abandoned.
            reason: The reason, for the receipt.

        Returns:
            What became of the stop; its `level` says how far it has come.
        """
        origin = caller(1)
        check_id("turn", turn_id)
        call = StopCall.of(turn_id, StopOptions(at, scope, within, abandon, reason), origin)
        await self._placement(session_id)
        reply, recorded = await StopSender(await self._connection(), self._loop_tasks).send(session_id, call)
        status, level, message = await self._verdict(session_id, turn_id, reply, recorded)

        async def settled(timeout: float | None) -> Receipt:
            follower = await self._follower(session_id)
            async with asyncio.timeout(timeout):
                stopped = reply.turn_id if reply is not None and reply.turn_id else turn_id
                outcome = await follower.outcome_of(follower.state.successor(stopped))
            if outcome is None:
                raise SessionEnded("the host was closed before the turn had ended")
            return receipt_of(outcome)

        begun = message != NOT_BEGUN or not await self._has_no_owner(session_id, call)
        return StopAck(status, level, message, turn_id, None if status == "unknown" else settled, begun=begun)

    async def _has_no_owner(self, session_id: str, call: StopCall) -> bool:
        """Whether it is certain that no worker has the session. Must be called after the stop was recorded.

        A worker that takes the session later reads the record before anything begins. If a worker has it and does not
        answer in time, it may have read the record too early, so nothing is certain.
        """
        try:
            await (await self._connection()).request(("ctl", session_id), to_json(call), NO_RESPONDERS_SECONDS)
        except NoResponders:
            return True
        except BrokerError:
            pass
        return False

    async def _verdict(
        self, session_id: str, turn_id: str, reply: Reply | None, recorded: bool
    ) -> tuple[AckStatus, AckLevel, str]:
        """What to report of a stop: status, level and message.

        The worker is asked first, because only the process that runs the turn knows that the stop has reached it. If
        there is no worker, or it does not know the turn, log and inbox decide:

        - The worker accepted it: "delivered".
        - Neither worker nor broker answered: nothing is certain, and delivery goes on; "accepted", no more.
        - The worker says that the turn has ended, but the log does not have the end yet: the end is waited for. Until
          then it is not "already_finished", because if the worker dies now, the stop decides how the turn ends.
        - The turn lost its worker and no other one has continued it: the record keeps it from being resumed.
        - The turn has ended in the log: "already_finished".
        - Neither log nor inbox has the turn: "unknown", but recorded; if its message comes, it does not begin.
        - The turn is open and no worker answers: "recorded". It is stopped by the next worker that takes the session.
        """
        if reply is not None and reply.status in ("accepted", "already_stopping"):
            return reply.status, "delivered", reply.message + ("" if recorded else " (not recorded yet)")
        if reply is None and not recorded:
            message = "neither the worker nor the broker has answered yet: the stop is being delivered"
            return "accepted", "accepted", message
        ended = reply is not None and reply.status == "already_finished"
        try:
            async with asyncio.timeout(self._lookup_seconds):
                turn, unseen = await self._look_up(session_id, turn_id, ended)
        except (TimeoutError, BrokerError):
            if ended:
                message = "its worker reports that it has ended, but the end is not recorded yet"
                return "accepted", ("recorded" if recorded else "accepted"), message
            message = "the broker does not report the state of the turn"
            return "accepted", _level(reply, recorded), message
        if turn is not None and turn.orphaned:
            return "accepted", "recorded", "no worker has gone on with it yet: it will not be resumed"
        if turn is not None and turn.outcome is not None:
            return "already_finished", "settled", f"turn {turn_id} has ended"
        if turn is None and not unseen:
            return "unknown", "recorded", f"no turn {turn_id} so far: if it comes, it will not begin"
        status: AckStatus = "accepted" if turn is None or turn.stop is None else "already_stopping"
        if reply is not None:
            return status, _level(reply, recorded), reply.message or "the worker has received it"
        begun = turn is not None and turn.started
        return status, "recorded", ("no worker answers for it: it ends as soon as one does" if begun else NOT_BEGUN)

    async def _look_up(self, session_id: str, turn_id: str, ended: bool) -> tuple[TurnRecord | None, bool]:
        """Look a turn up in the log and in the inbox.

        Args:
            session_id: The session.
            turn_id: The turn.
            ended: True to wait until the log has its end, which is being written.

        Returns:
            The turn in the log, and whether it is in the inbox only.
        """
        follower = await self._follower(session_id)
        turn_id = follower.state.successor(turn_id)
        if ended:
            await follower.outcome_of(turn_id)
        unseen = turn_id not in follower.state.turns and turn_id in await self._unseen(session_id, follower)
        return follower.state.turns.get(turn_id), unseen

    async def _request(self, session_id: str, call: Call, *, wake: bool = False) -> Reply:
        """Send a call to the worker that owns a session.

        Args:
            session_id: The session.
            call: The call.
            wake: True to have a worker take the session if none has it, and to wait for that.

        Raises:
            NoResponders: No worker has the session.
            SafepointError: What the session has raised.
        """
        placement, connection = await self._placement(session_id), await self._connection()
        clock = current_clock()
        until = clock.monotonic() + WAKE_SECONDS
        while True:
            try:
                reply = from_json(Reply, await connection.request(("ctl", session_id), to_json(call), CALL_SECONDS))
                if reply.error not in ("opening", "ended") or clock.monotonic() > until:
                    return reply.raise_error()
            except NoResponders:
                if not wake or clock.monotonic() > until:
                    raise
                await connection.enqueue(queue_of(placement), session_id, to_json(placement))
            await asyncio.sleep(WAKE_TRY_SECONDS)  # real time: a worker takes the session and opens it

    async def _request_if_owned(self, session_id: str, call: Call) -> Reply:
        """Send a call to the worker that owns a session, if there is one. The reply says if there is none."""
        try:
            return await self._request(session_id, call)
        except NoResponders:
            return Reply(False, "no worker has the session")

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question."""
        return (await self._request_if_owned(session_id, AnswerCall(question_id, text))).ok

    async def edit(self, session_id: str, turn_id: str, text: str) -> ChangeAck:
        """Replace the message of a turn that waits. It is refused while no worker has the session."""
        as_messages(text)
        return _changed(await self._request_if_owned(session_id, EditCall(turn_id, text)))

    async def remove(self, session_id: str, turn_id: str) -> ChangeAck:
        """Remove a turn that waits from the queue. One that no worker has seen yet is stopped."""
        reply = await self._request_if_owned(session_id, RemoveCall(turn_id))
        if reply.ok or turn_id not in await self._unseen(session_id, await self._follower(session_id)):
            return _changed(reply)
        ack = await self.stop(session_id, turn_id, reason="removed from the queue")
        return ChangeAck(ack.status == "accepted", ack.level, ack.message)

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Restore the conversation to what it was before its last turn."""
        await self._request(session_id, ForgetCall(turn_id), wake=True)

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Continue a stopped turn."""
        reply = await self._request(session_id, ContinueCall(turn_id), wake=True)
        return TurnView(reply.turn_id, "queued")

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Stop everything that runs in a session, and close it."""
        try:
            await self._request(session_id, CloseCall(reason))
        except NoResponders:
            pass  # no worker has it, so it is closed
        if follower := self._followers.pop(session_id, None):
            follower.close()

    # Events

    async def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """The events after a number, then new ones as they come."""
        follower, connection = await self._follower(session_id), await self._connection()
        leave = await self._register_reader(session_id, connection)
        try:
            async with aclosing(follower.follow(after)) as events:
                async for recorded in events:
                    yield recorded
        finally:
            await leave()

    async def _register_reader(self, session_id: str, messaging: Messaging) -> Callable[[], Awaitable[None]]:
        """Count one more reader of a session, visible to other servers. Returns how to undo that."""

        async def confirm(data: bytes) -> bytes:
            return b""

        def on_timeout() -> None:
            self._loop_tasks.call(lambda: self._loop_tasks.spawn(self._stop_if_unread(session_id), "disconnect"))

        timer = self._disconnect_timers.setdefault(
            session_id, DisconnectTimer(current_clock(), self._grace, on_timeout)
        )
        timer.reader_joined()
        unserve = await messaging.serve(("readers", session_id), confirm)

        async def leave() -> None:
            timer.reader_left()
            if not self._closed:
                await unserve()

        return leave

    async def _stop_if_unread(self, session_id: str) -> None:
        """Stop the turns of a session unless it is read here again, or on another server."""
        if self._closed or self._disconnect_timers[session_id].readers:
            return
        try:
            await (await self._connection()).request(("readers", session_id), b"", CALL_SECONDS)
        except NoResponders:
            for turn in reversed(
                (await self.session(session_id)).turns
            ):  # the last one first, so that none begins meanwhile
                await self.stop(session_id, turn.id, reason=AbortReason("disconnected", "no reader was connected"))

    async def recover(self) -> list[str]:
        """Do nothing: workers resume interrupted turns by themselves."""
        return []

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Close the connection. What runs on workers goes on."""
        async with self._connecting:
            if self._closed:
                return
            self._closed = True
        for timer in self._disconnect_timers.values():
            timer.end()
        for follower in self._followers.values():
            follower.close()
        if self._connected is not None:
            await self._loop_tasks.wait_all()
            await self._connected.close()


def _changed(reply: Reply) -> ChangeAck:
    """The acknowledgement of a change. Workers of older versions do not report whether it is recorded."""
    if not reply.ok or reply.recorded:
        return ChangeAck(reply.ok, "recorded" if reply.recorded else "accepted", reply.message)
    return ChangeAck(True, "accepted", reply.message or NOT_RECORDED)


def _level(reply: Reply | None, recorded: bool) -> AckLevel:
    """How far a stop has come. Only the process that runs the turn can confirm that it was delivered."""
    if reply is not None and reply.heard:
        return "delivered"
    return "recorded" if recorded else "accepted"


def _never_started(turn_id: str, reason: AbortReason) -> TurnView:
    """A turn that was stopped before its message was stored: nothing of it is in the log."""
    outcome = never_started(reason, current_clock().time())
    return TurnView(turn_id, outcome.status, outcome)
