"""Nodes that contain flows: what is finished inside is not repeated, what is not is not lost."""

import asyncio
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed, Failed
from safepoint.flow import END, End, Flow, JoinConflict, NodeContext
from safepoint.run import StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import FOREVER, NodeRecorder, Trail, again, one

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def around(child: Flow[Any, Any], lab: NodeRecorder, **options: Any) -> Flow[Trail, Any]:
    """before → sub → after."""
    flow: Flow[Trail, Any] = Flow("flow", start="before")
    flow.node("before", lab.node("before"))
    flow.subflow("sub", child, **options)
    flow.node("after", lab.node("after"))
    flow.route("before", "sub")
    flow.route("sub", "after")
    flow.route("after", END)
    return flow


def both(lab: NodeRecorder, **options: Any) -> Flow[Trail, Any]:
    """A parallel of a flow `left` (l1, l2) and a flow `right` (r1, r2), which share no field."""
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    left, right = lab.line("left", "l1", "l2"), lab.line("right", "r1", "r2")

    def join(state: Trail, branches: dict[str, Trail]) -> None:
        for name in sorted(branches):
            state.notes += branches[name].notes

    flow.parallel("both", {"left": left, "right": right}, **{"join": join, **options})
    flow.route("both", END)
    return flow


async def test_a_subflow_works_on_the_state_and_its_nodes_are_listed_before_it():
    lab = NodeRecorder()
    result = await around(lab.line("child", "c1", "c2"), lab).execute(Trail())
    assert result.state.notes == ["before", "c1", "c2", "after"]
    assert result.executed == ("before", "sub/c1", "sub/c2", "sub", "after")


async def test_into_makes_the_childs_state_and_out_brings_back_what_it_found():
    async def look(state: dict[str, Any]) -> None:
        state["found"] = state["topic"].upper()

    child: Flow[dict[str, Any], Any] = one(look)
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow(
        "sub",
        child,
        into=lambda state: {"topic": state.notes[0]},
        out=lambda state, found: state.found.append(found["found"]),
    )
    flow.route("sub", END)
    result = await flow.execute(Trail(["owls"]))
    assert result.state == Trail(["owls"], ["OWLS"])


async def test_with_into_alone_the_childs_state_is_dropped():
    lab = NodeRecorder()
    flow = around(lab.line("child", "c"), lab, into=lambda state: Trail())
    assert (await flow.execute(Trail())).state.notes == ["before", "after"]


async def test_with_out_alone_the_child_works_on_a_copy():
    lab = NodeRecorder()

    def out(state: Trail, child: Trail) -> None:
        state.found = child.notes

    flow = around(lab.line("child", "c"), lab, out=out)
    assert (await flow.execute(Trail())).state == Trail(["before", "after"], ["before", "c"])


@pytest.mark.parametrize("end", ["found", "done"])
async def test_the_childs_end_is_the_route(end: str):
    async def c(state: Trail) -> str:
        return end

    child: Flow[Trail, Any] = Flow("child", start="c")
    child.node("c", c, outputs=("found", "done"))
    child.route("c", END, found=End("found"))
    lab = NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", child)
    for name in ("found", "done"):
        flow.node(name, lab.node(name))
        flow.route(name, END)
    flow.route("sub", "done", found="found")
    assert (await flow.execute(Trail())).executed == ("sub/c", "sub", end)


@pytest.mark.parametrize("name", ["into", "out"])
async def test_an_error_in_a_callback_of_a_subflow_fails_the_node_and_a_resume_calls_it_again(name: str):
    lab = NodeRecorder()
    errors = [LookupError("mine")]

    def callback(state: Any, child: Any = None) -> Any:
        state.notes.append("scribbled by the callback")
        if child is not None:
            child.notes.append("scribbled")
        if errors:
            raise errors.pop()
        return Trail()

    flow = around(lab.line("child", "c"), lab, **{name: callback})
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert str(result.outcome.error) == "mine"
    assert result.state.notes == ["before"]
    assert result.cursor == "sub"
    ran = list(lab.ran)
    resumed = await flow.execute(resume=again(result))
    assert isinstance(resumed.outcome, Completed)
    assert lab.ran == [*ran, *(["c"] if name == "into" else []), "after"]
    if name == "out":
        assert resumed.state.notes == ["before", "scribbled by the callback", "after"]


