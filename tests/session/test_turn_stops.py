"""How a turn is stopped: the signal first, the record at once after, whatever the source."""

import asyncio
import threading
from typing import Any

import pytest

from safepoint import AbortController, Aborted, StopAt, TimedOut
from safepoint.abort import use_clock
from safepoint.agent import ToolContext, tool
from safepoint.errors import UsageError
from safepoint.events import StopRequested, ToolCalled
from safepoint.models.scripted import Call, Stall
from safepoint.session import MemoryStore, Session
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.conftest import counts
from tests.kit.agents import HeldTool, gated_agent, talker
from tests.kit.sessions import ends, first_text, stops, stored, until
from tests.kit.stores import GatedStore
from tests.kit.waiting import loop_until


async def test_a_stop_is_in_the_store_before_the_turn_has_ended() -> None:
    slow = HeldTool()
    store = MemoryStore()
    async with Session.open("s", agent=talker([Call("slow")], tools=[slow.tool]), store=store) as session:
        turn = session.send("hi", turn_id="t")
        await slow.inside.wait()
        session.stop("t", reason="enough")
        await session.saved()
        assert (await stops(store), await ends(store)) == ([("t", "user")], {})
        assert turn.status == "stopping"
        slow.released.set()
        assert (await turn).status == "aborted"


@pytest.mark.parametrize("source", ["caller's signal", "deadline"])
async def test_a_stop_by_the_callers_signal_or_a_deadline_is_recorded_as_well(source: str, clock: FakeClock) -> None:
    slow = HeldTool()
    store, controller = MemoryStore(), AbortController()
    async with Session.open("s", agent=talker([Call("slow")], tools=[slow.tool]), store=store) as session:
        options: Any = {"signal": controller.signal} if source != "deadline" else {"timeout": 5.0}
        turn = session.send("hi", turn_id="t", **options)
        await slow.inside.wait()
        controller.abort("left")
        clock.advance(5)
        await drain_ready_tasks()
        await session.saved()
        assert await stops(store) == [("t", "user" if source != "deadline" else "deadline")]
        assert turn.status == "stopping"
        slow.released.set()
        assert isinstance((await turn).outcome, Aborted if source != "deadline" else TimedOut)


async def test_a_stop_that_is_asked_for_again_is_not_written_again() -> None:
    slow = HeldTool()
    store = MemoryStore()
    async with Session.open("s", agent=talker([Call("slow")], tools=[slow.tool]), store=store) as session:
        turn = session.send("hi", turn_id="t")
        await slow.inside.wait()
        acks = [turn.stop(StopAt.AFTER_TOOLS, reason="first"), *(turn.stop(reason="again") for _ in range(50))]
        assert [ack.status for ack in acks] == ["accepted", *["already_stopping"] * 50]
        assert acks[1].message == "stops at AFTER_TOOLS", "a call without a time leaves it as it is"
        turn.stop(StopAt.NOW)
        turn.stop(StopAt.AFTER_MODEL)
        slow.released.set()
        result = await turn
        receipts = [await ack.settled() for ack in acks]
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.message == "first", "the first reason wins"
    assert set(receipts) == {result.outcome.receipt}, "everybody gets the same receipt"
    asked = [event.at_point for event in await recorded_stops(store)]
    assert asked == ["AFTER_TOOLS", "NOW"], "only what is stricter"


async def recorded_stops(store: MemoryStore) -> list[StopRequested]:
    return [event for event in await stored(store) if isinstance(event, StopRequested)]


async def test_the_receipt_of_a_stop_that_came_too_late_claims_nothing() -> None:
    async with Session.open("s", agent=talker("whole answer")) as session:
        turn = session.send("hi", turn_id="t")
        early = turn.stop(StopAt.AFTER_TOOLS)
        assert early.status == "accepted", "while it waits, any safe point is now"
        assert (await early.settled()).entries[0].fate == "not_started"
        turn = session.send("hi")
        await first_text(session)
        ack = turn.stop(StopAt.AFTER_TOOLS)
        assert (await turn).status == "completed", "a final answer that comes first wins"
        receipt = await ack.settled()
        assert (receipt.reason, receipt.entries) == (None, ())
        late = session.stop(turn.id)
        assert late.status == "already_finished"
        assert await late.settled() == receipt


