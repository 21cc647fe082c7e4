"""Owns playing one cell of the conformance table: a turn is brought to its phase, stopped, and checked.

Knows nothing of which cells there are.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from ...abort import AbortController
from ...agent.context import ToolContext
from ...agent.conversation import AgentResult
from ...agent.history import validate
from ...events import (
    AnswerStarted,
    LeafStarted,
    QuestionAsked,
    SessionOpened,
    TextStreamed,
    ToolCalled,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)
from ...outcome import Completed, Outcome
from ...session.engine import SessionEnded
from ...session.host import NotFound, SessionAccess, SessionViews, TurnView
from ...session.log import LoggedEvent
from ...session.session import Session
from ...session.turn import TurnResult
from ...wire import outcome_to_json
from .rig import STILL_SECONDS, Rig

__all__ = ["DEADLINE", "GOES_ON", "GRACE", "LATE", "NEVER", "STILL", "STORING", "WAITS", "Play"]

STILL = "while its event loop stands still"
LATE = ("while its end is saved", "after the end")
STORING = ("while it is stored", "while its end is saved")
NEVER = ", never begun"
GOES_ON = ", goes on after the next start"
WAITS = "stays queued, runs after the next start"
# How a turn ends if its host is shut down and the next host continues it. On a worker, the reason is the lost lease.
LEFT = ("aborted (shutdown)", "aborted (lease_lost)")
DEADLINE, GRACE = 2.0, 1.0
TURNS = 10_000  # how many turns of the loop to wait for a fact


@dataclass
class Play:
    """One cell being played.

    Attributes:
        phase: The phase in which the stop comes.
        source: The source of the stop.
        promise: How the turn must end.
        text: The message that brings the turn to its phase.
        rig: The host under test.
        group: The task group for tasks that start and stop the turn.
        id: The id of the session.
        turn_id: The id of the turn.
        controller: The controller behind the caller's signal.
        leave: Set to close the stream.
        reader: The reader of the session's events.
        starting: The task that starts the turn.
        stopping: The task that stops it.
        stopped_after: The number of the last event before the stop.
        reported: How the turn ended according to its caller, if it is not in the store.
    """

    phase: str
    source: str
    promise: str
    text: str
    rig: Rig
    group: asyncio.TaskGroup
    id: str = "s"
    turn_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    controller: AbortController = field(default_factory=AbortController)
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    reader: AsyncGenerator[LoggedEvent, None] | None = None
    starting: "asyncio.Task[None] | None" = None
    stopping: "asyncio.Task[None] | None" = None
    stopped_after: int = 0
    reported: str | None = None

    def __str__(self) -> str:
        return f"{self.phase}, {self.source}"

    async def run(self) -> None:
        """Play the cell.

        Raises:
            AssertionError: The host does not keep the promise.
        """
        host, phase = self.rig.host, self.phase
        await host.create(self.id, "child")
        await host.create("parent", "parent")
        if phase in ("pre-aborted", "an id not seen yet"):
            await self._stop_before_start()
        else:
            self.reader = host.events(self.id)
            await self._reach()
            if phase == STILL:
                await self._stop_frozen_turn()
            else:
                self.stopped_after = (await host.session(self.id)).last_seq
                await self._stop(wrong=phase in ("wrong id", "wrong session"))
            if phase == "twice":
                await self._stop_again()
            if phase in STORING and self.rig.store_gate is not None:
                self.rig.store_gate.open()
                await self._wait_for_stop()
            await self.reader.aclose()
        await self._check(host if self.source != "host shutdown" else await self.rig.again())

    async def _stop_before_start(self) -> None:
        """Send the stop first, and start the turn afterwards."""
        host, source = self.rig.host, self.source
        if source == "host shutdown":
            await host.close()
            try:
                await host.send(self.id, "quick", turn_id=self.turn_id)
            except SessionEnded:
                self.reported = "refused"
        elif source == "parent tool":
            self.rig.cast.drive = self._drive_stopped
            view = await host.send("parent", "go")
            await self._ended(host, "parent", view.id)
        elif source == "caller's signal":
            self._abort_caller("first")
            turn = (await self._session()).send("quick", turn_id=self.turn_id, signal=self.controller.signal)
            self.reported = name(await turn)
        else:
            if source == "stop by id":
                assert (await host.stop(self.id, self.turn_id)).status == "unknown"
            view = await host.send(
                self.id, "quick", turn_id=self.turn_id, timeout=0.0 if source == "deadline" else None
            )
            self.reported = name(view)

    async def _drive_stopped(self, ctx: ToolContext) -> None:
        session = await self._session()
        assert self.rig.session is not None
        # Without an await in between: a tool that stops its own turn is interrupted at its next await.
        (await self.rig.session("parent")).stop(ctx.run_id)
        self.reported = name(await session.send("quick", turn_id=self.turn_id, signal=ctx.signal))

    async def _session(self) -> Session:
        assert self.rig.session is not None
        return await self.rig.session(self.id)

    async def _reach(self) -> None:
        """Start the turn, and wait until it has reached the phase."""
        phase, gate = self.phase, self.rig.store_gate
        if phase == "queued":
            await self.rig.host.send(self.id, "wait", turn_id="ahead")
            await self._wait_for_event(TurnStarted, "ahead")
        if phase == "while it is stored" and gate is not None:
            await self._wait_for_event(SessionOpened, self.id)  # the reader is attached
            gate.shut()
        group = self.group
        self.starting = group.create_task(self._start())
        match phase:
            case "queued":
                await self._wait_for_event(TurnQueued)
            case "while it is stored":
                assert gate is not None
                await gate.reached()  # its events cannot be read yet
                await self._spin_until(lambda session: self.turn_id in session.turns, "does not come")
            case "before the first token":
                await self._wait_for_event(AnswerStarted)
            case "in a tool":
                await self._wait_for_event(ToolCalled)
                await self._wait_for_event(LeafStarted)  # it has a task of its own, which begins a moment later
            case "in ask_user":
                await self._wait_for_event(QuestionAsked)
            case _ if phase == STILL:
                pass  # it may be this event loop that will not move
            case "while its end is saved":
                question = await self._wait_for_event(QuestionAsked)
                assert gate is not None
                gate.shut()
                assert await self.rig.host.answer(self.id, question.event.question_id, "so so")  # type: ignore[union-attr]
                await gate.reached()
                await self._spin_until(self._decided, "does not end")
            case "after the end":
                await self._wait_for_event(TurnEnded)
            case _:
                await self._wait_for_event(TextStreamed)

    async def _spin_until(self, fact: Callable[[Session], bool], otherwise: str) -> None:
        """Wait for a fact that is not in the store yet, so that no event shows it."""
        session = await self._session()
        for _ in range(TURNS):
            if fact(session):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{self}: the turn {otherwise}")

    def _decided(self, session: Session) -> bool:
        turn = session.turns.get(self.turn_id)
        return turn is None or turn.outcome is not None

    async def _wait_for_event(self, kind: type, turn_id: str | None = None) -> LoggedEvent:
        assert self.reader is not None
        async for recorded in self.reader:
            if isinstance(recorded.event, kind) and recorded.event.run_id == (turn_id or self.turn_id):
                return recorded
        raise AssertionError(f"the events ended before {kind.__name__}")

    async def _start(self) -> None:
        host, text, about = self.rig.host, self.text, {"turn_id": self.turn_id}
        match self.source:
            case "caller's signal":
                (await self._session()).send(text, **about, signal=self.controller.signal)  # type: ignore[arg-type]
            case "closing the stream":
                async with (await self._session()).stream(text, **about):  # type: ignore[arg-type]
                    await self.leave.wait()
            case "parent tool":
                session = await self._session()

                async def drive(ctx: ToolContext) -> None:
                    async with session.stream(text, **about, signal=ctx.signal) as events:  # type: ignore[arg-type]
                        async for event in events:
                            ctx.emit(event)

                self.rig.cast.drive = drive
                await host.send("parent", "go", turn_id="above")
            case source:
                seconds = DEADLINE * self.rig.pace if source == "deadline" else None
                await host.send(self.id, text, **about, timeout=seconds)  # type: ignore[arg-type]

    def _abort_caller(self, reason: str) -> None:
        self.controller.abort(reason)

    async def _stop(self, *, wrong: bool = False) -> None:
        host = self.rig.host
        match self.source:
            case "caller's signal":
                self._abort_caller("enough")
            case "closing the stream":
                self.leave.set()
                assert self.starting is not None
                await self._begin_stop(self.starting)
            case "parent tool":
                await host.stop("parent", "above", reason="enough")
            case "deadline":
                await self.rig.elapse(DEADLINE * self.rig.pace)
            case "disconnect policy":
                assert self.reader is not None
                await self.reader.aclose()
                await self.rig.elapse(GRACE * self.rig.pace)
            case "host shutdown":
                group = self.group
                await self._begin_stop(group.create_task(host.close(reason="enough")))
            case _ if wrong:
                session_id = "parent" if self.phase == "wrong session" else self.id
                turn_id = self.turn_id if self.phase == "wrong session" else "another"
                assert (await host.stop(session_id, turn_id)).status == "unknown"
            case _:
                ack = await host.stop(self.id, self.turn_id, reason="enough")
                assert ack.status == ("already_finished" if self.phase in LATE else "accepted"), ack

    async def _stop_frozen_turn(self) -> None:
        """Stop the turn while its event loop is blocked. That may be this loop, so a thread waits for it."""
        cast, session = self.rig.cast, self.rig.session
        mine, above = (None, None) if session is None else (await session(self.id), await session("parent"))

        def stop() -> None:
            assert cast.still.wait(STILL_SECONDS), f"{self}: the tool does not begin"
            try:
                if mine is None or above is None:
                    asyncio.run(self._stop_through_other_host())
                    return
                self.stopped_after = mine.last_seq
                if self.source == "caller's signal":
                    self._abort_caller("enough")
                else:
                    stopped, turn_id = (above, "above") if self.source == "parent tool" else (mine, self.turn_id)
                    ack = stopped.stop(turn_id, reason="enough")
                    assert ack.status == "accepted", ack
            finally:
                cast.moves.set()

        await asyncio.to_thread(stop)

    async def _stop_through_other_host(self) -> None:
        assert self.rig.elsewhere is not None
        async with self.rig.elsewhere() as host:
            self.stopped_after = (await host.session(self.id)).last_seq
            ack = await host.stop(self.id, self.turn_id, reason="enough")
            assert ack.status == "accepted", ack

    async def _begin_stop(self, stopping: "asyncio.Task[None]") -> None:
        """Let the stop run to its end, or until it waits for the store."""
        self.stopping = stopping
        if self.phase in STORING:
            await asyncio.wait([stopping], timeout=0.01)  # real time: it waits for the store, which is held
        else:
            await self._wait_for_stop()

    async def _wait_for_stop(self) -> None:
        if self.stopping is not None:
            await self.stopping

    async def _stop_again(self) -> None:
        if self.source == "host shutdown":
            await self.rig.host.close()
        else:
            self._abort_caller("again")
            ack = await self.rig.host.stop(self.id, self.turn_id, reason="again")
            assert ack.status in ("already_stopping", "already_finished"), ack

    async def _check(self, host: SessionAccess) -> None:
        """Check that caller, events and store agree, nothing began after the stop, and the session still works."""
        promised, outcome = self.promise, None
        if self.reported is not None:
            assert self.reported == promised.removesuffix(NEVER), f"{self}: the caller was told {self.reported}"
            try:
                raise AssertionError(f"{self}: it was stored: {await host.turn(self.id, self.turn_id)}")
            except NotFound:
                pass
        elif promised == "goes on":
            assert (await host.turn(self.id, self.turn_id)).status == "running", f"{self}: it was touched"
            await host.stop(self.id, self.turn_id)
        elif promised == WAITS:
            ack = await host.stop(self.id, "ahead")  # stops the turn that continues it
            assert ack.status in ("accepted", "already_stopping"), f"{self}: the turn ahead: {ack}"
            outcome = await self._ended(host, self.id, self.turn_id)
            assert outcome_name(outcome) == "completed", f"{self}: it is {outcome_name(outcome)}"
        elif promised.endswith(GOES_ON):
            outcome = await self._goes_on(host)
        else:
            outcome = await self._ended(host, self.id, self.turn_id)
            assert outcome_name(outcome) == promised.removesuffix(NEVER), f"{self}: it is {outcome_name(outcome)}"
        if self.phase == "queued" and self.source not in ("host shutdown", "disconnect policy"):
            assert (await host.turn(self.id, "ahead")).status == "running", f"{self}: another turn was touched"
            await host.stop(self.id, "ahead")
        after = await host.send(self.id, "quick")
        assert outcome_name(await self._ended(host, self.id, after.id)) == "completed", f"{self}: no further turn"
        if outcome is not None:
            await self._check_events(host, outcome)

    async def _goes_on(self, host: SessionAccess) -> Outcome[AgentResult]:
        """Check that the next host continues the turn, and that its first id reaches the continuing turn.

        Returns:
            How the turn ended on the first host.
        """
        ended: Outcome[AgentResult] | None = None
        goes_on = ""
        async with aclosing(host.events(self.id)) as events:
            async for recorded in events:
                match recorded.event:
                    case TurnEnded(turn_id=self.turn_id, outcome=outcome):
                        ended = outcome
                    case TurnQueued(turn_id=turn_id, continues=self.turn_id):
                        goes_on = turn_id
                    case TurnStarted(turn_id=turn_id) if turn_id == goes_on:
                        break
        assert ended is not None, f"{self}: it went on before it had ended"
        assert outcome_name(ended) in LEFT, f"{self}: it is {outcome_name(ended)}"
        view = await host.turn(self.id, self.turn_id)
        assert (view.id, view.continued_by) == (self.turn_id, goes_on), f"{self}: its id shows {view}"
        ack = await host.stop(self.id, self.turn_id, reason="enough")
        assert ack.status in ("accepted", "already_finished"), f"{self}: stopped by its first id: {ack}"
        await ack.settled()
        then = (await host.turn(self.id, self.turn_id)).outcome
        assert then is not None, f"{self}: its first id does not show the end"
        assert outcome_name(then) in ("aborted (user)", "completed"), f"{self}: then it is {outcome_name(then)}"
        return ended

    async def _check_events(self, host: SessionViews, outcome: Outcome[AgentResult]) -> None:
        last = (await host.session(self.id)).last_seq
        events = [recorded async for recorded in upto(host.events(self.id), last)]
        mine = [recorded for recorded in events if recorded.event.run_id == self.turn_id]
        outcomes = [recorded.event.outcome for recorded in mine if isinstance(recorded.event, TurnEnded)]
        assert len(outcomes) == 1, f"{self}: {len(outcomes)} ends among the events"
        assert same(outcomes[0], outcome), f"{self}: the events say {outcomes[0]}, the host says {outcome}"
        begun = [recorded for recorded in mine if isinstance(recorded.event, TurnStarted)]
        assert len(begun) == (not self.promise.endswith(NEVER)), f"{self}: begun {len(begun)} times"
        late = [
            one for one in mine if one.seq > self.stopped_after and isinstance(one.event, AnswerStarted | ToolCalled)
        ]
        assert not late or self.phase in LATE or self.promise == WAITS, f"{self}: begun after the stop: {late}"
        result = outcome.value if isinstance(outcome, Completed) else outcome.partial
        assert result is not None
        validate(result.messages)

    async def _ended(self, host: SessionViews, session_id: str, turn_id: str) -> Outcome[AgentResult]:
        async with aclosing(host.events(session_id)) as events:
            async for recorded in events:
                if isinstance(recorded.event, TurnEnded) and recorded.event.turn_id == turn_id:
                    break
        view = await host.turn(session_id, turn_id)
        assert view.outcome is not None
        return view.outcome


async def upto(events: AsyncGenerator[LoggedEvent, None], last: int) -> AsyncGenerator[LoggedEvent, None]:
    async with aclosing(events):
        async for recorded in events:
            yield recorded
            if recorded.seq >= last:
                return


def same(one: Outcome[AgentResult], other: Outcome[AgentResult]) -> bool:
    return outcome_to_json(one, AgentResult) == outcome_to_json(other, AgentResult)


def name(view: TurnView | TurnResult) -> str:
    return view.status if view.outcome is None else outcome_name(view.outcome)


def outcome_name(outcome: Outcome[AgentResult]) -> str:
    reason = getattr(outcome, "reason", None)
    return outcome.status if reason is None else f"{outcome.status} ({reason.kind})"