async def test_a_failure_inside_takes_the_composites_route_with_the_childs_path():
    lab = NodeRecorder()
    lab.broken.add("c2")
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", lab.line("child", "c1", "c2"))
    flow.node("salvage", lab.node("salvage"))
    flow.route("sub", END, failed="salvage")
    flow.route("salvage", END)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Completed)
    assert [error.operation for error in result.errors] == ["sub/c2"]
    assert result.state.notes == ["salvage"]  # what the child had written stays with the child


async def test_a_subflow_three_levels_deep_is_resumed_where_it_was():
    lab = NodeRecorder()
    flow = around(around(around(lab.line("child", "c1", "c2"), lab), lab), lab)
    whole = await flow.execute(Trail())
    lab.ran.clear()
    result = await lab.stop_in("c2", flow.start(Trail()))
    assert result.cursor == "sub/sub/sub/c2"
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.receipt.resume == result.cursor
    resumed = await flow.execute(resume=again(result))
    assert resumed.state == whole.state
    assert resumed.executed == whole.executed
    assert lab.ran.count("c2") == 2
    assert lab.ran.count("before") == 3


async def test_a_subflow_that_is_visited_twice_has_other_keys_the_second_time():
    lab = NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    inner: Flow[Trail, Any] = Flow("inner", start="each")
    inner.scatter("each", items=lambda state: ["i"], body=lab.item)
    inner.parallel("p", {"b": lab.node("b")})
    inner.route("each", "p")
    inner.route("p", END)
    flow.subflow("sub", inner)

    async def check(state: Trail) -> str:
        state.found.append("round")
        return "again" if len(state.found) < 2 else "done"

    flow.node("check", check, outputs=("again", "done"))
    flow.route("sub", "check")
    flow.route("check", END, again="sub")
    await flow.execute(Trail())
    for name in ("i", "b"):
        first, second = lab.keys[name]
        assert first != second
    lab.keys.clear()
    result = await lab.stop_in("b", flow.start(Trail()))
    await flow.execute(resume=again(result))
    assert len(lab.keys["b"]) == 3
    assert len(set(lab.keys["b"])) == 2  # interrupted and repeated; then the second visit


async def test_branches_run_at_once_each_on_its_own_copy():
    meet = asyncio.Barrier(2)
    seen: dict[str, list[str]] = {}

    def branch(name: str, field: str) -> Any:
        async def run(state: Trail) -> None:
            getattr(state, field).append(name)
            await meet.wait()
            seen[name] = [*state.notes, *state.found]

        return run

    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"a": branch("a", "notes"), "b": branch("b", "found")})
    flow.route("both", END)
    result = await flow.execute(Trail())
    assert seen == {"a": ["a"], "b": ["b"]}
    assert result.state == Trail(["a"], ["b"])
    assert sorted(result.executed[:2]) == ["both/a", "both/b"]
    assert result.executed[2:] == ("both",)


async def test_branches_that_change_the_same_field_need_a_join():
    lab = NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"a": lab.node("a"), "b": lab.node("b")})
    flow.route("both", END)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, JoinConflict)
    assert "'a' and 'b' both changed 'notes'" in str(result.outcome.error)
    assert result.cursor == "both"


async def test_an_error_in_the_join_fails_the_node_and_a_resume_only_joins_again():
    lab = NodeRecorder()
    errors = [LookupError("mine")]

    def join(state: Trail, branches: dict[str, Trail]) -> None:
        for name in sorted(branches):
            branches[name].notes.append("joined")
            state.notes += branches[name].notes
        if errors:
            raise errors.pop()

    flow = both(lab, join=join)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert (result.cursor, result.state) == ("both", Trail())
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.notes == ["l1", "l2", "joined", "r1", "r2", "joined"]
    assert sorted(lab.ran) == ["l1", "l2", "r1", "r2"]


