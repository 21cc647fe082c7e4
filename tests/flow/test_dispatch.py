"""The walk: look at the signal, run the node, follow its output, again; then the clean-ups, on every path."""

import asyncio
import threading
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortSignal, Completed, Failed, TimedOut
from safepoint.events import Event, NodeEnded
from safepoint.flow import END, End, Flow, FlowResult, NodeContext, StepLimitExceeded
from safepoint.run import Context, LeafTimeout, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import NodeRecorder, Trail, again, one


async def test_nodes_run_in_the_order_of_their_routes():
    result = await NodeRecorder().line("flow", "a", "b", "c").execute(Trail())
    assert isinstance(result.outcome, Completed)
    assert result.outcome.value is result.state
    assert result.state.notes == ["a", "b", "c"]
    assert result.executed == ("a", "b", "c")
    assert result.cursor is None
    assert result.errors == ()


async def test_the_output_chooses_the_route():
    flow: Flow[Trail, None] = Flow("flow", start="scout")

    @flow.node(outputs=("found", "empty"))
    async def scout(state: Trail) -> str:
        return "found" if state.found else "empty"

    async def rank(state: Trail) -> None:
        state.notes.append("ranked")

    flow.node("rank", rank)
    flow.route("scout", found="rank", empty=END)
    flow.route("rank", END)
    assert (await flow.execute(Trail())).executed == ("scout",)
    assert (await flow.execute(Trail(found=["x"]))).executed == ("scout", "rank")


async def test_a_cycle_ends_where_its_node_says_so():
    async def count(state: Trail) -> str:
        state.notes.append("x")
        return "again" if len(state.notes) < 5 else "done"

    flow: Flow[Trail, None] = Flow("flow", start="count")
    flow.node("count", count, outputs=("again", "done"))
    flow.route("count", END, again="count")
    assert (await flow.execute(Trail())).executed == ("count",) * 5


async def test_a_cycle_that_does_not_end_is_bounded():
    async def forever(state: Trail) -> None:
        state.notes.append("x")

    flow: Flow[Trail, None] = Flow("flow", start="forever", max_steps=7)
    flow.node("forever", forever)
    flow.route("forever", "forever")
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, StepLimitExceeded)
    assert "flow 'flow' took 7 steps and is at 'forever'" in str(result.outcome.error)
    assert "max_steps=7" in str(result.outcome.error)
    assert len(result.state.notes) == 7
    assert result.cursor == "forever"


async def test_a_resumed_cycle_does_not_count_from_the_beginning():
    lab = NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="a", max_steps=3)
    flow.node("a", lab.node("a"))
    flow.node("b", lab.node("b"))
    flow.route("a", "b")
    flow.route("b", "a")
    result = await lab.stop_in("b", flow.start(Trail()))
    result = await flow.execute(resume=again(result))
    assert isinstance(result.outcome, Failed)
    assert result.state.notes == ["a", "b", "a"]


async def test_a_failure_without_a_route_fails_the_flow_and_names_the_node():
    lab = NodeRecorder()
    lab.broken.add("b")
    result = await lab.line("flow", "a", "b", "c").execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, LookupError)
    assert result.outcome.error.__notes__ == ["in node 'b' of flow 'flow'"]
    assert (result.cursor, result.executed, result.state.notes) == ("b", ("a",), ["a"])
    assert result.outcome.partial == Trail(["a"])
    lab.broken.clear()
    assert (await lab.line("flow", "a", "b", "c").execute(resume=again(result))).state.notes == ["a", "b", "c"]


async def test_a_failure_with_a_route_takes_it_and_is_recorded(clock: FakeClock):
    lab = NodeRecorder()
    lab.broken.add("a")
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", lab.node("a"))
    flow.node("salvage", lab.node("salvage"))
    flow.route("a", END, failed="salvage")
    flow.route("salvage", END)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Completed)
    assert result.executed == ("a", "salvage")
    assert result.state.notes == ["salvage"]
    (error,) = result.errors
    assert (error.code, error.message, error.operation) == ("LookupError", "a is broken", "a")
    assert error.timestamp == clock.time()


async def test_what_a_failed_node_wrote_is_not_kept():
    async def node(state: Trail) -> None:
        state.notes.append("half")
        raise LookupError("broken")

    flow: Flow[Trail, None] = Flow("flow", start="it")
    flow.node("it", node)
    flow.route("it", END, failed=End("broken"))
    result = await flow.execute(Trail())
    assert result.state.notes == []


async def test_a_timeout_takes_its_own_route_before_that_of_failures(clock: FakeClock):
    lab = NodeRecorder()
    lab.stuck.add("a")
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", lab.node("a"), timeout=2.0)
    for name in ("late", "broken"):
        flow.node(name, lab.node(name))
        flow.route(name, END)
    flow.route("a", END, timeout="late", failed="broken")
    async with flow.start(Trail()) as run:
        await lab.reached.wait()
        clock.advance(2.0)
        result = await run
    assert result.executed == ("a", "late")
    assert result.errors[0].code == "LeafTimeout"


