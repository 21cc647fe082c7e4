"""What a node is given beside the state."""

import asyncio
import pickle
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortError, Completed, Failed
from safepoint.flow import END, Flow, NodeContext
from safepoint.run import StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import FOREVER, NodeRecorder, Trail, again, one


async def test_collected_errors_name_the_operation_and_the_time(clock: FakeClock):
    async def c(state: Trail, ctx: NodeContext[None]) -> None:
        ctx.collect_error("CODE", "told", recoverable=False)

    flow: Flow[Trail, None] = Flow("flow", start="sub")
    flow.subflow("sub", one(c))
    flow.route("sub", END)
    (error,) = (await flow.execute(Trail())).errors
    assert (error.code, error.message, error.operation) == ("CODE", "told", "sub/it")
    assert not error.recoverable
    assert error.timestamp == clock.time()


async def test_collected_errors_survive_a_checkpoint():
    lab = NodeRecorder()

    async def collects(state: Trail, ctx: NodeContext[Any]) -> None:
        ctx.collect_error("CODE", "told")

    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", collects)
    flow.node("b", lab.node("b"))
    flow.route("a", "b")
    flow.route("b", END)
    result = await lab.stop_in("b", flow.start(Trail()))
    resumed = await flow.execute(resume=again(result))
    assert resumed.errors == result.errors
    assert [error.code for error in resumed.errors] == ["CODE"]


async def test_errors_collected_by_an_attempt_that_failed_are_dropped_with_its_state():
    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        ctx.collect_error("CODE", "told")
        raise LookupError("broken")

    result = await one(node).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.errors == ()


async def test_a_safe_point_keeps_what_was_written_and_a_stopped_node_begins_there():
    inside, gate = asyncio.Event(), asyncio.Event()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        while len(state.notes) < 4:
            state.notes.append("page")
            ctx.collect_error("PAGE", str(len(state.notes)))
            await ctx.safe_point()
            if len(state.notes) == 2 and not gate.is_set():
                inside.set()
                await gate.wait()

    flow = one(node)
    async with flow.start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.message == "enough"
    assert (result.state.notes, result.cursor, result.executed) == (["page"] * 3, "it", ())
    assert [error.message for error in result.errors] == ["1", "2", "3"]
    resumed = await flow.execute(resume=again(result))
    assert isinstance(resumed.outcome, Completed)
    assert [error.message for error in resumed.errors] == ["1", "2", "3", "4"]


async def test_what_was_written_after_the_safe_point_is_not_kept():
    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        state.notes.append("kept")
        await ctx.safe_point()
        state.notes.append("lost")
        raise LookupError("broken")

    result = await one(node).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.state.notes == ["kept"]


async def test_a_safe_point_after_an_abort_keeps_nothing():
    controller = AbortController()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        state.notes.append("too late")
        controller.abort("enough")
        with pytest.raises(AbortError):
            await ctx.safe_point()

    result = await one(node).execute(Trail(), signal=controller.signal)
    assert (result.outcome.status, result.state.notes) == ("aborted", [])


async def test_a_safe_point_of_an_abandoned_node_keeps_nothing(clock: FakeClock):
    began, gate = asyncio.Event(), asyncio.Event()
    errors: list[BaseException] = []

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        began.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        state.notes.append("too late")
        try:
            await ctx.safe_point()
        except BaseException as error:
            errors.append(error)

    async with one(node, abandon_after=1.0, warn_after=FOREVER).start(Trail()) as run:
        await began.wait()
        run.abort()
        await clock.elapse(1.0)
        result = await run
    gate.set()
    await drain_ready_tasks()
    assert isinstance(errors[0], AbortError)
    assert (result.state.notes, result.cursor) == ([], "it")


async def test_a_safe_point_lets_the_others_run():
    turns: list[str] = []

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        asyncio.get_running_loop().call_soon(turns.append, "other")
        await ctx.safe_point()
        turns.append("node")

    await one(node).execute(Trail())
    assert turns == ["other", "node"]


async def test_the_context_travels_to_another_process_by_pickle():
    sent: list[NodeContext[Any]] = []

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        carried = pickle.loads(pickle.dumps(ctx))
        sent.append(carried)
        assert (carried.attempt, carried.idempotency_key, carried.services) == (1, ctx.idempotency_key, [1, 2])
        assert carried.path == ctx.path
        carried.collect_error("CODE", "told")
        assert carried._collected[0].operation == "it"

    result = await one(node).execute(Trail(), services=[1, 2])
    assert isinstance(result.outcome, Completed), result.outcome
    assert sent