async def test_an_abort_inside_branches_keeps_what_each_has_done():
    lab = NodeRecorder()
    lab.stuck |= {"l2", "r1"}
    flow = both(lab)
    async with flow.start(Trail()) as run:
        await drain_ready_tasks()
        run.abort("enough")
        result = await run
    assert (result.cursor, result.executed, result.state) == ("both/left/l2", ("both/left/l1",), Trail())
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.notes == ["l1", "l2", "r1", "r2"]
    assert sorted(lab.ran) == ["l1", "l2", "l2", "r1", "r1", "r2"]


async def test_an_abort_when_all_branches_are_done_loses_no_branch():
    controller = AbortController()
    lab = NodeRecorder()

    async def last(state: Trail, ctx: NodeContext[Any]) -> None:
        state.found.append("last")
        controller.abort("enough")

    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"a": lab.node("a"), "b": one(last, final=True)})
    flow.route("both", END)
    result = await flow.execute(Trail(), signal=controller.signal)
    assert (result.outcome.status, result.cursor, result.state) == ("aborted", "both", Trail())
    resumed = await flow.execute(resume=again(result))
    assert resumed.state == Trail(["a"], ["last"])
    assert lab.ran == ["a"]


async def test_one_failing_branch_interrupts_the_others_and_their_work_is_kept_for_a_resume():
    lab = NodeRecorder()
    lab.stuck.add("r2")
    lab.after["l2"] = lab.reached
    lab.broken.add("l2")
    flow = both(lab)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, LookupError)
    assert result.outcome.error.__notes__ == ["in node 'both/left/l2' of flow 'flow'"]
    assert result.cursor == "both/left/l2"
    assert [(entry.name, entry.fate) for entry in result.outcome.receipt.entries if entry.fate != "finished"] == [
        ("flow/both/right/r2", "stopped")
    ]
    lab.broken.clear()
    lab.ran.clear()
    assert (await flow.execute(resume=again(result))).state.notes == ["l1", "l2", "r1", "r2"]
    assert sorted(lab.ran) == ["l2", "r2"]


async def test_branches_that_fail_together_are_all_told():
    meet = asyncio.Barrier(2)

    def branch(error: Exception) -> Any:
        async def run(state: Trail) -> None:
            await meet.wait()
            raise error

        return run

    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"a": branch(LookupError("a")), "b": branch(OSError("b"))})
    flow.route("both", END)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, ExceptionGroup)
    assert sorted(str(error) for error in result.outcome.error.exceptions) == ["a", "b"]
    assert "2 parts of 'both' failed" in str(result.outcome.error)


async def test_with_collect_the_others_end_and_what_there_is_is_joined():
    lab = NodeRecorder()
    lab.broken.add("l1")
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    branches = {"left": lab.line("left", "l1"), "right": lab.line("right", "r1", "r2")}
    flow.parallel("both", branches, on_failure="collect")
    flow.route("both", END, failed=End("partly"))
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Completed)
    assert result.state.notes == ["r1", "r2"]
    assert [error.operation for error in result.errors] == ["both/left/l1"]


async def test_with_collect_and_no_route_the_flow_fails_and_a_resume_repeats_only_the_failed_branch():
    lab = NodeRecorder()
    lab.broken.add("l1")
    flow = both(lab, on_failure="collect")
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert (result.cursor, result.state) == ("both/left/l1", Trail())
    lab.broken.clear()
    lab.ran.clear()
    assert (await flow.execute(resume=again(result))).state.notes == ["l1", "l2", "r1", "r2"]
    assert lab.ran == ["l1", "l2"]


