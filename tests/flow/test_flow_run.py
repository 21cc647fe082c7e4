"""One execution of a flow: stopped at safe points, saved before anyone is told."""

import asyncio
import json
from typing import Any

import pytest

from safepoint import Aborted, Completed, Failed
from safepoint.flow import END, Checkpoint, End, Flow, NodeContext
from safepoint.run import CheckpointError, MemoryCheckpoints, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import NodeRecorder, Trail, again


class Gate:
    """A node that waits until it is let through."""

    def __init__(self) -> None:
        self.inside, self.open = asyncio.Event(), asyncio.Event()

    async def node(self, state: Trail, ctx: NodeContext[Any]) -> None:
        self.inside.set()
        await self.open.wait()
        state.notes.append("gate")


def gated(gate: Gate, lab: NodeRecorder) -> Flow[Trail, Any]:
    """gate → after."""
    flow: Flow[Trail, Any] = Flow("flow", start="gate")
    flow.node("gate", gate.node)
    flow.node("after", lab.node("after"))
    flow.route("gate", "after")
    flow.route("after", END)
    return flow


async def test_a_stop_at_a_safe_point_lets_the_node_end_and_the_cursor_is_the_next():
    gate, lab = Gate(), NodeRecorder()
    flow = gated(gate, lab)
    async with flow.start(Trail()) as run:
        await gate.inside.wait()
        assert run.cursor == "gate"
        ack = run.stop(StopAt.SAFE_POINT, reason="enough")
        await drain_ready_tasks()
        assert not run.finished
        gate.open.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.message == "enough"
    assert (result.cursor, result.executed, result.state.notes) == ("after", ("gate",), ["gate"])
    receipt = await ack.settled()
    assert receipt.resume == "after"
    assert not receipt.escalated
    assert [(entry.name, entry.fate) for entry in receipt.entries] == [("flow/gate", "finished")]
    assert (await flow.execute(resume=again(result))).state.notes == ["gate", "after"]
    assert lab.ran == ["after"]


async def test_a_stop_during_the_last_node_comes_too_late():
    gate, lab = Gate(), NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="gate")
    flow.node("gate", gate.node)
    flow.route("gate", END)
    async with flow.start(Trail()) as run:
        await gate.inside.wait()
        ack = run.stop(StopAt.SAFE_POINT)
        gate.open.set()
        result = await run
    assert isinstance(result.outcome, Completed)
    assert result.cursor is None
    assert (await ack.settled()).resume is None
    assert lab.ran == []


async def test_a_stop_at_a_safe_point_before_the_start_runs_nothing():
    lab = NodeRecorder()
    run = lab.line("flow", "a").start(Trail())
    run.stop(StopAt.SAFE_POINT, reason="enough")
    result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.outcome.reason.message, result.cursor, lab.ran) == ("enough", "a", [])


async def test_a_stop_that_waits_too_long_becomes_an_abort(clock: FakeClock):
    gate, lab = Gate(), NodeRecorder()
    async with gated(gate, lab).start(Trail()) as run:
        await gate.inside.wait()
        run.stop(StopAt.SAFE_POINT, within=2.0, reason="enough")
        clock.advance(2.0)
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.outcome.receipt.escalated) == ("gate", True)


async def test_the_receipt_and_the_result_agree_where_to_go_on():
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    result = await lab.stop_in("b", flow.start(Trail()))
    resumed = flow.start(resume=again(result))
    resumed.abort("not yet")
    result = await resumed
    assert isinstance(result.outcome, Aborted)
    assert result.cursor == result.outcome.receipt.resume == "b"


async def test_a_checkpoint_is_written_before_the_first_node_after_every_node_and_at_the_end():
    store = MemoryCheckpoints()
    cursors: list[str | None] = []

    async def look(state: Trail, ctx: NodeContext[Any]) -> None:
        saved = await Checkpoint.recall(store, "run")
        assert saved is not None
        cursors.append(saved.cursor)
        assert saved.status == "running"
        assert saved.place["state"]["notes"] == ["x"] * len(saved.executed)
        state.notes.append("x")

    flow: Flow[Trail, Any] = Flow("flow", start="a")
    for name, target in (("a", "b"), ("b", "c")):
        flow.node(name, look)
        flow.route(name, target)
    flow.node("c", look)
    flow.route("c", END)
    result = await flow.execute(Trail(), checkpoints=store, checkpoint_id="run")
    assert isinstance(result.outcome, Completed)
    assert cursors == ["a", "b", "c"]
    saved = await Checkpoint.recall(store, "run")
    assert saved is not None
    assert (saved.status, saved.cursor, saved.executed) == ("completed", None, ("a", "b", "c"))