async def test_a_timeout_without_its_own_route_is_a_failure(clock: FakeClock):
    lab = NodeRecorder()
    lab.stuck.add("a")
    flow = lab.line("flow", "x", "a")
    limited = one(lab.node("a"), timeout=2.0)
    async with limited.start(Trail()) as run:
        await lab.reached.wait()
        clock.advance(2.0)
        result = await run
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, LeafTimeout)
    assert "flow/it took longer than its limit of 2 s" in str(result.outcome.error)
    assert not flow.graph().cleanups


async def test_a_timeout_inside_a_composite_is_a_failure_of_the_composite(clock: FakeClock):
    lab = NodeRecorder()
    lab.stuck.add("c")
    child = one(lab.node("c"), timeout=2.0)
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", child)
    flow.route("sub", END, failed=End("broken"))
    async with flow.start(Trail()) as run:
        await lab.reached.wait()
        clock.advance(2.0)
        result = await run
    assert isinstance(result.outcome, Completed)
    assert [error.operation for error in result.errors] == ["sub/it"]


async def test_an_aborted_signal_lets_nothing_run():
    lab = NodeRecorder()
    flow = lab.line("flow", "a")
    result = await flow.execute(Trail(), signal=AbortSignal.already("no"))
    assert isinstance(result.outcome, Aborted)
    assert (lab.ran, result.cursor, result.executed) == ([], "a", ())
    assert result.outcome.receipt.resume == "a"


async def test_an_abort_during_a_node_keeps_the_cursor_there():
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b", "c")
    result = await lab.stop_in("b", flow.start(Trail()))
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.executed, result.state) == ("b", ("a",), Trail(["a"]))
    assert result.outcome.receipt.resume == "b"
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.notes == ["a", "b", "c"]
    assert resumed.executed == ("a", "b", "c")
    assert lab.ran == ["a", "b", "b", "c"]


async def test_any_error_while_the_signal_is_aborted_is_the_abort():
    controller = AbortController()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        controller.abort("enough")
        raise LookupError("because of the abort")

    result = await one(node).execute(Trail(), signal=controller.signal)
    assert isinstance(result.outcome, Aborted)
    assert result.cursor == "it"


async def test_events_tell_of_each_node_and_where_it_leads():
    lab = NodeRecorder()
    run = lab.line("flow", "a", "b").start(Trail())
    events: list[Event] = [event async for event in run]
    ended = [event for event in events if isinstance(event, NodeEnded)]
    assert [(event.path, event.output, event.target) for event in ended] == [
        (("flow", "a"), "done", "b"),
        (("flow", "b"), "done", None),
    ]
    assert [event.kind for event in events] == [
        "run_started",
        *["leaf_started", "leaf_ended", "node_ended"] * 2,
        "run_ended",
    ]


def tidied(flow: Flow[Any, Any], into: list[str], name: str = "tidy") -> None:
    async def tidy(state: Trail) -> None:
        into.append(f"{name} after {state.notes}")

    flow.cleanup(tidy)


@pytest.mark.parametrize("how", ["completed", "failed", "aborted", "timed_out", "stopped"])
async def test_clean_ups_run_on_every_path(how: str, clock: FakeClock):
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    cleaned: list[str] = []
    tidied(flow, cleaned, "first")
    tidied(flow, cleaned, "second")
    if how == "failed":
        lab.broken.add("b")
    if how in ("aborted", "timed_out", "stopped"):
        lab.stuck.add("b")
    async with flow.start(Trail(), timeout=5.0) as run:
        if lab.stuck:
            await lab.reached.wait()
            if how == "timed_out":
                clock.advance(5.0)
            elif how == "aborted":
                run.abort()
            else:
                run.stop(StopAt.SAFE_POINT, within=1.0)
                clock.advance(1.0)
        result = await run
    assert result.outcome.status == ("aborted" if how == "stopped" else how)
    notes = ["a", "b"] if how == "completed" else ["a"]
    assert cleaned == [f"first after {notes}", f"second after {notes}"]


async def test_clean_ups_run_when_nobody_reads_the_events_any_more():
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    cleaned: list[str] = []
    tidied(flow, cleaned)
    lab.stuck.add("b")
    run = flow.start(Trail())
    async for event in run:
        if isinstance(event, NodeEnded):
            break
    result = await run
    assert result.outcome.status == "aborted"
    assert cleaned == ["tidy after ['a']"]
    await drain_ready_tasks()


