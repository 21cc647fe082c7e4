"""One node that is a function: its attempts, its copy of the state, and whether to believe it."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed, Failed, Retry
from safepoint.errors import UsageError
from safepoint.events import RetryScheduled
from safepoint.flow import END, Flow, NodeContext, UnknownOutput
from safepoint.run import LeafExit, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.flow import process_nodes
from tests.kit.flows import FOREVER, NodeRecorder, Trail, again, one
from tests.kit.programs import alive
from tests.kit.waiting import wait_until


async def test_none_is_the_only_output_and_no_output_of_several():
    async def quiet(state: Trail) -> None: ...

    flow: Flow[Trail, None] = Flow("flow", start="it")
    flow.node("it", quiet, outputs=("ok",))
    flow.route("it", ok=END)
    assert isinstance((await flow.execute(Trail())).outcome, Completed)
    result = await one(quiet, outputs=("found", "empty")).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, UnknownOutput)


async def test_an_output_that_is_not_declared_fails_with_those_that_are():
    async def wrong(state: Trail) -> str:
        return "fuond"

    result = await one(wrong, outputs=("found", "empty")).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert "node 'it' returned 'fuond'; its outputs are 'found', 'empty'" in str(result.outcome.error)
    assert result.cursor == "it"


async def test_each_attempt_has_a_fresh_copy_a_number_and_the_same_key(clock: FakeClock):
    seen: list[tuple[int, list[str], str]] = []

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        seen.append((ctx.attempt, list(state.notes), ctx.idempotency_key))
        state.notes.append(f"attempt {ctx.attempt}")
        if ctx.attempt < 3:
            raise OSError("down")

    flow = one(node, retry=Retry(attempts=3, delay=1.0, jitter=0))
    run = flow.start(Trail())
    async with run:
        await clock.elapse(10)
        events = [event async for event in run]
        result = await run
    assert result.state.notes == ["attempt 3"]
    assert [attempt for attempt, _, _ in seen] == [1, 2, 3]
    assert [notes for _, notes, _ in seen] == [[], [], []]
    assert len({key for _, _, key in seen}) == 1
    assert [event.attempt for event in events if isinstance(event, RetryScheduled)] == [2, 3]


async def test_the_last_error_comes_out_when_all_attempts_are_used_up(clock: FakeClock):
    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        raise OSError(f"attempt {ctx.attempt}")

    async with one(node, retry=Retry(attempts=2, delay=1.0)).start(Trail()) as run:
        await clock.elapse(10)
        result = await run
    assert isinstance(result.outcome, Failed)
    assert str(result.outcome.error) == "attempt 2"


async def test_a_timeout_is_per_attempt_and_may_be_tried_again(clock: FakeClock):
    attempts: list[int] = []

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        attempts.append(ctx.attempt)
        await ctx.signal.sleep(FOREVER if ctx.attempt < 3 else 1.0)

    async with one(node, timeout=2.0, retry=Retry(attempts=3, delay=1.0, jitter=0)).start(Trail()) as run:
        await clock.elapse(20)
        result = await run
    assert isinstance(result.outcome, Completed)
    assert attempts == [1, 2, 3]


async def test_the_key_is_the_same_after_a_resume_and_another_for_every_visit():
    lab = NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="a")

    async def a(state: Trail, ctx: NodeContext[Any]) -> str:
        await lab.visit("a", ctx)
        state.notes.append("a")
        return "again" if len(state.notes) < 2 else "done"

    flow.node("a", a, outputs=("again", "done"))
    flow.route("a", END, again="a")
    result = await lab.stop_in("a", flow.start(Trail()))
    await flow.execute(resume=again(result))
    interrupted, repeated, second_visit = lab.keys["a"]
    assert interrupted == repeated
    assert second_visit != repeated
    await flow.execute(Trail())
    assert len(set(lab.keys["a"])) == 4  # another run has keys of its own


async def test_what_a_node_reports_after_the_abort_is_not_believed():
    controller = AbortController()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        state.notes.append("half")
        ctx.collect_error("BEFORE", "collected before the abort")
        controller.abort("enough")
        ctx.collect_error("AFTER", "collected after the abort")

    result = await one(node).execute(Trail(), signal=controller.signal)
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.state, result.errors) == ("it", Trail(), ())


@pytest.mark.parametrize("options", [{"final": True}, {"on_abort": "finish"}])
async def test_a_node_whose_result_is_final_is_believed_after_the_abort(options: Any):
    controller = AbortController()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        controller.abort("enough")
        ctx.collect_error("AFTER", "not believed all the same")
        state.notes.append("whole")

    flow: Flow[Trail, None] = Flow("flow", start="it")
    flow.node("it", node, **options)
    flow.node("next", node)
    flow.route("it", "next")
    flow.route("next", END)
    result = await flow.execute(Trail(), signal=controller.signal)
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.executed, result.state.notes) == ("next", ("it",), ["whole"])
    assert result.errors == ()


async def test_a_final_node_that_is_the_last_one_completes_nothing_but_itself():
    controller = AbortController()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        controller.abort("enough")

    result = await one(node, final=True).execute(Trail(), signal=controller.signal)
    assert isinstance(result.outcome, Aborted)
    assert result.executed == ("it",)
    assert result.cursor is None


async def test_a_node_that_may_finish_does_so_within_its_grace(clock: FakeClock):
    began = asyncio.Event()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        began.set()
        await clock.sleep(2.0)
        state.notes.append("finished")

    async with one(node, on_abort="finish", grace=3.0).start(Trail()) as run:
        await began.wait()
        run.abort()
        await clock.elapse(2.0)
        assert (await run).state.notes == ["finished"]
    async with one(node, on_abort="finish", grace=1.0).start(Trail()) as run:
        await drain_ready_tasks()
        run.abort()
        await clock.elapse(1.0)
        result = await run
    assert (result.cursor, result.state.notes) == ("it", [])


async def test_a_synchronous_node_runs_in_a_thread_on_its_copy():
    threads: list[int] = []

    def node(state: Trail, ctx: NodeContext[None]) -> None:
        threads.append(threading.get_ident())
        state.notes.append("threaded")
        ctx.collect_error("CODE", "from a thread")

    result = await one(node).execute(Trail())
    assert result.state.notes == ["threaded"]
    assert threads[0] != threading.get_ident()
    assert [error.code for error in result.errors] == ["CODE"]


async def test_a_synchronous_node_sees_the_signal():
    began = threading.Event()

    def node(state: Trail, ctx: NodeContext[None]) -> None:
        began.set()
        state.notes.append(str(ctx.signal.wait(30)))

    async with one(node).start(Trail()) as run:
        assert await asyncio.to_thread(began.wait, 5)
        run.abort()
        result = await run
    assert (result.cursor, result.state.notes) == ("it", [])


async def test_an_abandoned_thread_writes_to_a_copy_that_nobody_reads(clock: FakeClock):
    began, gate = threading.Event(), threading.Event()
    mine: list[Trail] = []

    def node(state: Trail, ctx: NodeContext[None]) -> None:
        mine.append(state)
        began.set()
        gate.wait(30)
        state.notes.append("too late")

    flow = one(node, on_abort="cooperate")
    async with flow.start(Trail(), abandon_after=2.0) as run:
        assert await asyncio.to_thread(began.wait, 5)
        run.abort()
        await clock.elapse(2.0)
        result = await run
    assert isinstance(result.outcome, Aborted)
    (entry,) = result.outcome.receipt.still_running
    assert entry.name == "flow/it"
    saved = again(result)
    gate.set()
    await asyncio.to_thread(wait_until, lambda: bool(mine[0].notes))
    assert result.state.notes == []
    assert saved.place["state"]["notes"] == []
    await drain_ready_tasks()


async def test_a_node_in_a_process_of_its_own_gives_back_its_state_and_its_errors():
    for node in (process_nodes.note, process_nodes.note_async):
        flow = one(node, outputs=("found", "empty"), isolation="process")
        result = await flow.execute(Trail(), services="plain services")
        assert isinstance(result.outcome, Completed), result.outcome
        assert result.state.notes == ["attempt 1 of plain services"]
        assert result.state.found[0].startswith(result.run_id)
        (error,) = result.errors
        assert (error.code, error.operation) == ("ELSEWHERE", "it")
        assert str(os.getpid()) not in error.message


async def test_the_error_of_a_node_in_a_process_comes_back():
    result = await one(process_nodes.breaks, isolation="process").execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, LookupError)
    assert str(result.outcome.error) == "broken elsewhere"


async def test_a_node_in_a_process_is_killed_by_the_abort(tmp_path: Path):
    path = tmp_path / "pid"
    async with one(process_nodes.waits, isolation="process", grace=0.2).start(Trail(found=[str(path)])) as run:
        await asyncio.to_thread(wait_until, lambda: path.exists() and path.read_text() != "")
        pid = int(path.read_text())
        run.abort("enough")
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.cursor == "it"
    assert not alive(pid)


async def test_a_stop_at_a_safe_point_is_not_tried_again(clock: FakeClock):
    attempts: list[int] = []
    inside, gate = asyncio.Event(), asyncio.Event()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        attempts.append(ctx.attempt)
        inside.set()
        await gate.wait()
        await ctx.safe_point()

    async with one(node, retry=Retry(attempts=3, delay=5.0)).start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert attempts == [1]


async def test_the_pause_before_another_attempt_is_a_safe_point(clock: FakeClock):
    attempts: list[int] = []

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        attempts.append(ctx.attempt)
        raise OSError("down")

    async with one(node, retry=Retry(attempts=3, delay=5.0, jitter=0)).start(Trail()) as run:
        await drain_ready_tasks()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        await clock.elapse(5.0)
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.message == "enough"
    assert attempts == [1]
    assert result.cursor == "it"


async def test_a_node_that_swallows_its_safe_point_goes_on_and_the_stop_comes_after_it():
    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        run.stop(StopAt.SAFE_POINT)
        try:
            await ctx.safe_point()
        except Exception:
            state.notes.append("swallowed")

    flow: Flow[Trail, None] = Flow("flow", start="it")
    flow.node("it", node)
    flow.node("next", node)
    flow.route("it", "next")
    flow.route("next", END)
    run = flow.start(Trail())
    result = await run
    assert (result.outcome.status, result.cursor) == ("aborted", "next")
    assert result.state.notes == ["swallowed"]


async def test_an_abort_of_a_signal_of_its_own_is_the_nodes_failure():
    async def node(state: Trail) -> None:
        mine = AbortController()
        mine.abort("mine")
        mine.signal.raise_if_aborted()

    result = await one(node).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert "mine" in str(result.outcome.error)


async def test_a_safe_point_in_tasks_of_the_node_stops_it_too():
    async def part(ctx: NodeContext[None]) -> None:
        await gate.wait()
        await ctx.safe_point()

    async def node(state: Trail, ctx: NodeContext[None]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(part(ctx))

    gate = asyncio.Event()
    async with one(node).start(Trail()) as run:
        await drain_ready_tasks()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert result.outcome.reason.message == "enough"
    assert result.cursor == "it"


async def test_services_that_cannot_travel_are_told_by_the_node_that_needs_a_process():
    result = await one(process_nodes.note, outputs=("found",), isolation="process").execute(
        Trail(), services=threading.Lock()
    )
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.outcome.error, UsageError)


@pytest.mark.parametrize("kind", ["await", "thread", "process"])
async def test_sys_exit_in_a_node_is_that_nodes_failure(kind: str):
    async def leaves_later(state: Trail) -> None:
        raise SystemExit(2)

    def leaves(state: Trail) -> None:
        raise SystemExit(2)

    node = {"await": leaves_later, "thread": leaves, "process": process_nodes.leaves}[kind]
    outcome = (await one(node, isolation="process" if kind == "process" else "thread").execute(Trail())).outcome
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LeafExit)
    assert str(outcome.error).endswith("called sys.exit(2)")
    assert [entry.note for entry in outcome.receipt.entries if "LeafExit" in entry.note] != []