async def test_a_safe_point_inside_a_node_is_written_too():
    store = MemoryCheckpoints()
    seen: list[Any] = []

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        state.notes.append("half")
        await ctx.safe_point()
        seen.append(json.loads(await store.load("run") or "")["place"]["state"]["notes"])

    flow: Flow[Trail, Any] = Flow("flow", start="it")
    flow.node("it", node)
    flow.route("it", END)
    await flow.execute(Trail(), checkpoints=store, checkpoint_id="run")
    assert seen == [["half"]]


async def test_a_stopped_run_is_saved_before_its_result_is_known():
    lab, store = NodeRecorder(), MemoryCheckpoints()
    result = await lab.stop_in("b", lab.line("flow", "a", "b").start(Trail(), checkpoints=store, checkpoint_id="run"))
    saved = await Checkpoint.recall(store, "run")
    assert saved == Checkpoint.from_result(result)
    assert saved is not None
    assert saved.status == "aborted"


class Failing(MemoryCheckpoints):
    """A store that fails or hangs at what is saved after the first node has begun, or when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.hanging = False
        self.saved: list[str] = []

    async def save(self, key: str, text: str) -> None:
        if self.hanging and self.saved:
            await asyncio.get_running_loop().create_future()
        if self.broken and self.saved:
            raise CheckpointError("the disk is full")
        self.saved.append(json.loads(text)["cursor"])
        await super().save(key, text)


@pytest.mark.parametrize("where", ["top", "subflow", "parallel", "scatter"])
async def test_a_store_that_fails_fails_the_flow_by_no_route_and_a_resume_goes_on(where: str, clock: FakeClock):
    lab, store = NodeRecorder(), Failing()
    store.broken = True
    flow: Flow[Trail, Any] = Flow("flow", start="it")
    child = lab.line("child", "c1", "c2")
    match where:
        case "top":
            flow.node("it", lab.node("it"))
        case "subflow":
            flow.subflow("it", child)
        case "parallel":
            flow.parallel("it", {"a": child, "b": lab.line("b", "b1")}, join=lambda *_: None)
        case _:
            flow.scatter("it", items=lambda state: ["i1", "i2"], body=lab.item, concurrency=1)
    flow.node("after", lab.node("after"))
    flow.node("salvage", lab.node("salvage"))
    flow.route("it", "after", failed="salvage")
    flow.route("after", END)
    flow.route("salvage", END)
    result = await flow.execute(Trail(), checkpoints=store, checkpoint_id="run")
    assert isinstance(result.outcome, Failed)
    told = result.outcome.error
    errors = told.exceptions if isinstance(told, ExceptionGroup) else (told,)
    assert {str(error) for error in errors} == {"the disk is full"}
    assert "salvage" not in lab.ran
    assert [error.code for error in result.errors] == ["checkpoint_failed"]
    assert result.cursor is not None
    ran = list(lab.ran)
    store.broken = False
    resumed = await flow.execute(resume=again(result), checkpoints=store, checkpoint_id="run")
    assert isinstance(resumed.outcome, Completed), resumed.outcome
    assert len(lab.ran) == len(set(lab.ran)), lab.ran  # nothing that had ended was repeated
    assert lab.ran[: len(ran)] == ran


async def test_a_store_that_fails_at_the_end_does_not_change_how_the_flow_ended():
    class Keeping(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            if json.loads(text)["status"] == "completed":
                raise CheckpointError("the disk is full")

    run = NodeRecorder().line("flow", "a").start(Trail(), checkpoints=Keeping(), checkpoint_id="run")
    kinds = [event.kind async for event in run]
    result = await run
    assert isinstance(result.outcome, Completed)
    (error,) = result.errors
    assert error.code == "checkpoint_failed"
    assert "checkpoint 'run' could not be written: CheckpointError: the disk is full" in error.message
    assert kinds[-1] == "run_ended"


async def test_a_run_that_crashed_after_its_last_node_completes_at_once_when_resumed():
    lab = NodeRecorder()
    flow = lab.line("flow", "a", end=End("found"))

    class Dying(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            if json.loads(text)["status"] != "completed":
                await super().save(key, text)

    store = Dying()
    await flow.execute(Trail(), checkpoints=store, checkpoint_id="run")
    resumed = await flow.execute(resume=await Checkpoint.recall(store, "run"))
    assert isinstance(resumed.outcome, Completed)
    assert (resumed.state.notes, resumed.executed, lab.ran) == (["a"], ("a",), ["a"])


async def test_items_of_a_scatter_are_saved_on_the_way(clock: FakeClock):
    store, lab = Failing(), NodeRecorder()

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        await ctx.signal.sleep(1.0)
        return await lab.item(item, ctx)

    flow: Flow[Trail, Any] = Flow("flow", start="each", state=Trail)
    flow.scatter("each", items=lambda state: ["i0", "i1", "i2"], body=body, concurrency=1)
    flow.route("each", END)
    async with flow.start(Trail(), checkpoints=store, checkpoint_id="run") as run:
        await clock.elapse(10)
        result = await run
    assert isinstance(result.outcome, Completed)
    assert store.saved == ["each", "each", "each", "each", None, None]
