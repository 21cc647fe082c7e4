"""Writing a flow down, and setting it going."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortError, AbortSignal, Completed, Failed
from safepoint.errors import UsageError
from safepoint.flow import END, Checkpoint, CheckpointMismatch, End, Flow, FlowError, NodeContext
from safepoint.run import Context, MemoryCheckpoints, Outcome, StopAt, StopRequest
from safepoint.run import settle as settle_run
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import NodeRecorder, Trail, again, one


async def nothing(state: Trail) -> None: ...


async def test_a_node_is_added_in_three_ways():
    flow: Flow[Trail, None] = Flow("flow", start="bare")

    @flow.node
    async def bare(state: Trail) -> None:
        state.notes.append("bare")

    @flow.node(outputs=("done", "other"))
    async def with_options(state: Trail, ctx: NodeContext[None]) -> str:
        state.notes.append("options")
        return "other"

    async def given(state: Trail) -> None:
        state.notes.append("given")

    assert flow.node("named", given) is given
    flow.route("bare", "with_options")
    flow.route("with_options", "named", other="named")
    flow.route("named", END)
    assert (await flow.execute(Trail())).state.notes == ["bare", "options", "given"]
    assert bare.__name__ == "bare"


def test_two_nodes_of_one_name_are_refused():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", nothing)
    with pytest.raises(FlowError, match="flow 'flow' has a node 'a' already: give one of them another name"):
        flow.subflow("a", NodeRecorder().line("child", "c"))


def test_a_second_route_for_an_output_is_refused():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.route("a", "b")
    with pytest.raises(FlowError, match="node 'a': output 'done' has a route already, to 'b'"):
        flow.route("a", done=END)


def test_a_route_leads_to_a_name_or_an_end():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    with pytest.raises(FlowError, match="node 'a': output 'done' must lead to a node's name or an End, not 5"):
        flow.route("a", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_flows_name_can_be_part_of_a_path(name: str):
    with pytest.raises(FlowError, match="a flow's name must be a text without '/'"):
        Flow(name, start="a")


def test_max_steps_is_at_least_one():
    with pytest.raises(UsageError, match="max_steps must be 1 or more, not 0"):
        Flow("flow", start="a", max_steps=0)


def test_a_parallel_node_needs_branches_and_a_scatter_room():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    with pytest.raises(FlowError, match="node 'both': a parallel node needs at least one branch"):
        flow.parallel("both", {})
    with pytest.raises(FlowError, match="node 'each': concurrency must be 1 or more, not 0"):
        flow.scatter("each", items="found", body=nothing, concurrency=0)
    with pytest.raises(FlowError, match="a branch's name must be a text without '/'"):
        flow.parallel("both", {"a/b": nothing})


def test_a_scatter_whose_body_is_a_flow_takes_no_options_of_a_node():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    with pytest.raises(FlowError, match="node 'each': its body is a flow: give retry and policies to the nodes"):
        flow.scatter("each", items="found", body=NodeRecorder().line("child", "c"), timeout=3.0)


@pytest.mark.parametrize("name", ["into", "out", "join", "gather", "items"])
def test_functions_that_are_not_awaited_may_not_be_async(name: str):
    async def wrong(*args: object) -> None: ...

    flow: Flow[Trail, Any] = Flow("flow", start="a")
    child = NodeRecorder().line("child", "c")
    with pytest.raises(FlowError, match=f"node 'x': {name}= is called, not awaited: give a plain function"):
        match name:
            case "into" | "out":
                flow.subflow("x", child, **{name: wrong})  # type: ignore[arg-type]
            case "join":
                flow.parallel("x", {"a": nothing}, join=wrong)
            case _:
                flow.scatter("x", body=nothing, **{"items": "found", name: wrong})  # type: ignore[arg-type]


def test_an_async_generator_is_a_source_of_items():
    async def source(state: Trail) -> Any:
        yield 1

    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.scatter("x", items=source, body=nothing)


def test_a_wrong_flow_is_refused_before_anything_runs():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", nothing)
    for wrong in (lambda: flow.start(Trail()), flow.to_mermaid):
        with pytest.raises(FlowError, match="node 'a': output 'done' has no route"):
            wrong()


async def test_a_flow_that_was_changed_is_checked_again():
    flow = one(nothing)
    await flow.execute(Trail())
    flow.node("late", nothing)
    with pytest.raises(FlowError, match="'late'"):
        await flow.execute(Trail())


async def test_a_child_that_was_changed_is_checked_again():
    lab = NodeRecorder()
    child = lab.line("child", "c")
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", child)
    flow.route("sub", END)
    before = flow.graph().fingerprint
    child.node("late", nothing, outputs=("x",))
    child.route("c", failed="late")
    child.route("late", x=End("other"))
    with pytest.raises(FlowError, match="node 'sub': output 'other' has no route"):
        await flow.execute(Trail())
    flow.route("sub", other=END)
    assert flow.graph().fingerprint != before


async def test_a_wrong_call_is_refused_before_anything_runs():
    flow = one(nothing)
    with pytest.raises(UsageError, match="give a state, or resume="):
        await flow.execute()
    result = await flow.execute(Trail(), signal=AbortSignal.already("no"))
    with pytest.raises(UsageError, match="give a state, or resume="):
        await flow.execute(Trail(), resume=again(result))
    with pytest.raises(UsageError, match="checkpoints= and checkpoint_id= belong together"):
        await flow.execute(Trail(), checkpoints=MemoryCheckpoints())
    with pytest.raises(UsageError, match="checkpoints= and checkpoint_id= belong together"):
        await flow.execute(Trail(), checkpoint_id="x")
    for name in ("abandon_after", "timeout"):
        with pytest.raises(UsageError, match=name):
            await flow.execute(Trail(), **{name: -1})  # type: ignore[arg-type]


async def test_an_option_that_does_not_exist_is_refused_by_name():
    wrong: dict[str, Any] = {"timeot": 5.0}
    with pytest.raises(UsageError, match=r"there is no option 'timeot': the options are .*timeout"):
        await one(nothing).execute(Trail(), **wrong)
    with pytest.raises(UsageError, match="there is no option 'timeot'"):
        one(nothing).start(Trail(), **wrong)


async def test_the_callers_state_is_not_touched():
    async def node(state: Trail) -> None:
        state.notes.append("it")

    mine = Trail()
    result = await one(node).execute(mine)
    assert mine == Trail()
    assert result.state == Trail(["it"])
    assert result.state is not mine


async def test_a_state_that_cannot_be_copied_is_refused_before_anything_runs():
    ran: list[object] = []

    async def node(state: dict[str, Any]) -> None:
        ran.append(state)

    with pytest.raises(UsageError, match="cannot be copied"):
        await one(node).execute({"gate": (number for number in range(3))})
    assert ran == []


async def test_services_are_shared_not_copied():
    @dataclass
    class Services:
        seen: list[str]

    async def node(state: Trail, ctx: NodeContext[Services]) -> None:
        ctx.services.seen.append("node")

    services = Services([])
    await one(node).execute(Trail(), services=services)
    assert services.seen == ["node"]


async def test_the_origin_of_a_deadline_is_the_callers_line():
    result = await one(nothing).execute(Trail(), timeout=0.0)
    assert result.outcome.status == "timed_out"
    origin = result.outcome.reason.origin
    assert origin is not None
    assert origin.split(":")[0].endswith("test_flow.py")


async def test_the_state_type_is_found_where_it_is_written():
    async def untyped(state, ctx) -> None: ...
    async def anything(state: Any) -> None: ...
    async def typed(state: Trail) -> None: ...

    assert one(typed).graph().state_type is Trail
    assert one(untyped).graph().state_type is None
    assert one(untyped, state=Trail).graph().state_type is Trail
    generic = Flow[Trail, None]("flow", start="it")
    generic.node("it", untyped)
    generic.route("it", END)
    assert generic.graph().state_type is Trail
    mixed: Flow[Any, Any] = Flow("flow", start="a")
    mixed.node("a", anything)
    mixed.node("b", typed)
    mixed.route("a", "b")
    mixed.route("b", END)
    assert mixed.graph().state_type is Trail


async def test_a_flow_without_an_end_runs_until_it_is_stopped(clock: FakeClock):
    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        await ctx.signal.sleep(1)

    flow: Flow[Trail, None] = Flow("flow", start="it")
    flow.node("it", node)
    flow.route("it", "it")
    async with flow.start(Trail(), timeout=10.5) as run:
        await clock.elapse(20)
        result = await run
    assert result.outcome.status == "timed_out"
    assert result.executed == ("it",) * 10
    assert result.cursor == "it"


async def as_work(flow: Flow[Any, Any], ctx: Context, state: Any) -> Outcome[Any]:
    return await settle_run(ctx, flow, state)


async def test_a_flow_is_work_under_the_signal_of_another_context():
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    ctx = Context("outer")
    outcome = await as_work(flow, ctx, Trail())
    assert isinstance(outcome, Completed)
    assert outcome.value.notes == ["a", "b"]
    controller = AbortController()
    ctx = Context("outer", signal=controller.signal)
    lab.stuck.add("b")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(as_work(flow, ctx, Trail()))
        await lab.reached.wait()
        controller.abort("enough")
    outcome = task.result()
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "enough"
    assert [(entry.name, entry.fate) for entry in outcome.receipt.entries] == [
        ("outer/a", "finished"),
        ("outer/b", "stopped"),
    ]
    assert outcome.receipt.resume == "b"
    assert isinstance(outcome.partial, Checkpoint)
    lab.ran.clear()
    resumed = await as_work(flow, Context("outer"), outcome.partial)
    assert isinstance(resumed, Completed)
    assert resumed.value.notes == ["a", "b"]
    assert lab.ran == ["b"]


async def test_a_flow_inside_a_leaf_is_a_run_inside_the_run():
    lab = NodeRecorder()
    inner = lab.line("inner", "i1", "i2")

    async def call(state: Trail, ctx: NodeContext[Any]) -> None:
        state.notes += (await inner(ctx, Trail())).notes

    flow = one(call)
    result = await lab.stop_in("i2", flow.start(Trail()))
    assert isinstance(result.outcome, Aborted)
    assert [entry.name for entry in result.outcome.receipt.entries] == [
        "flow/it/inner/i1",
        "flow/it/inner/i2",
        "flow/it",
    ]
    assert (result.cursor, result.outcome.receipt.resume) == ("it", "it")  # it is repeated as a whole
    assert (await flow.execute(resume=again(result))).state.notes == ["i1", "i2"]


async def test_a_checkpoint_of_another_flow_leaves_nothing_with_the_work_around_it():
    lab = NodeRecorder()
    result = await lab.stop_in("a", lab.line("other", "a").start(Trail()))
    ctx = Context("outer").child("leaf")
    with pytest.raises(CheckpointMismatch):
        await lab.line("flow", "a")(ctx, again(result))
    assert not ctx.stop._children


async def test_the_failure_of_a_flow_as_work_is_what_the_node_raised():
    lab = NodeRecorder()
    lab.broken.add("b")
    outcome = await as_work(lab.line("flow", "a", "b"), Context("outer"), Trail())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LookupError)
    assert outcome.error.__notes__ == ["in node 'b' of flow 'flow'"]


@pytest.mark.parametrize(("scope", "ran"), [("root", ["a", "b"]), ("tree", ["a"])])
async def test_a_stop_at_a_safe_point_reaches_a_flow_inside_only_with_tree_scope(scope: Any, ran: list[str]):
    lab = NodeRecorder()
    inner = lab.line("inner", "a", "b")
    gate = asyncio.Event()
    inside = asyncio.Event()

    async def hold(state: Trail, ctx: NodeContext[Any]) -> None:
        inside.set()
        await gate.wait()

    inner = Flow[Trail, Any]("inner", start="hold")
    inner.node("hold", hold)
    inner.node("a", lab.node("a"))
    inner.route("hold", "a")
    inner.route("a", END)

    async def call(state: Trail, ctx: NodeContext[Any]) -> None:
        state.notes += (await inner(ctx, state)).notes

    outer: Flow[Trail, Any] = Flow("outer", start="call")
    outer.node("call", call)
    outer.node("b", lab.node("b"))
    outer.route("call", "b")
    outer.route("b", END)
    async with outer.start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, scope=scope, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.message == "enough"
    assert lab.ran == ["a"] * (scope == "root")
    assert result.cursor == ("b" if scope == "root" else "call")
    assert result.executed == (("call",) if scope == "root" else ())


async def test_a_stop_that_comes_first_lets_a_flow_inside_run_nothing():
    lab = NodeRecorder()
    ctx = Context("outer", controller=AbortController())
    ctx.stop.join(StopRequest(StopAt.SAFE_POINT, "tree"))
    with pytest.raises(AbortError):
        await lab.line("flow", "a")(ctx, Trail())
    assert lab.ran == []


async def test_a_flow_as_work_leaves_nothing_with_the_work_around_it(clock: FakeClock):
    lab = NodeRecorder()
    controller = AbortController()
    ctx = Context("outer", controller=controller)
    for _ in range(50):
        await lab.line("flow", "a")(ctx, Trail())
    assert controller.signal.observers == 0
    ctx.stop.join(StopRequest(StopAt.SAFE_POINT, "tree"))
    assert not ctx.stop._children


async def test_two_calls_of_a_flow_have_different_keys_and_a_repeated_node_the_same():
    lab = NodeRecorder()
    inner = lab.line("inner", "i")
    attempts = iter([OSError("down"), None])

    async def call(state: Trail, ctx: NodeContext[Any]) -> None:
        await inner(ctx, state)
        await inner(ctx, state)
        if error := next(attempts):
            raise error

    flow = one(call)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    await flow.execute(resume=again(result))
    first, second, first_again, second_again = lab.keys["i"]
    assert first != second
    assert (first_again, second_again) == (first, second)
    ctx = Context("outer")
    await inner(ctx, Trail())
    await inner(ctx, Trail())
    assert len(set(lab.keys["i"])) == 4


async def test_a_cancelled_caller_of_a_flow_as_work_gets_its_cancellation():
    lab = NodeRecorder()
    lab.stuck.add("b")
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    cleaned: list[str] = []
    flow.parallel("both", {"left": lab.line("left", "a", "b"), "right": lab.line("right", "r")}, join=lambda *_: None)
    flow.route("both", END)

    @flow.cleanup
    async def tidy(state: Trail) -> None:
        cleaned.append("tidy")

    task = asyncio.ensure_future(flow(Context("outer"), Trail()))
    await lab.reached.wait()
    await drain_ready_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["tidy"]


async def test_execute_gives_what_start_gives():
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    executed = await flow.execute(Trail())
    started = await flow.start(Trail())
    assert executed.state == started.state
    assert executed.executed == started.executed == ("a", "b")


def test_a_flow_may_be_looked_at_from_many_threads_at_once() -> None:
    child: Flow[int, None] = Flow("child", start="a")
    child.node("a", lambda state: None)
    child.route("a", END)
    parent: Flow[int, None] = Flow("parent", start="inside")
    parent.subflow("inside", child)
    parent.route("inside", END)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            graphs = list(threads.map(lambda _: parent.graph(), range(400)))
    finally:
        sys.setswitchinterval(before)
    assert {graph.name for graph in graphs} == {"parent"}
