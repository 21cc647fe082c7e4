"""What went wrong in other flow engines, and must not here. The numbers are those of our catalogue of cases."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortReason, Completed, Failed, Retry, TimedOut
from safepoint.errors import UsageError
from safepoint.flow import END, Checkpoint, End, Flow, NodeContext
from safepoint.run import Context
from safepoint.run import settle as settle_run
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.flow import process_nodes
from tests.kit.flows import FOREVER, NodeRecorder, Trail, again, one
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def with_child(lab: NodeRecorder, child: Flow[Any, Any], **options: Any) -> Flow[Trail, Any]:
    """sub → n, and an error branch."""
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", child, **options)
    flow.node("n", lab.node("n"))
    flow.node("salvage", lab.node("salvage"))
    flow.route("sub", "n", failed="salvage")
    flow.route("n", END)
    flow.route("salvage", END)
    return flow


async def test_a_stop_inside_a_subflow_keeps_the_cursor_inside():
    """Case 1: it moved the cursor past the sub-flow, whose other nodes never ran."""
    lab = NodeRecorder()
    mapped: list[str] = []

    def out(state: Trail, child: Trail) -> None:
        mapped.append("out")
        state.notes = child.notes

    flow = with_child(lab, lab.line("child", "c1", "c2", "c3"), out=out)
    whole = await flow.execute(Trail())
    mapped.clear()
    lab.ran.clear()
    result = await lab.stop_in("c2", flow.start(Trail()))
    assert result.cursor == "sub/c2"
    assert "sub" not in result.executed
    assert mapped == []
    resumed = await flow.execute(resume=again(result))
    assert resumed.state == whole.state
    assert lab.ran == ["c1", "c2", "c2", "c3", "n"]
    assert mapped == ["out"]


async def test_an_exception_inside_a_subflow_is_never_a_success():
    """Case 2: it was routed "success", and nothing was recorded."""
    lab = NodeRecorder()
    lab.broken.add("c2")
    result = await with_child(lab, lab.line("child", "c1", "c2")).execute(Trail())
    assert lab.ran == ["c1", "c2", "salvage"]
    assert [error.operation for error in result.errors] == ["sub/c2"]
    unrouted: Flow[Trail, Any] = Flow("flow", start="sub")
    unrouted.subflow("sub", lab.line("child", "c1", "c2"))
    unrouted.route("sub", END)
    result = await unrouted.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.cursor == "sub/c2"


async def test_a_stop_inside_an_isolated_body_does_not_land_on_the_error_branch(tmp_path: Path):
    """Case 3: the host answered "failed", and the run ended on the error branch with a false record."""
    lab = NodeRecorder()
    path = tmp_path / "pid"
    flow = with_child(lab, one(process_nodes.waits, isolation="process", grace=0.2))
    async with flow.start(Trail(found=[str(path)])) as run:
        await asyncio.to_thread(wait_until, path.exists)
        run.abort("enough")
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.errors, lab.ran) == ("sub/it", (), [])


async def test_only_items_that_reached_their_end_are_acknowledged():
    """Case 4: an item with a flow body was acknowledged although it was interrupted."""
    lab = NodeRecorder()

    async def first(item: str, ctx: NodeContext[Any]) -> None:
        await lab.visit(f"{item}.1", ctx)

    async def second(item: str, ctx: NodeContext[Any]) -> None:
        await lab.visit(f"{item}.2", ctx)

    body: Flow[str, Any] = Flow("body", start="first")
    body.node("first", first)
    body.node("second", second)
    body.route("first", "second")
    body.route("second", END)
    flow: Flow[Trail, Any] = Flow("flow", start="each", state=Trail)
    flow.scatter(
        "each",
        items=lambda state: ["1", "2", "3", "4"],
        body=body,
        concurrency=1,
        gather=lambda state, results: state.found.extend(results),
    )
    flow.route("each", END)
    result = await lab.stop_in("2.1", flow.start(Trail()))
    inside = again(result).place["inside"]
    assert (inside["watermark"], inside["ahead"]) == (1, [])
    lab.ran.clear()
    resumed = await flow.execute(resume=again(result))
    assert lab.ran == ["2.1", "2.2", "3.1", "3.2", "4.1", "4.2"]
    assert resumed.state.found == ["1", "2", "3", "4"]


async def test_no_attempt_ever_follows_a_stop_and_one_policy_serves_many(clock: FakeClock):
    """Case 5: zombie attempts after the stop; the policy kept signal and attempt in its own fields."""
    retry = Retry(attempts=4, delay=0.1, factor=1.0, jitter=0)
    attempts: dict[int, int] = {}

    def flow_of(number: int) -> Flow[Trail, Any]:
        async def node(state: Trail, ctx: NodeContext[Any]) -> None:
            attempts[number] = ctx.attempt
            if ctx.attempt < 4:
                raise OSError("down")

        return one(node, retry=retry)

    controller = AbortController()
    async with asyncio.TaskGroup() as group:
        stopped = group.create_task(flow_of(0).execute(Trail(), signal=controller.signal))
        others = [group.create_task(flow_of(number).execute(Trail())) for number in range(1, 50)]
        await clock.elapse(0.04)
        controller.abort("enough")
        await drain_ready_tasks()
        assert stopped.done()
        await clock.elapse(0.8)
    assert attempts.pop(0) == 1
    assert set(attempts.values()) == {4}
    assert all(isinstance(task.result().outcome, Completed) for task in others)
    assert clock.pending == 0


async def test_a_stop_with_many_items_in_flight_loses_none():
    """Case 6: the work set was written only at the boundary, and the resumed run processed one bogus item."""
    lab = NodeRecorder()
    items = ["1", "2", "3", "4"]
    flow: Flow[Trail, Any] = Flow("flow", start="each", state=Trail)
    flow.scatter(
        "each", items=lambda state: items, body=lab.item, gather=lambda state, results: state.found.extend(results)
    )
    flow.route("each", END)
    lab.stuck |= set(items)
    async with flow.start(Trail()) as run:
        await drain_ready_tasks()
        assert lab.ran == items
        run.abort("enough")
        result = await run
    lab.ran.clear()
    resumed = await flow.execute(resume=again(result))
    assert lab.ran == items
    assert resumed.state.found == items


async def test_a_stop_while_a_process_is_being_started_is_not_lost(tmp_path: Path):
    """Case 7: an abort during the initialisation of the channel was never sent, and the work ran to its end."""
    path = tmp_path / "pid"
    flow = one(process_nodes.waits, isolation="process", grace=0.2)
    async with flow.start(Trail(found=[str(path)])) as run:
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the child is on its way, and has not begun
        assert not path.exists()
        run.abort("enough")
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.cursor == "it"
    assert not result.outcome.receipt.still_running


async def test_a_node_that_ignores_the_stop_is_waited_for_or_left_behind_by_declared_policy(clock: FakeClock):
    """Case 8: one version waited without bound, another left the node running with the shared state."""
    began, gate = threading.Event(), threading.Event()
    written: list[Trail] = []

    def node(state: Trail, ctx: NodeContext[Any]) -> None:
        began.set()
        gate.wait(30)
        state.notes.append("late")
        written.append(state)

    async with one(node, on_abort="cooperate", abandon_after=1.0).start(Trail()) as run:
        assert await asyncio.to_thread(began.wait, 5)
        run.abort("enough")
        await clock.elapse(0.9)
        assert not run.finished
        await clock.elapse(0.1)
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert [entry.name for entry in result.outcome.receipt.still_running] == ["flow/it"]
    checkpoint = Checkpoint.from_result(result).to_json()
    gate.set()
    await asyncio.to_thread(wait_until, lambda: bool(written))
    await drain_ready_tasks()
    assert result.state == Trail()
    assert Checkpoint.from_result(result).to_json() == checkpoint
    gate.clear()
    began.clear()
    async with one(node, on_abort="cooperate").start(Trail()) as run:
        assert await asyncio.to_thread(began.wait, 5)
        run.abort("enough")
        await clock.elapse(100)
        assert not run.finished  # by default it is waited for
        gate.set()
        assert (await run).state == Trail()


async def test_a_node_that_swallows_the_stop_leaves_no_false_failure():
    """Case 9: it recorded an error, returned "empty", and the cursor was past it."""
    began = asyncio.Event()

    async def node(state: Trail, ctx: NodeContext[Any]) -> str:
        try:
            began.set()
            await ctx.signal.sleep(FOREVER)
        except BaseException:
            ctx.collect_error("NO_ANSWER", "the server is down")
            state.notes.append("nothing found")
        return "empty"

    flow: Flow[Trail, Any] = Flow("flow", start="it")
    flow.node("it", node, outputs=("found", "empty"))
    flow.node("n", node, outputs=("found", "empty"))
    flow.route("it", found=END, empty="n")
    flow.route("n", found=END, empty=END)
    async with flow.start(Trail()) as run:
        await began.wait()
        run.abort("enough")
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.errors, result.state) == ("it", (), Trail())


async def test_the_end_of_a_nodes_time_can_be_routed_and_touches_no_other_node(clock: FakeClock):
    """Case 10: the node's budget failed the run and bypassed its own salvage."""
    lab = NodeRecorder()
    lab.stuck.add("slow")
    flow: Flow[Trail, Any] = Flow("flow", start="both")
    slow: Flow[Trail, Any] = Flow("slow", start="slow")
    slow.node("slow", lab.node("slow"), timeout=2.0)
    slow.node("salvage", lab.node("salvage"))
    slow.route("slow", END, timeout="salvage")
    slow.route("salvage", END)
    seen: list[bool] = []

    async def other(state: Trail, ctx: NodeContext[Any]) -> None:
        await ctx.signal.sleep(3.0)
        seen.append(ctx.signal.aborted)
        state.found.append("other")

    flow.parallel("both", {"slow": slow, "other": other})
    flow.route("both", END)
    async with flow.start(Trail()) as run:
        await clock.elapse(3.0)
        result = await run
    assert isinstance(result.outcome, Completed)
    assert result.state == Trail(["salvage"], ["other"])
    assert seen == [False]
    assert [error.operation for error in result.errors] == ["both/slow/slow"]