async def test_a_receipt_can_be_waited_for_with_a_limit(clock: FakeClock) -> None:
    slow = HeldTool(warn_after=1000)
    async with (
        Session.open("s", agent=talker([Call("slow")], tools=[slow.tool])) as session,
        asyncio.TaskGroup() as group,
    ):
        turn = session.send("hi")
        await slow.inside.wait()
        waiting = group.create_task(pytest_raises_timeout(turn.stop().settled(3)))
        await drain_ready_tasks()
        clock.advance(3)
        await waiting
        slow.released.set()
        assert (await turn.stop().settled()).entries


async def pytest_raises_timeout(pending) -> None:
    with pytest.raises(TimeoutError):
        await pending


async def test_a_safe_point_that_is_not_reached_in_time_is_not_waited_for(clock: FakeClock) -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        turn = session.send("hi")
        await first_text(session)
        turn.stop(StopAt.SAFE_POINT, within=5)
        clock.advance(4.9)
        await drain_ready_tasks()
        assert turn.status == "stopping"
        clock.advance(0.1)
        outcome = (await turn).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.receipt.escalated


@pytest.mark.parametrize("options", [{"within": 0}, {"within": -1}, {"at": "now"}])
async def test_a_stop_that_makes_no_sense_is_refused_and_stops_nothing(options: Any) -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        turn = session.send("hi")
        await first_text(session)
        with pytest.raises((UsageError, ValueError)):
            session.stop(turn.id, **options)
        assert turn.status == "running"


async def test_a_stop_for_a_turn_that_nobody_has_seen_is_remembered_for_ten_minutes(clock: FakeClock) -> None:
    async with Session.open("s", agent=talker("hello")) as session:
        assert session.stop("early", reason="never mind").status == "unknown"
        assert session.stop("old").status == "unknown"
        outcome = (await session.send("hi", turn_id="early")).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.message == "never mind"
        clock.advance(601)
        assert (await session.send("hi", turn_id="old")).status == "completed"
        assert session.messages[0].text == "hi"  # type: ignore[union-attr]


async def test_a_turn_whose_time_is_up_in_the_moment_of_its_acceptance_does_not_stay_in_the_queue() -> None:
    class Ticking(FakeClock):
        """Each look at the date takes a second."""

        def time(self) -> float:
            self.advance(1)
            return super().time()

    with use_clock(Ticking()):
        async with Session.open("s", agent=talker()) as session:
            session.pause()
            async with asyncio.timeout(5):
                assert (await session.send("hi", timeout=0.5)).status == "timed_out"


async def test_a_stop_from_a_thread_never_misses_a_turn_that_begins_at_that_moment() -> None:
    async with Session.open("s", agent=talker(*[["half", Stall()]] * counts(200, 5000))) as session:
        session.pause()
        for number in range(counts(200, 5000)):
            name = f"t{number}"
            gate = threading.Barrier(2)

            def stop(name=name, gate=gate) -> None:
                gate.wait(20)
                session.stop(name)

            thread = threading.Thread(target=stop)
            thread.start()
            gate.wait(20)
            turn = session.send("hi", turn_id=name)
            thread.join(20)
            assert (await turn).status == "aborted", "either it was there, or the stop was remembered"


async def test_stops_from_many_threads_and_the_loop_end_in_one_truth() -> None:
    for _ in range(counts(20, 300)):
        store = MemoryStore()
        async with Session.open("s", agent=talker(["half", Stall()]), store=store) as session:
            turn = session.send("hi", turn_id="t")
            await first_text(session)
            statuses: list[str] = []
            gate = threading.Barrier(5)

            def stop(at: StopAt | None, turn=turn, gate=gate, statuses=statuses) -> None:
                gate.wait(20)
                statuses.append(turn.stop(at).status)

            kinds = [None, StopAt.NOW, StopAt.SAFE_POINT, StopAt.AFTER_TOOLS, StopAt.NOW]
            threads = [threading.Thread(target=stop, args=(at,)) for at in kinds]
            for thread in threads:
                thread.start()
            result = await turn
            for thread in threads:
                await asyncio.to_thread(thread.join, 20)
            assert result.status == "aborted"
            assert statuses.count("accepted") == 1
        assert len(await ends(store)) == 1


