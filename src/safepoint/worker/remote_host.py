"""Owns sessions that run on workers, with the face of every `Host`. Several of them may serve the same sessions.

What is asked of a session is kept in its inbox, what has happened is read from its log; whoever owns it at the moment
is asked by name of the session. Knows nothing of how workers do their work.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal

from ..abort import AbortReason, current_clock
from ..abort.clock import check_seconds
from ..abort.reason import caller, reason_from
from ..abort.renamed_arguments import accepts_deadline
from ..errors import UsageError
from ..run.receipt import Receipt
from ..run.stop import AckLevel, AckStatus, Scope, StopAck, StopAt, StopOptions
from ..session.acknowledgements import NOT_RECORDED, ChangeAck
from ..session.admission import as_messages
from ..session.disconnect_timer import DisconnectTimer
from ..session.engine import SessionBusy, SessionEnded, WhenBusy
from ..session.host import TurnView, refuse_other_text, view_of
from ..session.log import LoggedEvent
from ..session.session_state import TurnRecord
from ..session.turn import check_id
from ..session.turn_endings import never_started, receipt_of
from .broker import Broker, BrokerConnection, BrokerError, NoResponders
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
# How long a stop looks for what is known of its turn, when the worker did not know.
LOOK_SECONDS = 0.5
# The broker itself says at once that nobody has a session: longer than this no caller of a stop waits for it.
NOBODY_SECONDS = 0.25
# How long a session may take to find a worker, where somebody waits for it.
WAKE_SECONDS = 10.0
WAKE_TRY_SECONDS = 0.05
NOT_BEGUN = "no worker has it: it will not begin"
BUSY = ("queue", "steer", "interrupt", "reject")


class RemoteHost(Directory):
    """The sessions of a broker. Closing it ends no turn: those run elsewhere.

    on_disconnect  "continue", or the seconds after the last reader, on any server, has gone before a turn is stopped
    """

    def __init__(self, broker: Broker, *, on_disconnect: Literal["continue"] | float = "continue") -> None:
        super().__init__(broker)
        self._grace = None if on_disconnect == "continue" else check_seconds("on_disconnect", on_disconnect)
        self._present: dict[str, DisconnectTimer] = {}

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
        """Say something. When it returns, the broker keeps the message: it will be worked on, or stopped."""
        as_messages(text)
        if when_busy not in BUSY:
            raise UsageError(f"when_busy must be one of {', '.join(BUSY)}, not {when_busy!r}")
        seconds = None if timeout is None else check_seconds("timeout", timeout)
        place, connection = await self._place(session_id), await self._connection()
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
            return _never(turn_id, from_json(StopCall, record.data).why)
        if seconds is not None and seconds <= 0:
            return _never(turn_id, AbortReason("deadline", "its time was up before it began", caller(1)))
        await connection.append("inbox", (session_id,), to_json(SendCall(turn_id, text, seconds, when_busy)))
        await connection.order(queue_of(place), session_id, to_json(place))
        await connection.publish(("poke", session_id), b"")
        if seconds is not None:
            self._loop_tasks.spawn(self._mind_the_deadline(session_id, turn_id, seconds), f"deadline of {turn_id}")
        # Somebody else may have used this id in the same moment: of two messages the first in the inbox counts.
        first = await self._sent_before(session_id, turn_id, text) if given else None
        return first or TurnView(turn_id, "queued", said=text)

    async def _sent_before(self, session_id: str, turn_id: str, text: str) -> TurnView | None:
        """The turn with this id, if its message has come before. Raises: UsageError if it was another message."""
        follower = await self._follower(session_id)
        unseen = None
        if turn_id not in follower.state.turns:
            unseen = (await self._unseen(session_id, follower)).get(turn_id)
        if unseen is not None:
            refuse_other_text(session_id, turn_id, text, as_messages(unseen.said))
            return unseen
        if turn_id in follower.state.turns:
            refuse_other_text(session_id, turn_id, text, follower.state.turns[turn_id].asked)
        return view_of(follower.state, turn_id)

    async def _mind_the_deadline(self, session_id: str, turn_id: str, seconds: float) -> None:
        """The time goes on while no worker has the turn; the worker counts too, for when this host has died."""
        follower = await self._follower(session_id)
        try:
            async with asyncio.timeout(seconds):
                await follower.outcome_of(turn_id, heirs=True)
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
        """Stop this turn and no other, wherever it runs. `level` says how far the stop has come."""
        origin = caller(1)
        check_id("turn", turn_id)
        StopOptions(at, scope, within, abandon, reason).check()
        await self._place(session_id)
        if at is None and within is not None:
            at = StopAt.SAFE_POINT
        why = reason_from(reason, origin).to_dict()
        call = StopCall(turn_id, (at or StopAt.NOW).name, within, why, uuid.uuid4().hex, abandon, scope)
        reply, recorded = await StopSender(await self._connection(), self._loop_tasks).stop(session_id, call)
        status, level, told = await self._verdict(session_id, turn_id, reply, recorded)

        async def settled(timeout: float | None) -> Receipt:
            follower = await self._follower(session_id)
            async with asyncio.timeout(timeout):
                stopped = reply.turn_id if reply is not None and reply.turn_id else turn_id
                outcome = await follower.outcome_of(follower.state.successor(stopped))
            if outcome is None:
                raise SessionEnded("the host was closed before the turn had ended")
            return receipt_of(outcome)

        begun = told != NOT_BEGUN or not await self._nobody_has(session_id, call)
        return StopAck(status, level, told, turn_id, None if status == "unknown" else settled, begun=begun)

    async def _nobody_has(self, session_id: str, call: StopCall) -> bool:
        """Whether no worker has the session, asked after the stop was recorded.

        Whoever takes the session later reads the record before anything begins. A worker that does not answer in time
        may have it, and may have looked before: of that nothing can be said.
        """
        try:
            await (await self._connection()).request(("ctl", session_id), to_json(call), NOBODY_SECONDS)
        except NoResponders:
            return True
        except BrokerError:
            pass
        return False

    async def _verdict(
        self, session_id: str, turn_id: str, reply: Reply | None, recorded: bool
    ) -> tuple[AckStatus, AckLevel, str]:
        """What can be said in truth: by the worker, or where it does not know the turn, by what is kept."""
        if reply is not None and reply.status in ("accepted", "already_stopping"):
            return reply.status, "delivered", reply.message + ("" if recorded else " (not recorded yet)")
        if reply is None and not recorded:
            told = "neither the worker nor the broker has answered: the stop is on its way"
            return "accepted", "accepted", told
        over = reply is not None and reply.status == "already_finished"
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                turn, unseen = await self._known(session_id, turn_id, over)
        except (TimeoutError, BrokerError):
            if over:  # should its worker die now, the stop is what ends it
                told = "its worker says that it has ended, which is not written yet"
                return "accepted", ("recorded" if recorded else "accepted"), told
            told = "the broker does not say how the turn stands"
            return "accepted", _level(reply, recorded), told
        if turn is not None and turn.lost:
            return "accepted", "recorded", "no worker has gone on with it yet: it will not be resumed"
        if turn is not None and turn.outcome is not None:
            return "already_finished", "settled", f"turn {turn_id} has ended"
        if turn is None and not unseen:
            return "unknown", "recorded", f"no turn {turn_id} so far: if it comes, it will not begin"
        status: AckStatus = "accepted" if turn is None or turn.stop is None else "already_stopping"
        if reply is not None:
            return status, _level(reply, recorded), reply.message or "the worker was told"
        begun = turn is not None and turn.started
        return status, "recorded", ("no worker answers for it: it ends as soon as one does" if begun else NOT_BEGUN)

    async def _known(self, session_id: str, turn_id: str, over: bool) -> tuple[TurnRecord | None, bool]:
        """What the log says of a turn, and whether it is in the inbox only. `over`: its end is being written."""
        follower = await self._follower(session_id)
        turn_id = follower.state.successor(turn_id)
        if over:
            await follower.outcome_of(turn_id)
        unseen = turn_id not in follower.state.turns and turn_id in await self._unseen(session_id, follower)
        return follower.state.turns.get(turn_id), unseen

    async def _ask(self, session_id: str, call: Call, *, wake: bool = False) -> Reply:
        """Ask the owner of a session. `wake`: if there is none, wait until there is. Raises: Nobody; what it raised."""
        place, connection = await self._place(session_id), await self._connection()
        clock = current_clock()
        until = clock.monotonic() + WAKE_SECONDS
        while True:
            try:
                reply: Reply = from_json(
                    Reply, await connection.request(("ctl", session_id), to_json(call), CALL_SECONDS)
                )
                if reply.error not in ("opening", "ended") or clock.monotonic() > until:
                    return reply.raise_error()
            except NoResponders:
                if not wake or clock.monotonic() > until:
                    raise
                await connection.order(queue_of(place), session_id, to_json(place))
            await asyncio.sleep(WAKE_TRY_SECONDS)  # real time: a worker takes it, and opens it

    async def _told(self, session_id: str, call: Call) -> Reply:
        try:
            return await self._ask(session_id, call)
        except NoResponders:
            return Reply(False, "no worker has the session")

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question."""
        return (await self._told(session_id, AnswerCall(question_id, text))).ok

    async def edit(self, session_id: str, turn_id: str, text: str) -> ChangeAck:
        """Replace the message of a turn that waits. False also while no worker has it."""
        as_messages(text)
        return _changed(await self._told(session_id, EditCall(turn_id, text)))

    async def remove(self, session_id: str, turn_id: str) -> ChangeAck:
        """Take a turn that waits out of the queue; one that no worker has seen yet is stopped."""
        reply = await self._told(session_id, RemoveCall(turn_id))
        if reply.ok or turn_id not in await self._unseen(session_id, await self._follower(session_id)):
            return _changed(reply)
        ack = await self.stop(session_id, turn_id, reason="removed from the queue")
        return ChangeAck(ack.status == "accepted", ack.level, ack.message)

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the conversation back."""
        await self._ask(session_id, ForgetCall(turn_id), wake=True)

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a stopped turn."""
        reply = await self._ask(session_id, ContinueCall(turn_id), wake=True)
        return TurnView(reply.turn_id, "queued")

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Stop what runs there, and let it go."""
        try:
            await self._ask(session_id, CloseCall(reason))
        except NoResponders:
            pass  # nobody has it
        if follower := self._followers.pop(session_id, None):
            follower.close()

    # What happens

    async def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Everything after this number, then what comes."""
        follower, connection = await self._follower(session_id), await self._connection()
        leave = await self._come(session_id, connection)
        try:
            async with aclosing(follower.follow(after)) as events:
                async for recorded in events:
                    yield recorded
        finally:
            await leave()

    async def _come(self, session_id: str, connection: BrokerConnection) -> Callable[[], Awaitable[None]]:
        """One more reader is there, for all servers to know."""

        async def here(data: bytes) -> bytes:
            return b""

        def gone() -> None:
            self._loop_tasks.post(lambda: self._loop_tasks.spawn(self._nobody_is_there(session_id), "disconnect"))

        presence = self._present.setdefault(session_id, DisconnectTimer(current_clock(), self._grace, gone))
        presence.came()
        unserve = await connection.serve(("readers", session_id), here)

        async def leave() -> None:
            presence.left()
            if not self._closed:
                await unserve()

        return leave

    async def _nobody_is_there(self, session_id: str) -> None:
        if self._closed or self._present[session_id].readers:
            return
        try:
            await (await self._connection()).request(("readers", session_id), b"", CALL_SECONDS)
        except NoResponders:
            for turn in reversed((await self.session(session_id)).turns):  # none begins because another one ends
                await self.stop(session_id, turn.id, reason=AbortReason("disconnected", "nobody was there"))

    async def recover(self) -> list[str]:
        """Nothing to do here: workers take up what was left behind."""
        return []

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Let go of everything. What runs on workers goes on."""
        async with self._connecting:
            if self._closed:
                return
            self._closed = True
        for presence in self._present.values():
            presence.end()
        for follower in self._followers.values():
            follower.close()
        if self._connected is not None:
            await self._loop_tasks.empty()
            await self._connected.close()


def _changed(reply: Reply) -> ChangeAck:
    """What the owner of a session says of a change. One that does not say that it is recorded is an older one."""
    if not reply.ok or reply.recorded:
        return ChangeAck(reply.ok, "recorded" if reply.recorded else "accepted", reply.message)
    return ChangeAck(True, "accepted", reply.message or NOT_RECORDED)


def _level(reply: Reply | None, recorded: bool) -> AckLevel:
    """How far a stop has come. Only the process that runs the turn can say that it has it."""
    if reply is not None and reply.heard:
        return "delivered"
    return "recorded" if recorded else "accepted"


def _never(turn_id: str, reason: AbortReason) -> TurnView:
    """A turn that was stopped before it came: nothing of it is kept."""
    outcome = never_started(reason, current_clock().time())
    return TurnView(turn_id, outcome.status, outcome)