@pytest.mark.parametrize("reason", [TimeoutError("mine"), AbortReason("user", "TimeoutError")])
async def test_only_the_runs_own_deadline_is_a_timeout(reason: Any):
    """Case 11: a caller's signal that was aborted with a TimeoutError counted as timed out."""
    lab = NodeRecorder()
    lab.stuck.add("a")
    controller = AbortController()
    async with lab.line("flow", "a").start(Trail(), signal=controller.signal, timeout=FOREVER) as run:
        await lab.reached.wait()
        controller.abort(reason)
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.kind in ("error", "user")
    if isinstance(reason, Exception):
        assert result.outcome.reason.cause is reason
    assert result.outcome.receipt.reason is not None
    assert result.outcome.receipt.from_json(result.outcome.receipt.to_json()).reason is not None


async def test_a_clean_up_that_never_ends_does_not_keep_the_result(clock: FakeClock):
    """Case 12: a post phase that never ended hung the cancelled run for ever."""
    lab = NodeRecorder()
    flow = lab.line("flow", "a")

    @flow.cleanup(within=3.0)
    async def hangs(state: Trail) -> None:
        await asyncio.get_running_loop().create_future()

    lab.stuck.add("a")
    async with flow.start(Trail()) as run:
        await lab.reached.wait()
        run.abort("enough")
        await clock.elapse(4.0)
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.receipt.warnings == ("the clean-up hangs took too long",)