async def test_a_stop_while_the_end_is_written_finds_the_end() -> None:
    store = GatedStore()
    controller = AbortController()
    agent, released = gated_agent("whole")
    async with Session.open("s", agent=agent, store=store) as session:
        turn = session.send("hi", turn_id="t", signal=controller.signal)
        await until(session, lambda event: isinstance(event, ToolCalled))
        await session.saved()
        store.shut()
        released.set()
        await loop_until(lambda: turn.outcome is not None)
        ack = session.stop("t")
        controller.abort("too late")
        assert ack.status == "already_finished"
        assert turn.result is None
        store.gate.set()
        assert (await turn).status == "completed"
        assert (await ack.settled()).reason is None
    assert (await ends(store))["t"].outcome.status == "completed"
    assert await stops(store) == []


async def test_the_stop_of_a_turn_reaches_the_work_in_its_tools() -> None:
    seen: list[str] = []

    @tool
    async def wait(ctx: ToolContext) -> str:
        await ctx.signal.wait_async()
        assert ctx.signal.reason is not None
        seen.append(ctx.signal.reason.message)
        ctx.signal.raise_if_aborted()
        return "never"

    async with Session.open("s", agent=talker([Call("wait")], tools=[wait])) as session:
        turn = session.send("hi")
        await until(session, lambda event: isinstance(event, ToolCalled))
        await drain_ready_tasks()
        session.stop(turn.id, reason="enough")
        await turn
    assert seen in ([], ["enough"])
    assert isinstance((await turn).outcome, Aborted)


def nested() -> tuple[Any, asyncio.Event, asyncio.Event]:
    """An agent that has another one work for it, whose tool waits until it is let out, and then has more to say."""
    asking, released = asyncio.Event(), asyncio.Event()

    @tool
    async def step() -> str:
        asking.set()
        await released.wait()
        return "stepped"

    inner = talker([Call("step")], "inner is done", name="inner", tools=[step])
    return talker([Call("inner", prompt="go")], "outer is done", "next", tools=[inner.as_tool()]), asking, released


SCOPES = [
    ("session", None),
    ("session", "root"),
    ("session", "tree"),
    ("turn", None),
    ("turn", "tree"),
    ("steer", None),
]


@pytest.mark.parametrize(("way", "scope"), SCOPES)
async def test_a_stop_at_a_safe_point_leaves_sub_agents_alone_unless_the_whole_tree_is_meant(
    way: str, scope: Any
) -> None:
    agent, asking, released = nested()
    async with Session.open("s", agent=agent) as session:
        turn = session.send("hi", turn_id="t")
        await asking.wait()
        match way:
            case "session":
                session.stop("t", StopAt.AFTER_TOOLS, scope=scope)
            case "turn":
                turn.stop(StopAt.AFTER_TOOLS, scope=scope)
            case _:
                session.send("look here", when_busy="steer")
        released.set()
        outcome = (await turn).outcome
        assert isinstance(outcome, Aborted)
        said = [getattr(one, "content", "") for one in outcome.partial.messages]  # type: ignore[union-attr]
        assert ("inner is done" in said) == (scope != "tree")


async def test_a_stop_can_be_widened_to_the_whole_tree_later() -> None:
    agent, asking, released = nested()
    async with Session.open("s", agent=agent) as session:
        turn = session.send("hi", turn_id="t")
        await asking.wait()
        session.stop("t", StopAt.SAFE_POINT)
        assert session.stop("t", scope="tree").status == "already_stopping"
        released.set()
        outcome = (await turn).outcome
        assert "inner is done" not in [getattr(one, "content", "") for one in outcome.partial.messages]  # type: ignore[union-attr]


async def test_a_scope_that_is_none_is_refused() -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        session.send("hi", turn_id="t")
        with pytest.raises(UsageError, match="scope must be"):
            session.stop("t", StopAt.SAFE_POINT, scope="branch")  # type: ignore[arg-type]
