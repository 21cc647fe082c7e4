"""Timing × scope × escalation over three levels of agents. The numbers are those of the turn loop's rules C-1 … C-46.

Where Safepoint differs on purpose the docstring says so: NOW always takes the whole tree and is a real abort; leaving
out `at` leaves the timing as it is; what had finished is kept on NOW.
"""

import asyncio
import itertools
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint import Aborted, Completed
from safepoint.abort import use_clock
from safepoint.agent import Agent, AgentResult, AgentRun, ToolContext, tool
from safepoint.events import ProgressMade, QuestionAsked, RunEnded, TextStreamed
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.run import Outcome, StopAck, StopAt, StopRequest
from safepoint.testing import FakeClock
from safepoint.testing import drain_ready_tasks as let_run
from safepoint.wire import outcome_from_json, outcome_to_json
from tests.kit.agents import agents_kept, contents, fates, kinds, of_kind, read, results, so_far, statuses, stopped

AFTER_MODEL, AFTER_TOOLS, SAFE_POINT, NOW, TURN_END = (
    StopAt.AFTER_MODEL,
    StopAt.AFTER_TOOLS,
    StopAt.SAFE_POINT,
    StopAt.NOW,
    StopAt.TURN_END,
)


class Tree:
    """root → mid → low. At the start all three are in a round: `side` beside mid, `drill` (a thread) beside low, `dig`.

    `release` lets everything go on; `steps` is what ran, `asked` which model was asked, both in order.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.in_thread = threading.Event()
        self.running = {"dig": asyncio.Event(), "side": asyncio.Event()}

        @tool(effects="idempotent")
        async def dig(depth: int) -> str:
            self.steps.append(f"dig {depth}")
            self.running["dig"].set()
            await self.gate.wait()
            return f"dug {depth}"

        @tool(effects="idempotent")
        def drill(ctx: ToolContext) -> str:
            self.steps.append("drill")
            self.in_thread.set()
            while not self.thread_gate.wait(0.002):
                ctx.signal.raise_if_aborted()
            return "drilled"

        @tool(effects="idempotent")
        async def side() -> str:
            self.steps.append("side")
            self.running["side"].set()
            await self.gate.wait()
            return "beside"

        @tool
        async def note() -> str:
            self.steps.append("note")
            return "noted"

        @tool
        async def after() -> str:
            self.steps.append("after")
            return "afterwards"

        low = Agent(self._model("low", [Call("dig", depth=1)], [Call("dig", depth=2)], "low"), tools=[dig], name="low")
        mid_model = self._model("mid", [Call("low", prompt="dig"), Call("drill")], [Call("note")], "mid")
        mid = Agent(mid_model, tools=[low, drill, note], name="mid")
        model = self._model("root", [Call("mid", prompt="go"), Call("side")], [Call("after")], "root")
        self.agent = Agent(model, tools=[mid, side, after], name="root")
        self.run: AgentRun = self.agent.run("go")

    def _model(self, name: str, *answers: Any) -> ScriptedModel:
        def noting(answer: Any) -> Any:
            def say(request: Any) -> Any:
                self.asked.append(name)
                return answer

            return say

        return ScriptedModel(*map(noting, answers), name=name)

    async def inside(self) -> None:
        """Start it; return when all three levels are at work."""
        self.run._start()
        for event in self.running.values():
            await event.wait()
        assert await asyncio.to_thread(self.in_thread.wait, 10)

    def release(self) -> None:
        self.gate.set()
        self.thread_gate.set()

    async def end(self) -> Outcome[AgentResult]:
        self.release()
        return await self.run


def request_of(run: AgentRun) -> StopRequest:
    return run._ctx.stop.request


def deep(partial: AgentResult) -> tuple[AgentResult, AgentResult]:
    """What is kept of mid and of low."""
    (mid,) = agents_kept(partial)
    (low,) = agents_kept(mid)
    return mid, low


BEGUN = ["drill", "dig 1", "side"]


async def test_c01_the_first_call_is_accepted_and_decides_the_reason():
    tree = Tree()
    await tree.inside()
    first = tree.run.stop(AFTER_TOOLS, reason="first")
    second = tree.run.stop(SAFE_POINT, reason="second")
    assert (first.status, second.status) == ("accepted", "already_stopping")
    outcome = await tree.end()
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "first"


stops = st.lists(
    st.tuples(
        st.sampled_from([None, *StopAt]),
        st.sampled_from([None, "root", "tree"]),
        st.one_of(st.none(), st.floats(0.1, 100)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(stops)
def test_c02_c03_c04_whatever_is_asked_in_whatever_order_a_stop_only_gets_stricter(calls: list[Any]):
    """Modes join, `tree` stays, deadlines move earlier only; the order of the calls makes no difference to when.

    Differs from C-13 on purpose: leaving out `at` in a later call leaves the timing as it is.
    """

    async def ask() -> None:
        with use_clock(FakeClock()):
            run = Agent(ScriptedModel("x")).run("go")
            for at, scope, within in calls:
                before = request_of(run)
                run.stop(at, scope=scope, within=within)
                now = request_of(run)
                assert now.at.includes(before.at)
                assert now.at.includes(at or before.at)
                assert now.scope == "tree" or before.scope == "root"
                assert scope != "tree" or now.scope == "tree"
                if before.deadline is not None:
                    assert now.deadline is not None
                    assert now.deadline <= before.deadline
            await run

    asyncio.run(ask())


async def test_c05_a_safe_point_that_is_not_reached_in_time_becomes_now_and_that_is_recorded(clock: FakeClock):
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_TOOLS, within=60)
    tree.run.stop(within=5)
    tree.run.stop(within=90)
    clock.advance(4.9)
    await let_run()
    assert not tree.run.signal.aborted
    clock.advance(0.1)
    outcome = await tree.run
    assert isinstance(outcome, Aborted)
    assert outcome.receipt.escalated
    assert outcome.reason.kind == "user", "a person had asked: it is not a time-out"
    assert statuses(stopped(outcome)) == ["interrupted", "interrupted"]
    assert clock.pending == 0


async def test_c05_a_safe_point_that_is_reached_in_time_is_not_escalated(clock: FakeClock):
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_TOOLS, within=60)
    outcome = await tree.end()
    assert isinstance(outcome, Aborted)
    assert not outcome.receipt.escalated
    assert clock.pending == 0


async def test_c06_now_is_delivered_once_and_what_would_begin_afterwards_does_not():
    cancelled: list[int] = []

    @tool(grace=60)
    async def counts() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return "never"

    @tool
    async def late() -> str:
        raise AssertionError("it must not begin")

    @tool
    async def stopper() -> str:
        for _ in range(3):
            run.abort("enough")
        return "stopped"

    run = Agent(ScriptedModel([Call("counts"), Call("stopper"), Call("late")]), tools=[counts, stopper, late]).run("go")
    outcome = await run
    assert cancelled == [1]
    assert statuses(stopped(outcome)) == ["interrupted", "completed", "not_started"]


async def test_c08_a_result_that_arrives_with_the_stop_is_kept():
    """Differs on purpose: theirs is discarded and runs again on resume; ours has happened, so it is kept."""

    @tool
    async def stops() -> str:
        run.abort("enough")
        return "it has happened"

    run = Agent(ScriptedModel([Call("stops")]), tools=[stops]).run("go")
    assert contents(stopped(await run)) == ["it has happened"]


async def test_c09_c10_c12_a_stop_after_the_end_changes_nothing_and_says_so():
    for model in (ScriptedModel("done"), ScriptedModel()):
        run = Agent(model).run("go")
        outcome = await run
        for at in (None, AFTER_TOOLS, NOW):
            ack: StopAck = run.stop(at)
            assert ack.status == "already_finished"
        assert await run is outcome
        assert outcome.status in ("completed", "failed")


@pytest.mark.parametrize("at", [None, NOW])
async def test_c11_stopped_now_before_it_starts_nothing_runs(at: StopAt | None):
    tree = Tree()
    assert tree.run.stop(at).status == "accepted"
    events = await read(tree.run)
    stopped(await tree.run)
    assert (tree.steps, tree.asked) == ([], [])
    assert kinds(events) == ["run_ended"]


@pytest.mark.parametrize(("at", "ran"), [(AFTER_MODEL, []), (AFTER_TOOLS, ["drill", "dig 1", "side", "dig 2", "note"])])
async def test_c11_stopped_at_a_safe_point_before_it_starts_it_runs_to_its_first_one(at: StopAt, ran: list[str]):
    tree = Tree()
    tree.run.stop(at)
    stopped(await tree.end())
    assert sorted(tree.steps) == sorted(ran)
    assert tree.asked[0] == "root"


async def test_c13_scope_alone_can_be_escalated_and_leaves_the_timing():
    """Differs on purpose: with them "recursive only" means immediate."""
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_TOOLS)
    tree.run.stop(scope="tree")
    assert request_of(tree.run).at is AFTER_TOOLS
    assert not tree.run.signal.aborted
    partial = stopped(await tree.end())
    assert sorted(tree.steps) == sorted(BEGUN)
    assert statuses(partial) == ["interrupted", "completed"]


@pytest.mark.parametrize("at", [AFTER_MODEL, AFTER_TOOLS, SAFE_POINT, TURN_END])
async def test_c14_c20_a_final_answer_that_arrives_first_wins(at: StopAt):
    run = Agent(ScriptedModel("the answer"), tools=[]).run("go")
    await read(run, lambda event: run.stop(at, scope="tree") if isinstance(event, TextStreamed) else None)
    outcome = await run
    assert isinstance(outcome, Completed)
    assert outcome.value.text == "the answer"


async def test_turn_end_lets_everything_finish():
    tree = Tree()
    await tree.inside()
    tree.run.stop(TURN_END, scope="tree")
    assert isinstance(await tree.end(), Completed)
    assert sorted(tree.steps) == sorted([*BEGUN, "dig 2", "note", "after"])


async def test_c15_after_the_model_its_whole_answer_is_kept_and_a_resume_runs_its_tools_without_asking_again():
    tree = Tree()
    tree.run.stop(AFTER_MODEL)
    partial = stopped(await tree.run)
    assert statuses(partial) == ["not_started", "not_started"]
    assert tree.asked == ["root"]
    tree.release()
    tree.run = tree.agent.run(resume=partial)
    assert isinstance(await tree.run, Completed)
    assert tree.asked == ["root", "mid", "low", "low", "low", "mid", "mid", "root", "root"]
    assert sorted(tree.steps) == sorted([*BEGUN, "dig 2", "note", "after"])


async def test_c16_c27_after_the_tools_all_of_the_round_have_ended_and_are_in_the_history():
    gates = {name: asyncio.Event() for name in "ab"}
    ended: list[str] = []

    @tool
    async def step(name: str) -> str:
        await gates[name].wait()
        ended.append(name)
        return name

    run = Agent(ScriptedModel([Call("step", name="a"), Call("step", name="b")]), tools=[step]).run("go")
    async with run:
        await let_run()
        run.stop(AFTER_TOOLS)
        gates["a"].set()
        await let_run()
        assert ended == ["a"]
        assert not run.finished, "one of the round still runs"
        gates["b"].set()
        assert contents(stopped(await run)) == ["a", "b"]


@pytest.mark.parametrize(("when", "expected"), [("answer_started", "not_started"), ("tool_called", "completed")])
async def test_c18_a_safe_point_is_whichever_comes_first(when: str, expected: str):
    @tool
    async def quick() -> str:
        await asyncio.sleep(0)
        return "quick"

    run = Agent(ScriptedModel([Call("quick")], "never"), tools=[quick]).run("go")
    await read(run, lambda event: run.stop(SAFE_POINT) if event.kind == when else None)
    assert statuses(stopped(await run)) == [expected]


async def test_c19_after_the_model_asked_for_in_a_round_waits_for_the_next_answer():
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_MODEL)
    partial = stopped(await tree.end())
    assert statuses(partial) == ["completed", "completed", "not_started"]
    assert tree.asked[-1] == "root"
    assert "after" not in tree.steps


async def test_c22_c23_now_is_a_real_abort_of_model_and_tools():
    """Differs on purpose: theirs leaves the calls running as orphans."""
    seen: list[bool] = []

    class Looking(ScriptedModel):
        async def stream(self, request: Any, *, signal: Any) -> Any:
            try:
                async for chunk in super().stream(request, signal=signal):
                    yield chunk
            finally:
                seen.append(signal.aborted)

    run = Agent(Looking(["half", Stall()])).run("go")
    await read(run, lambda event: run.stop() if isinstance(event, TextStreamed) else None)
    stopped(await run)
    assert seen == [True]
    tree = Tree()
    await tree.inside()
    tree.run.stop()
    outcome = await tree.run
    assert set(fates(outcome).values()) == {"finished", "stopped"}
    for name in ("root/mid", "root/side", "root/mid/low", "root/mid/drill", "root/mid/low/dig"):
        assert fates(outcome)[name] == "stopped"


async def test_c24_a_cut_stream_keeps_what_was_streamed_and_the_cut_is_no_error():
    run = Agent(ScriptedModel(["one two", Stall()])).run("go")
    events = await read(run, lambda event: run.stop() if isinstance(event, TextStreamed) else None)
    partial = stopped(await run)
    assert partial.text == "".join(event.text for event in of_kind(events, TextStreamed))
    assert partial.messages[-1].interrupted  # type: ignore[union-attr]


async def test_c25_what_an_abandoned_tool_says_later_is_dropped(caplog: pytest.LogCaptureFixture):
    let_go = asyncio.Event()

    @tool(abandon_after=0)
    async def deaf(ctx: ToolContext) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        ctx.progress("too late")
        return "too late"

    run = Agent(ScriptedModel([Call("deaf")]), tools=[deaf]).run("go")
    events = await read(
        run, lambda event: run.stop() if event.kind == "leaf_started" and "deaf" in event.path else None
    )
    outcome = await run
    let_go.set()
    await let_run()
    assert statuses(stopped(outcome)) == ["unknown"]
    assert isinstance(events[-1], RunEnded)
    assert not of_kind(events, ProgressMade)
    assert "abandoned" in caplog.text


async def test_c26_c38_a_stopped_tree_ends_with_one_end_of_one_run():
    tree = Tree()
    events = []
    async with tree.run:
        await tree.inside()
        tree.run.stop()
        await tree.run
        events = [event async for event in tree.run]
    assert kinds(events).count("run_ended") == 1
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "aborted"


async def test_c28_on_now_finished_siblings_keep_their_results_and_only_the_others_run_again():
    """Differs on purpose: with them the whole round runs again."""
    ran: list[str] = []
    holder: list[AgentRun] = []

    @tool
    async def quick() -> str:
        ran.append("quick")
        return "quick"

    @tool(effects="idempotent")
    async def slow() -> str:
        ran.append("slow")
        if len(ran) == 2:
            holder[0].abort("enough")
            await asyncio.Event().wait()
        return "slow"

    agent = Agent(ScriptedModel([Call("quick"), Call("slow")], "done"), tools=[quick, slow])
    holder.append(agent.run("go"))
    partial = stopped(await holder[0])
    assert statuses(partial) == ["completed", "interrupted"]
    resumed = await agent.run(resume=partial)
    assert contents(resumed) == ["quick", "slow"]
    assert ran == ["quick", "slow", "slow"]


async def test_c30_each_level_stops_at_its_own_safe_point_and_what_it_had_is_kept():
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_MODEL, scope="tree")
    partial = stopped(await tree.end())
    mid, low = deep(partial)
    assert tree.asked.count("low") == 2, "low was asked once more, and stopped after that answer"
    assert statuses(low) == ["completed", "not_started"]
    assert statuses(mid) == ["interrupted", "completed"]
    assert tree.asked.count("mid") == 1


@pytest.mark.parametrize("order", list(itertools.permutations(["timing", "scope"])), ids=" then ".join)
async def test_c31_escalation_in_mid_flight_reaches_those_who_wait(order: tuple[str, ...]):
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_MODEL)
    for what in order:
        tree.run.stop(SAFE_POINT if what == "timing" else None, scope="tree" if what == "scope" else None)
    partial = stopped(await tree.end())
    _, low = deep(partial)
    assert statuses(low) == ["completed"], "after the tools: both were joined"
    assert sorted(tree.steps) == sorted(BEGUN)


async def test_c31_now_after_a_stop_that_waits_is_felt_at_once_on_every_level():
    tree = Tree()
    await tree.inside()
    tree.run.stop(AFTER_TOOLS)
    tree.run.stop(NOW)
    outcome = await tree.run
    mid, low = deep(stopped(outcome))
    assert (statuses(mid), statuses(low)) == (["interrupted", "interrupted"], ["interrupted"])
    assert tree.asked == ["root", "mid", "low"]


async def test_c32_a_child_that_had_finished_is_untouched_and_one_that_begins_later_gets_it_at_once():
    ran: list[str] = []

    @tool
    async def act(name: str) -> str:
        ran.append(name)
        return name

    first = Agent(ScriptedModel([Call("act", name="first")], "one"), tools=[act], name="first")
    later = Agent(ScriptedModel([Call("act", name="later")]), tools=[act], name="later")
    model = ScriptedModel([Call("first", prompt="x")], [Call("later", prompt="x")], "never")
    run = Agent(model, tools=[first, later]).run("go")

    def stop(event: Any) -> None:
        if event.kind == "answer_started" and event.step == 2 and event.path == ("agent",):
            run.stop(TURN_END, scope="tree")
            run.stop(AFTER_TOOLS)

    await read(run, stop)
    partial = stopped(await run)
    assert contents(partial)[0] == "one"
    assert ran == ["first", "later"]
    assert statuses(partial) == ["completed", "interrupted"]
    (kept,) = agents_kept(partial)
    assert contents(kept) == ["later"]


async def test_c33_nothing_hangs_on_a_run_when_its_children_have_ended():
    tree = Tree()
    await tree.inside()
    stop = tree.run._ctx.stop
    assert len(stop._children) == 1
    assert isinstance(await tree.end(), Completed)
    assert stop._children == {}


@pytest.mark.parametrize(("at", "expected"), [(SAFE_POINT, "completed"), (NOW, "aborted")])
async def test_c34_a_run_that_user_code_starts_by_itself_ignores_safe_points_and_obeys_now(at: StopAt, expected: str):
    inside, gate = asyncio.Event(), asyncio.Event()
    inner: list[AgentRun] = []

    @tool
    async def waits() -> str:
        inside.set()
        await gate.wait()
        return "waited"

    @tool
    async def delegates() -> str:
        inner.append(Agent(ScriptedModel([Call("waits")], "inner"), tools=[waits]).run("go"))
        return (await inner[0]).status

    run = Agent(ScriptedModel([Call("delegates")], "never"), tools=[delegates]).run("go")
    async with run:
        await inside.wait()
        run.stop(at, scope="tree")
        if at is not NOW:
            gate.set()
        stopped(await run)
    assert (await inner[0]).status == expected


async def test_c36_c37_a_child_that_ignores_everything_is_waited_for_or_abandoned_and_the_stop_is_told(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    let_go, inside = asyncio.Event(), asyncio.Event()

    class Deaf:
        name = "deaf"

        async def __call__(self, ctx: Any, value: str) -> str:
            inside.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    pass
            return "late"

    run = Agent(ScriptedModel([Call("deaf", input="x")]), tools=[tool(Deaf(), abandon_after=2)]).run("go")
    async with run:
        await inside.wait()
        run.stop()
        await clock.elapse(1.9)
        assert not run.finished
        await clock.elapse(0.1)
        outcome = await run
    assert isinstance(outcome, Aborted)
    assert [entry.name for entry in outcome.receipt.still_running] == ["agent/deaf"]
    assert statuses(stopped(outcome)) == ["unknown"]
    let_go.set()
    await let_run()


async def test_c40_c41_a_question_that_waits_when_the_stop_comes_is_asked_again_on_resume():
    asked: list[str] = []

    def react(run: AgentRun, answer: str | None) -> Any:
        def heard(event: Any) -> None:
            if isinstance(event, QuestionAsked):
                asked.append(event.text)
                if answer is None:
                    run.stop(reason="enough")
                else:
                    run.answer(event.question_id, answer)

        return heard

    agent = Agent(ScriptedModel([Call("ask_user", question="Which?")], "thanks"), ask_user=True)
    run = agent.run("go")
    await read(run, react(run, None))
    partial = stopped(await run)
    again = agent.run(resume=partial)
    await read(again, react(again, "that one"))
    assert contents(await again) == ["that one"]
    assert asked == ["Which?", "Which?"]


async def test_c42_whoever_sees_the_end_can_resume():
    """Their order is save, then tell; here everything is in the outcome, which is there when the end is."""
    tree = Tree()
    async with tree.run:
        await tree.inside()
        tree.run.stop()
        async for event in tree.run:
            if isinstance(event, RunEnded):
                outcome = await tree.run
    assert statuses(stopped(outcome)) == ["interrupted", "interrupted"]


async def test_c44_after_now_in_the_middle_of_an_answer_the_model_is_asked_again():
    model = ScriptedModel(["half", Stall()], "whole")
    agent = Agent(model)
    run = agent.run("go")
    await read(run, lambda event: run.stop() if isinstance(event, TextStreamed) else None)
    resumed = await agent.run(resume=stopped(await run))
    assert resumed.unwrap().text == "whole"
    assert model.requests[0].messages == model.requests[1].messages


async def test_c46_a_partial_with_cut_streams_and_children_survives_json():
    tree = Tree()
    await tree.inside()
    tree.run.stop()
    outcome = await tree.run
    back = outcome_from_json(outcome_to_json(outcome, AgentResult), AgentResult)
    assert so_far(back) == so_far(outcome)
    assert [one.status for one in results(back)] == ["interrupted", "interrupted"]
