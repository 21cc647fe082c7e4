"""Runs the work on one order: opens the session, admits what is in its inbox and runs its turns until none is left.

Stops may come from any thread and at any moment, even before the session is open: they are kept until it is.
Knows nothing of leases and of how an order was taken.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from ..abort import AbortReason, AbortSignal
from ..abort.event_loop import set_within
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..agent.model import Chunk, ModelRequest
from ..errors import UsageError
from ..events import TurnEnded, TurnStarted
from ..messages import Message
from ..run.context import Context
from ..run.stop import StopAt
from ..session.engine import SessionBusy, SessionEnded
from ..session.host import change_ack
from ..session.session import Session
from ..session.store import SessionInUse, StoreError
from ..session.turn import SessionTurn
from .broker import BrokerError, SessionConnection, StreamEntry
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
    is_control_entry,
)
from .remote_tool import SubAgentWaits
from .stop_reader import StallDetector, StopReader, recorded_stops, write_stops
from .store import BrokerStore, former_owner_has_ended

__all__ = ["GIVEN_BACK", "MissingAgent", "OrderRunner"]

log = logging.getLogger("safepoint")
GIVEN_BACK = AbortReason("lease_lost", "its worker has handed it over to another one")
OPEN_TRIES = 5
# New messages and stops are announced by a publication, which may be lost: the inbox is read this often in any case.
INBOX_SECONDS = 1.0


class OrderRunner:
    """The work on one order.

    What was stopped stays stopped, however the stop and the work overlap in time. These are the cases:

    - The stop is recorded while no worker has the session. `_write_recorded_stops()` reads the record and writes the
      stops to the log before the session is opened, so that the session ends those turns instead of running them.
    - The stop arrives while the session is being opened, or before its turn is taken out of the inbox. `stop()` notes
      it in `_early_stops` first and looks for the turn then; admission adds the turn first and looks for a stop then.
      Whichever is second sees the other, without a lock that a blocked event loop could hold.
    - The stop arrives while the turn runs. `stop()` applies it in the thread that received it.
    - The stop is recorded and acknowledged while this process is frozen. When it thaws, the work would be faster than
      any message. The `StallDetector` notices the late heartbeat and has the record read at once; besides, every tool
      call with effects, and the end of a completed turn, waits for `StopReader.catch_up()`.
    - This process was frozen for longer than its lease, and another worker has taken the session over. Then its next
      append to the log is refused (see `BrokerStore`), and everything here ends as "fenced".
    """

    def __init__(
        self,
        connection: SessionConnection,
        agents: Mapping[str, Agent],
        assignment: Assignment,
        on_turn: Callable[[str | None], object],
        on_waiting: Callable[[bool], object] = lambda waits: None,
        stall_detector: StallDetector | None = None,
    ) -> None:
        """Create it. It can be stopped from now on; `run()` does the work.

        Args:
            connection: The connection to the broker.
            agents: The agents of the worker, by name.
            assignment: The order.
            on_turn: Called with the id of the turn that runs, and with None when it has ended.
            on_waiting: Called with True when the work begins to wait for a sub-agent elsewhere, and with False when it
                no longer does.
            stall_detector: Watches this event loop.
        """
        self._connection = connection
        self._agents = agents
        self._assignment = assignment
        self._on_turn = on_turn
        self._waits = SubAgentWaits(on_waiting)
        self._store = BrokerStore(connection, assignment.owner)
        self._wake = asyncio.Event()
        self._early_stops: dict[str, StopCall] = {}  # of turns that are not admitted yet, by turn id
        self._applied: dict[str, Reply] = {}  # the replies to stops that were applied, by the id of the stop
        self._applying = threading.Lock()
        self._inbox_position = 0  # everything up to here was admitted
        self._stall_detector = stall_detector or StallDetector()
        self._stops = StopReader(connection, assignment.session, self.stop, self._stall_detector)
        self._handover_within: float | None = None
        self._close_reason: str | None = None
        self._idle_for = assignment.idle_for
        self.session: Session | None = None

    @property
    def fenced(self) -> bool:
        """True if another owner has written to the log."""
        return self._store.fenced

    async def run(self) -> Ending:
        """Work until nothing is left to do, or until the work is handed over or revoked."""
        assignment, failure = self._assignment, None
        self._waits.observe()  # before the session is opened, because its tasks inherit this context
        unlisten = await self._connection.listen(("poke", assignment.session), lambda data: self._check_now())
        forget = [
            self._connection.on_reconnect(self._check_now),
            self._stall_detector.on_stall(self._stops.request_read),
        ]
        try:
            failure = await self._run_session()
        except (StoreError, BrokerError, UsageError) as error:
            failure = error
        finally:
            for end in forget:
                end()
            await unlisten()
        if self.fenced:
            return "fenced"
        if self._handover_within is not None:
            return "left"
        if failure is not None:
            kind = type(failure).__name__
            log.warning("session %s: the work on it failed: %s: %s", assignment.session, kind, failure)
            return "failed"
        return "idle"

    def _check_now(self) -> None:
        """Read the record of stops and the inbox: there is something new, or an announcement may have been missed."""
        self._stops.request_read()
        self._wake.set()

    async def _run_session(self) -> Exception | None:
        """Open the session, work, and close it. Returns what went wrong; everything has ended by then."""
        failure: Exception | None = None
        session = await self._open()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stops.keep_reading())
            try:
                await self._work(session, group)
            except (StoreError, BrokerError, SessionEnded) as error:
                failure = error
                # Turns that were running must stay open in the log, so that the next owner continues them.
                self._store.block_writes(f"the work on it failed: {error}")
            try:
                await session.close(reason=self._close_reason or "nothing left to do")
            except StoreError as error:
                failure = failure or error
            finally:
                self._stops.close()
        return failure

    async def _open(self) -> Session:
        assignment, store, agent = self._assignment, self._store, self._agent()
        may_run = not await former_owner_has_ended(self._connection, assignment)
        for _ in range(OPEN_TRIES):
            try:
                resume = await self._write_recorded_stops() and assignment.resume
                session = await Session.open(
                    assignment.session, agent=agent, store=store, resume=resume, paused=True, may_still_run=may_run
                )
                break
            except SessionInUse:  # the former owner has written once more; after our first record it cannot
                self._store = store = BrokerStore(self._connection, store.owner)
        else:
            raise SessionInUse(f"session {assignment.session!r} is written by another owner again and again")
        # Publish the session, then look for stops that came before: stop() notes a stop, then looks for the session.
        # Each side writes before it reads, so at least one of them sees the other.
        self.session = session
        session.check_before_effects(self._stops.catch_up)
        for call in list(self._early_stops.values()):
            self.stop(call, noted=True)
        return session

    def _agent(self) -> Agent:
        assignment = self._assignment
        agent = self._agents.get(assignment.agent)
        if agent is not None:
            return agent
        why = f"worker {assignment.worker!r} has no agent {assignment.agent!r}: it has {', '.join(self._agents)}"
        if assignment.offered:  # a fault of this process: another process, or another worker, may have the agent
            raise UsageError(why)
        session = assignment.session
        log.error("session %s runs on this worker only, and cannot: %s: its turns end as failed", session, why)
        return MissingAgent(assignment.agent, f"{why}. The session runs on that worker only: start it with the agent")

    async def _write_recorded_stops(self) -> bool:
        """Write the stops that were recorded while the session had no owner to its log, before it is opened.

        Returns:
            False if the turn that would be resumed was stopped.
        """
        session = self._assignment.session
        recorded = await recorded_stops(self._connection, session)
        stopped = {call.turn_id: call for _, call in recorded}
        # The message of a stopped turn may still be in the inbox, so the stops are kept for its admission. The dict is
        # changed in place and never replaced, because another thread may note a stop at this moment.
        for turn_id, call in stopped.items():
            self._early_stops.setdefault(turn_id, call)
        self._stops.position = recorded[-1][0] if recorded else 0
        return not stopped or await write_stops(self._store, session, stopped)

    async def _work(self, session: Session, group: asyncio.TaskGroup) -> None:
        group.create_task(self._report_running_turn(session))
        for turn in session.turns.values():
            group.create_task(self._wake_at_end_of(turn))
        session.resume()
        while self._handover_within is None and self._close_reason is None:
            self._wake.clear()
            for turn in await self._admit_new_turns(session):
                group.create_task(self._wake_at_end_of(turn))
            if not session.turns and not await set_within(self._idle_for, self._wake):
                break
            await set_within(INBOX_SECONDS, self._wake)
        if self._handover_within is not None:
            for turn in self._stop_running(session, self._handover_within):
                await turn.wait()
            await session.saved()
            self._store.block_writes("it was left to another worker")

    async def _wake_at_end_of(self, turn: SessionTurn) -> None:
        await turn.wait()
        self._wake.set()

    async def _report_running_turn(self, session: Session) -> None:
        """Report which turn runs. A process may be killed for that turn only."""
        running = ""
        try:
            async for recorded in session.events(session.last_seq):
                match recorded.event:
                    case TurnStarted(turn_id=turn_id) if turn_id in session.turns:
                        self._on_turn(running := turn_id)
                    case TurnEnded(turn_id=turn_id) if turn_id == running:
                        self._on_turn(None)
                    case _:
                        pass
        except StoreError:
            pass  # the log has failed, which _work() reports

    async def _admit_new_turns(self, session: Session) -> list[SessionTurn]:
        """Start a turn for each message in the inbox. Returns the turns.

        The messages are removed from the inbox only after the log has them: a crash in between leaves them in both
        places, and `_is_known()` skips the second copy.
        """
        key = (session.id,)
        entries = await self._connection.read("inbox", key, self._inbox_position)
        # Every stop that was recorded before the inbox was read is applied before its messages are admitted. Calls to
        # the supervisor do not replace this: it is another process, which may be frozen.
        await self._stops.catch_up()
        if self._handover_within is not None:
            return []  # the messages stay in the inbox, for the next owner
        turns = [turn for entry in entries if (turn := await self._admit(session, entry)) is not None]
        if entries:
            await session.saved()
            self._inbox_position = entries[-1].position
            await self._connection.purge("inbox", key, self._inbox_position)
        return turns

    async def _admit(self, session: Session, entry: StreamEntry) -> SessionTurn | None:
        try:
            if is_control_entry(entry.data):
                return None
            sent = from_json(SendCall, entry.data)
            if _is_known(session, sent.turn_id):
                return None  # it was sent twice, or its first owner died before it could remove it from the inbox
            return self._start_turn(session, sent)
        except (Unreadable, UsageError) as error:
            log.warning("session %s: a message cannot be accepted and is kept as a dead letter: %s", session.id, error)
            _refuse(session, entry.data, error)
            await self._connection.append("dead", (session.id,), entry.data)
            return None

    def _start_turn(self, session: Session, sent: SendCall) -> SessionTurn:
        """Start a turn. One that was stopped before does not begin, because nothing is awaited in here."""
        try:
            turn = session.send(sent.text, turn_id=sent.turn_id, timeout=sent.seconds, when_busy=sent.when_busy)
        except SessionBusy as busy:
            turn = session.send(sent.text, turn_id=sent.turn_id, timeout=sent.seconds)
            turn.stop(StopAt.NOW, reason=AbortReason("error", f"rejected: {busy}"))
        call = self._early_stops.get(sent.turn_id)
        if call is not None:
            self.stop(call, noted=True)
        return turn

    def stop(self, call: StopCall, *, noted: bool = False) -> Reply:
        """Stop a turn, or its successor. Returns at once, even while the event loop is blocked. Any thread.

        Args:
            call: The stop.
            noted: True if it comes from `_early_stops`. Then it must not replace a later one that was noted meanwhile.
        """
        # Note the stop, then look for the turn. Admission adds the turn, then looks for a stop. Each side writes before
        # it reads, so a stop that races with the admission of its turn is seen by one of the two. In another order
        # both could look first and find nothing.
        if not noted:
            self._early_stops[call.turn_id] = call
        session = self.session
        turn_id = call.turn_id if session is None else session.successor_of(call.turn_id)
        if session is None or (turn_id not in session.turns and session.outcome_of(turn_id) is None):
            message = f"turn {call.turn_id} has not been admitted yet"
            return Reply(status="unknown", message=message, turn_id=call.turn_id)
        self._early_stops.pop(call.turn_id, None)
        with self._applying:  # the same stop is received as a request and read from the record, by two threads
            reply = self._applied.get(call.id)
            if reply is None:
                ack = session.stop(
                    turn_id,
                    call.stop_at,
                    scope=call.scope,
                    within=call.within,
                    abandon=call.abandon,
                    reason=call.abort_reason,
                )
                reply = Reply(message=ack.message, status=ack.status, turn_id=turn_id)
                if call.id:
                    self._applied[call.id] = reply
        return reply

    async def handle(self, call: Call) -> Reply:
        """Carry out any other call, in the event loop of the session."""
        session = self.session
        if isinstance(call, ReleaseWhenIdle):
            self._idle_for = 0.0
            self._wake.set()
            return Reply()
        if session is None:
            return Reply(False, "the session is being opened", error="opening")
        try:
            return await self._handle_in(session, call)
        except Exception as error:
            return Reply.from_error(error)

    async def _handle_in(self, session: Session, call: Call) -> Reply:
        match call:
            case StopCall():
                return self.stop(call)
            case ReleaseWhenIdle():
                return Reply()  # handled before
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
                self._close_reason = reason
                self._wake.set()
                return Reply()
        await session.saved()
        return Reply()

    def hand_over(self, within: float) -> None:
        """End the work and leave open turns, and those that wait, to the next owner.

        Args:
            within: The seconds in which the running turn may reach a safe point; then it is stopped at once.
        """
        self._handover_within = within
        self._wake.set()

    def revoke(self, reason: str) -> None:
        """End all work immediately and write nothing more: the order belongs to another worker.

        The turns are stopped here and not by `_work()`, which may be waiting for the broker.
        """
        self._handover_within = 0.0
        self._store.block_writes(reason)  # first: the ends of the turns stopped below must not be written
        if self.session is not None:
            self._stop_running(self.session, 0.0)
        self._stops.close()
        self._wake.set()

    def _stop_running(self, session: Session, within: float) -> list[SessionTurn]:
        session.pause()
        running = [turn for turn in session.turns.values() if not turn.queued]
        for turn in running:
            at = StopAt.SAFE_POINT if within > 0 else StopAt.NOW
            turn.stop(at, scope="tree", within=within or None, reason=GIVEN_BACK)
        return running


def _is_known(session: Session, turn_id: str) -> bool:
    return turn_id in session.turns or session.outcome_of(turn_id) is not None


def _refuse(session: Session, data: bytes, error: Exception) -> None:
    """Record the failed turn of a message that cannot be read. Its sender was told it is accepted, and waits for it."""
    try:
        head = from_json(SendCallHead, data)
        if not _is_known(session, head.turn_id):
            session.refuse(head.turn_id, head.text, error)
    except (Unreadable, UsageError):
        pass  # not even the id of the turn can be read, so nobody can ask for it


class MissingAgent(Agent):
    """A substitute for an agent that a worker does not have: its turns fail, and their error names the missing agent.

    With it the session can be opened as usual: messages are taken from the inbox, stopped turns are ended as stopped,
    and every other turn is ended as failed and leaves the conversation unchanged. Otherwise a session that is pinned to
    a worker that was restarted without the agent would keep its turns open for ever.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(_NoModel(why), name=name)
        self._why = why

    async def __call__(self, ctx: Context, value: "str | Sequence[Message] | AgentResult", /) -> AgentResult:
        """Fail. The conversation is not changed even if it has open tool calls, because there are no tools to run them.

        Raises:
            UsageError: Always. It names the missing agent. The conversation is the partial of the run.
        """
        error = UsageError(self._why)
        if not isinstance(value, AgentResult):
            value = AgentResult("", () if isinstance(value, str) else tuple(value))
        ctx.keep_partial(error, value)
        raise error


class _NoModel:
    """An agent needs a model; a session never calls this one."""

    name = "none"

    def __init__(self, why: str) -> None:
        self._why = why

    def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
        """Raises: UsageError."""
        raise UsageError(self._why)