async def test_clean_ups_of_a_child_run_when_the_child_is_left():
    lab = NodeRecorder()
    child = lab.line("child", "c")
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", child)
    flow.node("after", lab.node("after"))
    flow.route("sub", "after")
    flow.route("after", END)
    cleaned: list[str] = []
    tidied(child, cleaned, "child")
    tidied(flow, cleaned, "parent")
    await flow.execute(Trail())
    assert cleaned == ["child after ['c']", "parent after ['c', 'after']"]
    cleaned.clear()
    await lab.stop_in("c", flow.start(Trail()))
    assert cleaned == ["child after []", "parent after []"]


async def test_what_a_clean_up_writes_is_not_kept():
    lab = NodeRecorder()
    flow = lab.line("flow", "a")

    @flow.cleanup
    async def scribble(state: Trail) -> None:
        state.notes.append("scribble")

    result = await flow.execute(Trail())
    assert result.state.notes == ["a"]


async def test_a_clean_up_is_deaf_to_the_stop_it_cleans_up_after(clock: FakeClock):
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    heard: list[bool] = []

    @flow.cleanup
    async def tidy(state: Trail, ctx: NodeContext[Any]) -> None:
        heard.append(ctx.signal.aborted)
        await ctx.safe_point()
        await ctx.signal.sleep(1.0)
        heard.append(ctx.signal.aborted)

    lab.stuck.add("b")
    async with flow.start(Trail()) as run:
        await lab.reached.wait()
        run.stop(StopAt.SAFE_POINT, scope="tree")
        run.abort()
        await clock.elapse(1.0)
        result = await run
    assert heard == [False, False]
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.receipt.warnings == ()


async def test_a_synchronous_clean_up_runs_in_a_thread():
    flow = NodeRecorder().line("flow", "a")
    threads: list[int] = []

    @flow.cleanup
    def tidy(state: Trail) -> None:
        threads.append(threading.get_ident())

    await flow.execute(Trail())
    assert threads
    assert threads[0] != threading.get_ident()


def test_a_clean_up_has_a_positive_time():
    with pytest.raises(Exception, match="within"):
        NodeRecorder().line("flow", "a").cleanup(within=-1.0)


async def test_a_node_that_ends_by_somebody_elses_cancellation_has_failed():
    """A task that it awaited was cancelled: that is the node's own affair, not an end of the flow's task."""

    async def node(state: Trail) -> None:
        other = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        await asyncio.sleep(0)
        other.cancel()
        await other

    flow: Flow[Trail, None] = Flow("flow", start="it")
    flow.node("it", node)
    flow.route("it", END, failed=End("broken"))
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Completed)
    assert [error.operation for error in result.errors] == ["it"]


def status(result: FlowResult[Any]) -> str:
    return result.outcome.status


async def test_a_deadline_ends_a_node_and_gives_timed_out(clock: FakeClock):
    lab = NodeRecorder()
    lab.stuck.add("b")
    async with lab.line("flow", "a", "b").start(Trail(), timeout=5.0) as run:
        await lab.reached.wait()
        clock.advance(5.0)
        result = await run
    assert isinstance(result.outcome, TimedOut)
    assert (result.cursor, result.outcome.reason.kind) == ("b", "deadline")
    assert "5" in result.outcome.reason.message


async def test_a_walk_that_is_thrown_away_is_closed_without_a_word():
    """Nothing can be awaited in a coroutine that is being closed, not even a clean-up."""
    lab = NodeRecorder()
    lab.stuck.add("a")
    flow = lab.line("flow", "a")
    cleaned: list[str] = []
    tidied(flow, cleaned)
    walk = flow(Context("outer"), Trail())
    walk.send(None)
    walk.close()
    assert lab.ran == ["a"]


async def test_clean_ups_of_two_branches_have_keys_of_their_own():
    lab = NodeRecorder()
    keys: list[str] = []

    async def tidy(state: Trail, ctx: NodeContext[Any]) -> None:
        keys.append(ctx.idempotency_key)

    branches = {name: lab.line(name, f"{name}1") for name in ("left", "right")}
    for branch in branches.values():
        branch.cleanup(tidy)
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", branches, join=lambda *_: None)
    flow.route("both", END)
    flow.cleanup(tidy)
    await flow.execute(Trail())
    assert len(set(keys)) == len(keys) == 3


async def test_a_clean_up_that_ends_by_somebody_elses_cancellation_is_a_warning():
    flow = NodeRecorder().line("flow", "a")

    @flow.cleanup
    async def odd(state: Trail) -> None:
        other = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        await asyncio.sleep(0)
        other.cancel()
        await other

    async with flow.start(Trail()) as run:
        result = await run
        receipt = await run.stop().settled()
    assert isinstance(result.outcome, Completed)
    assert "the clean-up odd raised NodeDisrupted" in receipt.warnings[0]