async def test_a_failure_beside_a_stop_does_not_lose_the_branch_that_was_stopped():
    """With "collect", a branch that a stop interrupted has not failed: it is not left behind by the failed route."""
    lab = NodeRecorder()
    lab.broken.add("l1")
    inside, gate = asyncio.Event(), asyncio.Event()

    async def hold(state: Trail, ctx: NodeContext[Any]) -> None:
        inside.set()
        await gate.wait()

    right: Flow[Trail, Any] = Flow("right", start="hold")
    right.node("hold", hold)
    right.node("r2", lab.node("r2"))
    right.route("hold", "r2")
    right.route("r2", END)
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"left": lab.line("left", "l1"), "right": right}, on_failure="collect")
    flow.route("both", END, failed=End("partly"))
    async with flow.start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    lab.broken.clear()
    resumed = await flow.execute(resume=again(result))
    assert resumed.outcome.status == "completed" or isinstance(resumed.outcome, Failed)
    assert "r2" in lab.ran


async def test_a_stop_at_a_safe_point_is_honoured_inside_composites_at_each_parts_own_boundary():
    lab = NodeRecorder()
    inside, gate = asyncio.Event(), asyncio.Event()

    async def hold(state: Trail, ctx: NodeContext[Any]) -> None:
        await lab.visit("hold", ctx)
        inside.set()
        await gate.wait()
        state.notes.append("hold")

    child: Flow[Trail, Any] = Flow("child", start="hold")
    child.node("hold", hold)
    child.node("c2", lab.node("c2"))
    child.route("hold", "c2")
    child.route("c2", END)
    flow = around(child, lab)
    async with flow.start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert (result.outcome.status, result.cursor) == ("aborted", "sub/c2")
    assert result.executed == ("before", "sub/hold")
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.notes == ["before", "hold", "c2", "after"]
    assert lab.ran == ["before", "hold", "c2", "after"]


async def test_a_node_in_a_branch_that_ends_by_somebody_elses_cancellation_is_not_lost():
    """A task group takes a cancelled task for one that is done: the flow must not."""
    lab = NodeRecorder()

    async def odd(state: Trail) -> None:
        other = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        await asyncio.sleep(0)
        other.cancel()
        await other

    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"odd": odd, "even": lab.node("even")})
    flow.route("both", END)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.cursor == "both/odd"


async def test_composites_leave_nothing_with_the_signal_around_them(clock: FakeClock):
    lab = NodeRecorder()
    controller = AbortController()
    seen: list[int] = []

    async def count(state: Trail, ctx: NodeContext[Any]) -> str:
        state.found.append("round")
        seen.append(controller.signal.observers)
        return "again" if len(state.found) < 30 else "done"

    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"a": lab.node("a")})
    flow.node("count", count, outputs=("again", "done"))
    flow.route("both", "count")
    flow.route("count", END, again="both")
    await flow.execute(Trail(), signal=controller.signal)
    assert len(set(seen)) == 1
    assert controller.signal.observers == 0
    assert clock.pending == 0


async def test_cancelling_whoever_awaits_a_parallel_leaves_no_task_behind():
    lab = NodeRecorder()
    lab.stuck |= {"l1", "r1"}
    flow = both(lab)
    waiting = asyncio.ensure_future(flow.execute(Trail()))
    await drain_ready_tasks()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert lab.ran == ["l1", "r1"]


async def test_a_hanging_branch_is_left_behind_at_the_ceiling(clock: FakeClock):
    gate = asyncio.Event()

    async def stubborn(state: Trail) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        state.notes.append("too late")

    lab = NodeRecorder()
    lab.stuck.add("even")
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"odd": stubborn, "even": lab.node("even")})
    flow.route("both", END)
    async with flow.start(Trail(), timeout=5.0, abandon_after=1.0) as run:
        await lab.reached.wait()
        await clock.elapse(6.0)
        result = await run
    assert result.outcome.status == "timed_out"
    assert [entry.name for entry in result.outcome.receipt.still_running] == ["flow/both/odd"]
    assert FOREVER > 6.0
    gate.set()
    await drain_ready_tasks()
    assert result.state == Trail()
