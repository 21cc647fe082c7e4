"""The second press: `stop(abandon=seconds)` leaves what does not end, says where it is, and lets nothing late in."""

import asyncio
import contextvars
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Agent, Completed, StopAt, TimedOut, tool
from safepoint.agent import AgentRun, ToolContext
from safepoint.events import LeafAbandoned, ProgressMade
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.testing import FakeClock
from tests.kit.agents import Swallower, agents_kept, contents, fates, of_kind, statuses, stopped
from tests.kit.leaves import LibraryCall

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")
SECONDS = 10.0


class Library(LibraryCall):
    """A synchronous tool that is inside a library until it is let go: no interrupt is sent there."""

    def tool(self, name: str = "blocks", **options: Any) -> Any:
        def blocks(ctx: ToolContext) -> str:
            self.inside.set()
            try:
                self.let_go.wait(SECONDS)
            finally:  # it may be interrupted as soon as the library returns
                ctx.progress("still here")
                self.out.set()
            return "too late"

        return tool(blocks, name=name, **options)


def agent_of(*tools: Any, calls: list[Call] | None = None) -> Agent:
    asked = [Call(one.name) for one in tools] if calls is None else calls
    return Agent(ScriptedModel(asked, "done"), tools=list(tools))


async def over(run: AgentRun) -> Any:
    async with asyncio.timeout(SECONDS):
        return await run


async def test_a_tool_inside_a_library_is_left_by_the_second_press_with_its_place(clock: FakeClock):
    library = Library()
    run = agent_of(library.tool()).run("go")
    events: list[Any] = []
    async with run:
        await library.begun()
        assert run.stop().message == "stops at NOW"
        await clock.elapse(2)
        assert not run.finished, "the first press waits, visibly"
        ack = run.stop(abandon=0)
        assert ack.status == "already_stopping"
        assert ack.message == "is stopping; now at NOW; what has not ended by then is left behind"
        outcome = await over(run)
        events += [event async for event in run]
    assert statuses(stopped(outcome)) == ["unknown"]
    (entry,) = outcome.receipt.still_running
    assert entry.name == "agent/blocks"
    assert entry.where is not None
    assert "threading.py" in entry.where or __file__ in entry.where
    (event,) = of_kind(events, LeafAbandoned)
    assert event.seconds == pytest.approx(2)
    assert event.where == entry.where
    await library.end()
    assert not of_kind(events, ProgressMade)
    assert statuses(stopped(await run)) == ["unknown"], "what came late changes nothing"
    assert clock.pending == 0


async def test_an_async_tool_that_swallows_its_interruption_is_left_too(clock: FakeClock, caplog: Any):
    swallower = Swallower()
    run = agent_of(swallower.tool()).run("go")
    async with run:
        await swallower.inside.wait()
        run.stop()
        await clock.elapse(2)
        assert not run.finished
        run.stop(abandon=1)
        await clock.elapse(0.9)
        assert not run.finished
        await clock.elapse(0.1)
        outcome = await over(run)
    assert fates(outcome)["agent/swallows"] == "still_running"
    (entry,) = outcome.receipt.still_running
    assert entry.where is not None
    assert "tests/kit/agents.py" in entry.where
    assert "swallows" in entry.where
    assert statuses(stopped(outcome)) == ["unknown"]
    await swallower.end()
    assert "after it had been abandoned" in caplog.text
    assert clock.pending == 0


async def test_abandon_alone_is_a_stop_now_and_what_ends_at_once_is_stopped(clock: FakeClock):
    inside = asyncio.Event()
    cleaned: list[str] = []

    @tool
    async def polite() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("cleaned")
        return "never"

    run = agent_of(polite).run("go")
    async with run:
        await inside.wait()
        ack = run.stop(abandon=0)
        assert (ack.status, ack.message) == ("accepted", "stops at NOW; what has not ended by then is left behind")
        outcome = await over(run)
    assert cleaned == ["cleaned"]
    assert fates(outcome)["agent/polite"] == "stopped"
    assert statuses(stopped(outcome)) == ["interrupted"]


async def test_of_several_side_by_side_only_what_does_not_end_is_left(clock: FakeClock):
    library, swallower, quick, waits = Library(), Swallower(), asyncio.Event(), asyncio.Event()

    @tool
    async def finished() -> str:
        quick.set()
        return "real result"

    @tool
    async def polite() -> str:
        waits.set()
        await asyncio.Event().wait()
        return "never"

    run = agent_of(library.tool(), finished, swallower.tool(), polite).run("go")
    async with run:
        await library.begun()
        await asyncio.gather(swallower.inside.wait(), quick.wait(), waits.wait())
        run.stop(abandon=2)
        await clock.elapse(2)
        outcome = await over(run)
    assert statuses(stopped(outcome)) == ["unknown", "completed", "unknown", "interrupted"]
    assert contents(stopped(outcome))[1] == "real result"
    assert {name.rpartition("/")[2]: fate for name, fate in fates(outcome).items()} == {
        "model": "finished",
        "blocks": "still_running",
        "finished": "finished",
        "swallows": "still_running",
        "polite": "stopped",
    }
    await library.end()
    await swallower.end()