async def test_a_resumed_run_remembers_what_ran_and_a_checkpoint_why_it_stopped():
    """Case 13: executed lists were not merged, errors and the reason were not persisted."""
    lab = NodeRecorder()

    async def collects(state: Trail, ctx: NodeContext[Any]) -> None:
        ctx.collect_error("CODE", "told")

    flow: Flow[Trail, Any] = Flow("flow", start="first")
    flow.node("first", collects)
    flow.node("b", lab.node("b"))
    flow.route("first", "b")
    flow.route("b", END)
    result = await lab.stop_in("b", flow.start(Trail()), "visitor closed page")
    checkpoint = again(result)
    assert (checkpoint.status, checkpoint.executed) == ("aborted", ("first",))
    assert "visitor closed page" in str(checkpoint.reason)
    resumed = await flow.execute(resume=checkpoint)
    assert resumed.executed == ("first", "b")
    assert [error.code for error in resumed.errors] == ["CODE"]


async def test_leaving_the_events_ends_the_run_and_cleans_up():
    """Case 14: breaking out left a run that was neither stopped nor finished, without post phases."""
    lab = NodeRecorder()
    lab.stuck.add("b")
    flow = lab.line("flow", "a", "b")
    cleaned: list[str] = []

    @flow.cleanup
    async def tidy(state: Trail) -> None:
        cleaned.append("tidy")

    run = flow.start(Trail())
    async for event in run:
        if event.kind == "node_ended":
            break
    result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.kind == "disconnected"
    assert (result.cursor, cleaned) == ("b", ["tidy"])
    await drain_ready_tasks()


