"""Owns the work on one order: the session is opened, its inbox is read, its turns run until there is nothing left.

Stops may come from any thread and at any moment, also before the session is open: they are kept until it is.
Knows nothing of leases and of how an order was taken.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..abort import AbortReason
from ..agent.agent import Agent
from ..errors import UsageError
from ..run.events import StopRequested, TurnEnded, TurnStarted
from ..run.stop import StopAt
from ..run.wire import event_to_json
from ..session.acknowledgements import change_ack
from ..session.engine import SessionBusy, SessionEnded
from ..session.log import read
from ..session.session import Session
from ..session.session_state import SessionState
from ..session.store import LogRecord, SessionInUse, StoreError
from ..session.turn import SessionTurn
from .broker import BrokerConnection, BrokerError, StreamEntry
from .missing_agent import MissingAgent
from .protocol import (
    AnswerCall,
    Assignment,
    Call,
    CloseCall,
    ContinueCall,
    EditCall,
    Ending,
    ForgetCall,
    ReleaseWhenIdle,
    RemoveCall,
    Reply,
    SendCall,
    SendCallHead,
    StopCall,
    Unreadable,
    from_json,
    is_note,
)
from .stall_detector import StallDetector
from .stop_reader import StopReader
from .stop_sender import recorded_stops
from .store import BrokerStore, former_owner_has_ended
from .sub_agent_waits import SubAgentWaits
from .wait_helpers import set_within

__all__ = ["GIVEN_BACK", "OrderRunner"]

log = logging.getLogger("safepoint")
GIVEN_BACK = AbortReason("lease_lost", "the worker gives it back: another one goes on")
OPENINGS = 5
# Whoever puts something in the inbox, or stops a turn, says so; who missed it looks this often.
LOOK_SECONDS = 1.0


class OrderRunner:
    """One order being worked on.

    heard  is told which turn runs, and None when it has ended
    waits  is told True when the work waits for a sub-agent elsewhere, and False when it does not any more
    """

    def __init__(
        self,
        connection: BrokerConnection,
        agents: Mapping[str, Agent],
        assignment: Assignment,
        heard: Callable[[str | None], object],
        waits: Callable[[bool], object] = lambda waits: None,
        pulse: StallDetector | None = None,
    ) -> None:
        self._connection = connection
        self._agents = agents
        self._assignment = assignment
        self._heard = heard
        self._waits = SubAgentWaits(waits)
        self._store = BrokerStore(connection, assignment.owner)
        self._wake = asyncio.Event()
        self._early: dict[str, StopCall] = {}  # stops of turns that are not here (yet)
        self._answered: dict[str, Reply] = {}  # stops, by their id
        self._answering = threading.Lock()
        self._read = 0  # up to here the inbox is done
        self._pulse = pulse or StallDetector()
        self._stops = StopReader(connection, assignment.session, self.stop, self._pulse)
        self._leaving: float | None = None
        self._closing: str | None = None
        self._idle_for = assignment.idle_for
        self.session: Session | None = None

    @property
    def fenced(self) -> bool:
        """True: another owner has come."""
        return self._store.fenced

    async def run(self) -> Ending:
        """Until there is nothing left to do, or it has to go."""
        about, failure = self._assignment, None
        self._waits.observe()  # before the session is opened: its tasks are started from here
        unlisten = await self._connection.listen(("poke", about.session), lambda data: self._look_around())
        forget = [self._connection.on_return(self._look_around), self._pulse.on_late(self._stops.want)]
        try:
            failure = await self._worked()
        except (StoreError, BrokerError, UsageError) as error:
            failure = error
        finally:
            for end in forget:
                end()
            await unlisten()
        if self.fenced:
            return "fenced"
        if self._leaving is not None:
            return "left"
        if failure is not None:
            log.warning("session %s: the work on it failed: %s: %s", about.session, type(failure).__name__, failure)
            return "failed"
        return "idle"

    def _look_around(self) -> None:
        """Somebody says that there is something new, or may have said so while nobody heard it."""
        self._stops.want()
        self._wake.set()

    async def _worked(self) -> Exception | None:
        """The whole work. Returns what went wrong: everything that ran has ended then."""
        failure: Exception | None = None
        session = await self._open()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stops.keep_reading())
            try:
                await self._work(session, group)
            except (StoreError, BrokerError, SessionEnded) as error:
                failure = error
                self._store.shut(f"the work on it failed: {error}")  # what runs stays open: the next owner goes on
            try:
                await session.close(reason=self._closing or "nothing left to do")
            except StoreError as error:
                failure = failure or error
            finally:
                self._stops.close()
        return failure

    async def _open(self) -> Session:
        about, store, agent = self._assignment, self._store, self._agent()
        may_run = not await former_owner_has_ended(self._connection, about)
        for _ in range(OPENINGS):
            try:
                resume = await self._write_stops() and about.resume
                session = await Session.open(
                    about.session, agent=agent, store=store, resume=resume, paused=True, may_still_run=may_run
                )
                break
            except SessionInUse:  # the one before us has written once more: from our first record on it cannot
                self._store = store = BrokerStore(self._connection, store.by)
        else:
            raise SessionInUse(f"session {about.session!r} is written by somebody else all the time")
        self.session = session
        session.check_before_effects(self._stops.look)
        for turn_id, call in list(self._early.items()):
            self._strike(session, turn_id, call)
        return session

    def _agent(self) -> Agent:
        about = self._assignment
        agent = self._agents.get(about.agent)
        if agent is not None:
            return agent
        why = f"worker {about.worker!r} has no agent {about.agent!r}: it has {', '.join(self._agents)}"
        if about.offered:  # something is wrong with this process: another one, or another worker, may have the agent
            raise UsageError(why)
        log.error("session %s runs on this worker only, and cannot: %s: its turns end as failed", about.session, why)
        return MissingAgent(about.agent, f"{why}. The session runs on that worker only: start it with the agent")

    async def _write_stops(self) -> bool:
        """What was stopped while nobody had the session is written in its log, so that it is sealed, not run again.

        False: the turn that would be resumed was stopped.
        """
        session, state, last = self._assignment.session, SessionState(), 0
        recorded = await recorded_stops(self._connection, session)
        stopped = {call.turn_id: call for _, call in recorded}
        for turn_id, call in stopped.items():  # of some the message may still be in the inbox
            self._early.setdefault(turn_id, call)  # in place: another thread may note a stop in this moment
        self._stops.position = recorded[-1][0] if recorded else 0
        if not stopped:
            return True
        end = await self._store.acquire(session)
        while last < end and (page := await self._store.read(session, last)):
            for record in page:
                state.apply(read(record).event)
            last = page[-1].seq
        stopped = {state.successor(turn_id): call for turn_id, call in stopped.items()}
        records = [
            LogRecord(last + number, event_to_json(_stop_event(session, turn.id, stopped[turn.id])))
            for number, turn in enumerate((t for t in state.open_turns if t.id in stopped and t.stop is None), 1)
        ]
        await self._store.append(session, records, durable=True)
        begun = any(turn.started for turn in state.open_turns)  # that one would be resumed
        return begun or state.interrupted not in stopped

    async def _work(self, session: Session, group: asyncio.TaskGroup) -> None:
        group.create_task(self._tell(session))
        for turn in session.turns.values():
            group.create_task(self._until_its_end(turn))
        session.resume()
        while self._leaving is None and self._closing is None:
            self._wake.clear()
            for turn in await self._new_turns(session):
                group.create_task(self._until_its_end(turn))
            if not session.turns and not await set_within(self._idle_for, self._wake):
                break
            await set_within(LOOK_SECONDS, self._wake)
        if self._leaving is not None:
            await self._make_way(session, self._leaving)
            await session.saved()
            self._store.shut("it was left to another worker")

    async def _until_its_end(self, turn: SessionTurn) -> None:
        await turn.wait()
        self._wake.set()

    async def _tell(self, session: Session) -> None:
        """Whoever supervises the work must know which turn runs: that one, and no other, may be ended by force."""
        running = ""
        try:
            async for recorded in session.events(session.last_seq):
                match recorded.event:
                    case TurnStarted(turn_id=turn_id) if turn_id in session.turns:
                        self._heard(running := turn_id)
                    case TurnEnded(turn_id=turn_id) if turn_id == running:
                        self._heard(None)
                    case _:
                        pass
        except StoreError:
            pass  # the log has failed: that is told elsewhere

    async def _new_turns(self, session: Session) -> list[SessionTurn]:
        """What the inbox has: it becomes part of the log, then it leaves the inbox."""
        key = (session.id,)
        entries = await self._connection.read("inbox", key, self._read)
        # What was stopped before it was read is known before it is taken. The bell is heard by another process, which
        # may be asleep, so that the record is read here too.
        await self._stops.look()
        if self._leaving is not None:
            return []  # it stays in the inbox, for the next owner
        turns = [turn for entry in entries if (turn := await self._admitted(session, entry)) is not None]
        if entries:
            await session.saved()
            self._read = entries[-1].position
            await self._connection.trim("inbox", key, self._read)
        return turns

    async def _admitted(self, session: Session, entry: StreamEntry) -> SessionTurn | None:
        try:
            if is_note(entry.data):
                return None
            sent: SendCall = from_json(SendCall, entry.data)
            if _is_known(session, sent.turn_id):
                return None  # it came twice, or its first owner died before it was taken out of the inbox
            return self._send(session, sent)
        except (Unreadable, UsageError) as error:
            log.warning("session %s: a message cannot be taken and is put aside: %s", session.id, error)
            _refuse(session, entry.data, error)
            await self._connection.append("dead", (session.id,), entry.data)
            return None

    def _send(self, session: Session, sent: SendCall) -> SessionTurn:
        """Admit a turn; one that was stopped before does not begin. No other code runs in between."""
        about = {"turn_id": sent.turn_id, "timeout": sent.seconds}
        try:
            turn = session.send(sent.text, **about, when_busy=sent.when_busy)  # type: ignore[arg-type]
        except SessionBusy as busy:
            turn = session.send(sent.text, **about)  # type: ignore[arg-type]
            turn.stop(StopAt.NOW, reason=AbortReason("error", f"rejected: {busy}"))
        call = self._early.get(sent.turn_id)
        if call is not None:
            self._strike(session, sent.turn_id, call)
        return turn

    def _strike(self, session: Session, turn_id: str, call: StopCall) -> Reply | None:
        """Stop a turn that is here, or the one that goes on with it. None: it is not here."""
        turn_id = session.successor_of(turn_id)
        if turn_id not in session.turns and session.outcome_of(turn_id) is None:
            return None
        self._early.pop(call.turn_id, None)
        with self._answering:  # it is rung for, and it is read in the record: by two threads
            reply = self._answered.get(call.id)
            if reply is None:
                how: Any = {"scope": call.scope, "within": call.within, "abandon": call.abandon, "reason": call.why}
                ack = session.stop(turn_id, call.point, **how)
                reply = Reply(message=ack.message, status=ack.status, turn_id=turn_id)
                if call.id:
                    self._answered[call.id] = reply
        return reply

    def stop(self, call: StopCall) -> Reply:
        """Stop a turn. Answered at once, also while the event loop is blocked. Any thread."""
        # It is noted before the turns are looked at, and admission does the reverse: one sees the other.
        self._early[call.turn_id] = call
        session = self.session
        reply = None if session is None else self._strike(session, call.turn_id, call)
        if reply is None:
            return Reply(status="unknown", message=f"turn {call.turn_id} is not here yet", turn_id=call.turn_id)
        return reply

    async def handle(self, call: Call) -> Reply:
        """Whatever else is asked of the session, in its own event loop."""
        session = self.session
        if isinstance(call, ReleaseWhenIdle):
            self._idle_for = 0.0
            self._wake.set()
            return Reply()
        if session is None:
            return Reply(False, "the session is being opened", error="opening")
        try:
            return await self._handled(session, call)
        except Exception as error:
            return Reply.of(error)

    async def _handled(self, session: Session, call: Call) -> Reply:
        match call:
            case StopCall():
                return self.stop(call)
            case ReleaseWhenIdle():
                return Reply()  # done before
            case AnswerCall(question_id, text):
                return Reply(session.answer(question_id, text))
            case EditCall(turn_id, text):
                return Reply.to_change(await change_ack(session, session.edit(turn_id, text)))
            case RemoveCall(turn_id):
                return Reply.to_change(await change_ack(session, session.remove(turn_id)))
            case ForgetCall(turn_id):
                session.forget(turn_id)
            case ContinueCall(turn_id):
                turn = session.continue_turn(turn_id)
                self._wake.set()
                await session.saved()
                return Reply(turn_id=turn.id)
            case CloseCall(reason):
                self._closing = reason
                self._wake.set()
                return Reply()
        await session.saved()
        return Reply()

    def leave(self, within: float) -> None:
        """Stop the running turn at a safe point, or at once after so many seconds; what waits is for the next owner."""
        self._leaving = within
        self._wake.set()

    def cut(self, why: str) -> None:
        """It is not ours any more: write nothing, and end everything at once."""
        self._leaving = 0.0
        self._store.shut(why)
        if self.session is not None:
            self._stop_running(self.session, 0.0)  # now: the work on the order may be waiting for the broker
        self._stops.close()
        self._wake.set()

    async def _make_way(self, session: Session, within: float) -> None:
        for turn in self._stop_running(session, within):
            await turn.wait()

    def _stop_running(self, session: Session, within: float) -> list[SessionTurn]:
        session.pause()
        running = [turn for turn in session.turns.values() if not turn.waits]
        for turn in running:
            at = StopAt.SAFE_POINT if within > 0 else StopAt.NOW
            turn.stop(at, scope="tree", within=within or None, reason=GIVEN_BACK)
        return running


def _is_known(session: Session, turn_id: str) -> bool:
    return turn_id in session.turns or session.outcome_of(turn_id) is not None


def _refuse(session: Session, data: bytes, error: Exception) -> None:
    """End the turn of a message that cannot be taken: whoever sent it was told that it is accepted, and waits."""
    try:
        head: SendCallHead = from_json(SendCallHead, data)
        if not _is_known(session, head.turn_id):
            session.refuse(head.turn_id, head.text, error)
    except (Unreadable, UsageError):
        pass  # not even the id of its turn can be read: nobody can ask for that turn


def _stop_event(session: str, turn_id: str, call: StopCall) -> StopRequested:
    about = {"run_id": turn_id, "path": (session,), "at": time.time(), "turn_id": turn_id}
    asked = {"at_point": call.at or "NOW", "abandon": call.abandon}
    return StopRequested(**about, **asked, reason=call.why.message, reason_kind=call.why.kind)  # type: ignore[arg-type]