@pytest.mark.parametrize("deaf", [Library, Swallower])
async def test_a_tool_of_a_sub_agent_is_left_and_what_the_sub_agent_has_is_kept(deaf: type[Any], clock: FakeClock):
    inner_tool = deaf()
    helper = Agent(
        ScriptedModel(["thinking ", Call("stuck")], "never"), tools=[inner_tool.tool("stuck")], name="helper"
    )
    boss = Agent(ScriptedModel([Call("helper", prompt="help")], "never"), tools=[helper.as_tool()], name="boss")
    run = boss.run("go")
    async with run:
        await (inner_tool.begun() if isinstance(inner_tool, Library) else inner_tool.inside.wait())
        run.stop()
        await clock.elapse(2)
        assert not run.finished
        run.stop(abandon=0)
        outcome = await over(run)
    assert [entry.name for entry in outcome.receipt.still_running] == ["boss/helper/stuck"]
    partial = stopped(outcome)
    assert statuses(partial) == ["interrupted"]
    (kept,) = agents_kept(partial)
    assert statuses(kept) == ["unknown"]
    await inner_tool.end()


async def test_at_a_safe_point_it_begins_to_count_when_the_stop_becomes_an_abort(clock: FakeClock):
    library = Library()
    run = agent_of(library.tool()).run("go")
    async with run:
        await library.begun()
        ack = run.stop(StopAt.SAFE_POINT, within=30, abandon=2)
        assert ack.message == "stops at SAFE_POINT; what has not ended in 2 s is left behind"
        await clock.elapse(29)
        assert not run.signal.aborted
        await clock.elapse(2.9)
        assert not run.finished
        await clock.elapse(0.1)
        outcome = await over(run)
    assert outcome.receipt.escalated
    assert len(outcome.receipt.still_running) == 1
    await library.end()


async def test_a_run_whose_time_is_up_can_be_pressed_too(clock: FakeClock):
    library = Library()
    run = agent_of(library.tool()).run("go", timeout=5)
    async with run:
        await library.begun()
        await clock.elapse(5.2)  # a limit waits half a second; the press does not
        assert not run.finished
        assert run.stop(abandon=0).status == "already_stopping"
        outcome = await over(run)
    assert isinstance(outcome, TimedOut)
    assert len(outcome.receipt.still_running) == 1
    await library.end()


async def test_it_may_be_pressed_from_any_thread(clock: FakeClock):
    library = Library()
    run = agent_of(library.tool()).run("go")
    async with run:
        await library.begun()
        await asyncio.to_thread(run.stop)
        await asyncio.to_thread(run.stop, abandon=0)
        outcome = await over(run)
    assert len(outcome.receipt.still_running) == 1
    await library.end()


async def test_a_tool_with_a_limit_of_its_own_is_left_at_whichever_comes_first(clock: FakeClock):
    swallower = Swallower()
    run = agent_of(swallower.tool(abandon_after=4)).run("go")
    async with run:
        await swallower.inside.wait()
        run.stop(abandon=60)
        await clock.elapse(4)
        assert len((await over(run)).receipt.still_running) == 1
    await swallower.end()
    assert clock.pending == 0


async def test_a_wrong_time_is_refused_and_changes_nothing():
    run = agent_of().run("go")
    for wrong, error in ((-1, ValueError), (float("nan"), ValueError), (True, TypeError), ("2", TypeError)):
        with pytest.raises(error, match="abandon"):
            run.stop(abandon=wrong)  # type: ignore[arg-type]
    assert not run._ctx.stop.requested


async def test_what_a_tool_sets_in_context_variables_stays_in_the_tool():
    """A tool is a function call, alone or beside others: it sees what was set around the run, and changes nothing."""
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")
    seen: list[str] = []

    @tool
    async def look() -> str:
        seen.append(var.get())
        var.set("changed by a tool")
        return "seen"

    var.set("of the caller")
    agent = Agent(ScriptedModel([Call("look")], [Call("look")], "done"), tools=[look])
    assert isinstance(await agent.run("go"), Completed)
    assert seen == ["of the caller", "of the caller"]
    assert var.get() == "of the caller"


async def test_a_cancellation_from_outside_still_passes_and_the_tool_cleans_up():
    inside = asyncio.Event()
    path: list[str] = []

    @tool
    async def waits() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            path.append("cleaned")
        return "never"

    run = agent_of(waits).run("go")
    waiting = asyncio.ensure_future(run._wait())
    await inside.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert path == ["cleaned"]
    assert isinstance(await run, Aborted)


async def test_nothing_stays_behind_on_the_signal_around_the_run(clock: FakeClock):
    around = AbortController()
    swallower = Swallower()
    run = agent_of(swallower.tool()).run("go", signal=around.signal)
    async with run:
        await swallower.inside.wait()
        run.stop(StopAt.SAFE_POINT, abandon=5)
        around.abort("the work around it ends")
        await clock.elapse(5)
        assert len((await over(run)).receipt.still_running) == 1
    await swallower.end()
    assert around.signal.observers == 0
    assert clock.pending == 0