async def test_a_wrong_call_is_refused_first_and_an_observer_changes_no_outcome():
    """Case 15: "never throws" threw: for a used state, and for a throwing observer."""
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    result = await flow.execute(Trail())
    assert isinstance((await flow.execute(result.state)).outcome, Completed)  # a state that has run may run again
    with pytest.raises(UsageError):
        await flow.execute(None)
    run = flow.start(Trail())
    with pytest.raises(LookupError, match="the observer"):
        async with run:
            async for _ in run:
                raise LookupError("the observer")
    assert run.finished
    assert (await run).outcome.status in ("completed", "aborted")

    def observer(event: object) -> None:
        raise LookupError("the observer")

    outcome = await settle_run(Context("run", emit=observer), flow, Trail())
    assert isinstance(outcome, Completed)


async def test_branches_have_states_of_their_own_and_none_is_left_when_one_fails():
    """Case 16: a parallel group shared one mutable state and orphaned its siblings on the first failure."""
    lab = NodeRecorder()
    seen: dict[str, list[str]] = {}
    ended: list[str] = []
    meet = asyncio.Barrier(2)

    async def breaks(state: Trail) -> None:
        state.notes.append("breaks")
        await meet.wait()
        seen["breaks"] = list(state.notes)
        raise LookupError("broken")

    async def waits(state: Trail) -> None:
        state.notes.append("waits")
        await meet.wait()
        seen["waits"] = list(state.notes)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("waits")
            raise OSError("while it was being stopped")

    flow: Flow[Trail, Any] = Flow("flow", start="both")
    flow.parallel("both", {"breaks": breaks, "waits": waits})
    flow.route("both", END, failed=End("broken"))
    result = await flow.execute(Trail())
    assert seen == {"breaks": ["breaks"], "waits": ["waits"]}
    assert ended == ["waits"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert result.state == Trail()
    assert "2 parts of 'both' failed" in result.errors[0].message
    assert lab.ran == []


async def test_an_effect_that_is_recorded_as_done_is_not_repeated():
    """Case 18: the interrupted node ran again without a key by which its effect could be recognised."""
    sent: dict[str, int] = {}
    inside = asyncio.Event()

    async def pay(state: Trail, ctx: NodeContext[Any]) -> None:
        sent.setdefault(ctx.idempotency_key, 0)
        if not sent[ctx.idempotency_key]:
            sent[ctx.idempotency_key] += 1
            inside.set()
            await ctx.signal.sleep(FOREVER)
        state.notes.append("paid")

    flow = one(pay)
    async with flow.start(Trail()) as run:
        await inside.wait()
        run.abort("enough")
        result = await run
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.notes == ["paid"]
    assert list(sent.values()) == [1]


@pytest.mark.parametrize("order", [("stop", "run"), ("run", "stop")])
@pytest.mark.parametrize("given", ["stop+deadline+timeout", "deadline+timeout", "timeout"])
async def test_of_causes_in_the_same_instant_exactly_one_counts_and_always_the_same(
    given: str, order: tuple[str, str], clock: FakeClock
):
    """The same instant: the person comes before the deadline, the deadline before the node's own time."""
    lab = NodeRecorder()
    lab.stuck.add("it")
    controller = AbortController()
    flow = one(lab.node("it"), timeout=5.0)

    def stop() -> None:
        clock.call_at(clock.monotonic() + 5.0, lambda: controller.abort("enough"))

    if order[0] == "stop" and "stop" in given:
        stop()
    deadline = 5.0 if "deadline" in given else None
    async with flow.start(Trail(), signal=controller.signal, timeout=deadline) as run:
        await lab.reached.wait()
        if order[0] == "run" and "stop" in given:
            stop()
        clock.advance(5.0)
        result = await run
    match given:
        case "stop+deadline+timeout":
            assert isinstance(result.outcome, Aborted)
            assert result.outcome.reason.message == "enough"
        case "deadline+timeout":
            assert isinstance(result.outcome, TimedOut)
            assert result.outcome.reason.kind == "deadline"
        case _:
            assert isinstance(result.outcome, Failed)
    assert result.cursor == "it"


@pytest.mark.parametrize("when", ["before", "after", "twice"])
async def test_a_stop_before_the_start_after_the_end_or_twice_is_answered(when: str):
    lab = NodeRecorder()
    flow = lab.line("flow", "a")
    run = flow.start(Trail())
    if when != "after":
        assert run.abort("first").status == "accepted"
    if when == "twice":
        assert run.abort("second").status == "already_stopping"
    result = await run
    assert run.abort().status == "already_finished"
    if when == "after":
        assert isinstance(result.outcome, Completed)
    else:
        assert isinstance(result.outcome, Aborted)
        assert result.outcome.reason.message == "first"
        assert lab.ran == []
