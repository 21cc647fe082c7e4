"""Many items: so many at a time, each acknowledged when it has reached its end, none lost, none done twice."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed, Failed, Retry
from safepoint.events import ProgressMade
from safepoint.flow import END, End, Flow, NodeContext
from safepoint.run import StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.flow import process_nodes
from tests.kit.flows import FOREVER, NodeRecorder, Trail, again, one

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")

ITEMS = [f"i{number}" for number in range(5)]


def extend(state: Trail, results: list[Any]) -> None:
    state.found.extend(results)


def each(body: Any, **options: Any) -> Flow[Any, Any]:
    flow: Flow[Any, Any] = Flow("flow", start="each")
    failed = options.pop("failed", None)
    flow.scatter("each", **{"items": lambda state: list(ITEMS), "body": body, "gather": extend, **options})
    flow.route("each", END, **({} if failed is None else {"failed": failed}))
    return flow


async def test_results_are_gathered_in_the_order_of_the_items():
    gates = [asyncio.Event() for _ in ITEMS]

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        number = ITEMS.index(item)
        if number + 1 < len(ITEMS):
            await gates[number + 1].wait()
        gates[number].set()  # the last one ends first
        return item.upper()

    result = await each(body).execute(Trail())
    assert result.state.found == ["I0", "I1", "I2", "I3", "I4"]
    assert result.executed == ("each",)


@pytest.mark.parametrize(
    "source",
    ["list", "field", "tuple", "generator", "async", "dict"],
)
async def test_items_come_from_any_source(source: str):
    def generate(state: Trail) -> Iterator[str]:
        yield from ITEMS

    async def generate_async(state: Trail) -> AsyncIterator[str]:
        for item in ITEMS:
            await asyncio.sleep(0)
            yield item

    sources: dict[str, Any] = {
        "list": lambda state: list(ITEMS),
        "field": "notes",
        "tuple": lambda state: tuple(ITEMS),
        "generator": generate,
        "async": generate_async,
        "dict": lambda state: dict.fromkeys(ITEMS),
    }
    lab = NodeRecorder()
    result = await each(lab.item, items=sources[source]).execute(Trail(list(ITEMS)))
    assert result.state.found == [item.upper() for item in ITEMS]


async def test_no_items_are_no_work():
    lab = NodeRecorder()
    for items in (lambda state: [], lambda state: iter([])):
        result = await each(lab.item, items=items).execute(Trail())
        assert isinstance(result.outcome, Completed)
        assert result.executed == ("each",)
    assert lab.ran == []


async def test_without_gather_the_items_are_done_for_their_effects():
    lab = NodeRecorder()
    result = await each(lab.item, gather=None).execute(Trail())
    assert result.state == Trail()
    assert sorted(lab.ran) == ITEMS


async def test_no_more_than_the_given_number_run_at_once_and_no_item_is_pulled_before_there_is_room():
    running = most = pulled = done = 0
    ahead: list[int] = []

    def source(state: Trail) -> Iterator[int]:
        nonlocal pulled
        for number in range(20):
            pulled += 1
            ahead.append(pulled - done)
            yield number

    async def body(item: int, ctx: NodeContext[Any]) -> int:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done += 1
        return item

    result = await each(body, items=source, concurrency=3).execute(Trail())
    assert result.state.found == list(range(20))
    assert most == 3
    assert max(ahead) <= 3


async def test_an_item_is_a_copy():
    async def body(item: list[str], ctx: NodeContext[Any]) -> list[str]:
        item.append("mine")
        return item

    shared = ["shared"]
    result = await each(body, items=lambda state: [shared, shared]).execute(Trail())
    assert result.state.found == [["shared", "mine"], ["shared", "mine"]]
    assert shared == ["shared"]


async def test_a_flow_body_takes_the_item_as_its_state_and_its_last_state_is_the_result():
    async def double(state: dict[str, int], ctx: NodeContext[Any]) -> None:
        state["n"] *= 2

    flow = each(one(double), items=lambda state: [{"n": 1}, {"n": 2}])
    result = await flow.execute(Trail())
    assert result.state.found == [{"n": 2}, {"n": 4}]
    assert result.executed == ("each",)


async def test_an_item_may_be_retried_and_have_a_timeout(clock: FakeClock):
    attempts: list[tuple[str, int]] = []

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        attempts.append((item, ctx.attempt))
        if item == "i1" and ctx.attempt == 1:
            raise OSError("down")
        if item == "i2" and ctx.attempt == 1:
            await ctx.signal.sleep(FOREVER)
        return item

    async with each(body, retry=Retry(attempts=2, delay=1.0), timeout=3.0).start(Trail()) as run:
        await clock.elapse(10)
        result = await run
    assert result.state.found == ITEMS
    assert len(attempts) == 7


async def test_items_may_run_in_processes():
    result = await each(process_nodes.double, items=lambda state: [1, 2], isolation="process", concurrency=2).execute(
        Trail()
    )
    assert isinstance(result.outcome, Completed), result.outcome
    assert result.state.found == [2, 4]


async def test_progress_is_told_item_by_item():
    lab = NodeRecorder()
    run = each(lab.item, concurrency=1).start(Trail())
    told = [event async for event in run if isinstance(event, ProgressMade)]
    assert [event.message for event in told] == [f"{number} of 5 items" for number in range(1, 6)]
    assert told[-1].fraction == 1.0
    run = each(lab.item, items=lambda state: iter(ITEMS)).start(Trail())
    told = [event async for event in run if isinstance(event, ProgressMade)]
    assert told[-1].message == "5 of ? items"
    assert told[-1].fraction is None


async def test_an_abort_keeps_the_items_that_are_done_and_a_resume_does_the_others():
    lab = NodeRecorder()
    flow = each(lab.item, concurrency=2)
    result = await lab.stop_in("i3", flow.start(Trail()))
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, result.executed, result.state) == ("each/3", (), Trail())
    done = set(lab.ran) - {"i3"}
    lab.ran.clear()
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == [item.upper() for item in ITEMS]
    assert set(lab.ran) >= {"i3"}
    assert set(lab.ran) <= {"i3", *set(ITEMS) - done} | {"i4"}


async def test_an_abort_inside_a_flow_body_resumes_inside_the_item():
    lab = NodeRecorder()
    body: Flow[str, Any] = Flow("body", start="one")

    async def first(state: str, ctx: NodeContext[Any]) -> None:
        await lab.visit(f"{state} one", ctx)

    async def second(state: str, ctx: NodeContext[Any]) -> None:
        await lab.visit(f"{state} two", ctx)

    body.node("one", first)
    body.node("two", second)
    body.route("one", "two")
    body.route("two", END)
    flow = each(body, concurrency=1)
    result = await lab.stop_in("i1 two", flow.start(Trail()))
    assert result.cursor == "each/1/two"
    assert lab.ran == ["i0 one", "i0 two", "i1 one", "i1 two"]
    lab.ran.clear()
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == ITEMS
    assert lab.ran == ["i1 two", *(f"{item} {node}" for item in ITEMS[2:] for node in ("one", "two"))]


async def test_the_key_of_an_item_is_its_own_and_the_same_after_a_resume():
    lab = NodeRecorder()
    flow = each(lab.item, concurrency=1)
    result = await lab.stop_in("i1", flow.start(Trail()))
    await flow.execute(resume=again(result))
    assert len({key for keys in lab.keys.values() for key in keys}) == len(ITEMS)
    assert len(lab.keys["i1"]) == 2


@pytest.mark.parametrize("source", ["list", "async"])
async def test_a_stop_at_a_safe_point_is_honoured_between_items(source: str):
    lab = NodeRecorder()
    inside, gate = asyncio.Event(), asyncio.Event()
    closed: list[str] = []

    async def generate(state: Trail) -> AsyncIterator[str]:
        try:
            for item in ITEMS:
                yield item
        finally:
            closed.append("closed")

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        await lab.visit(item, ctx)
        if item == "i1" and not gate.is_set():
            inside.set()
            await gate.wait()
        return item

    items: dict[str, Any] = {} if source == "list" else {"items": generate}
    flow = each(body, concurrency=1, **items)
    async with flow.start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert lab.ran == ["i0", "i1"]
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == ITEMS
    assert lab.ran == ITEMS
    assert len(closed) == (2 if source == "async" else 0)


async def test_one_failing_item_interrupts_the_others_and_their_work_is_kept_for_a_resume():
    lab = NodeRecorder()
    lab.stuck.add("i0")
    lab.broken.add("i1")
    flow = each(lab.item, concurrency=2)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.__notes__ == ["in node 'each/1' of flow 'flow'"]
    assert lab.ran == ["i0", "i1"]
    lab.broken.clear()
    assert (await flow.execute(resume=again(result))).state.found == [item.upper() for item in ITEMS]


async def test_with_collect_the_others_are_done_and_gathered():
    lab = NodeRecorder()
    lab.broken |= {"i1", "i3"}
    result = await each(lab.item, on_failure="collect", failed=End("partly")).execute(Trail())
    assert isinstance(result.outcome, Completed)
    assert result.state.found == ["I0", "I2", "I4"]
    (error,) = result.errors
    assert error.code == "ExceptionGroup"
    assert "2 parts of 'each' failed" in error.message


async def test_with_collect_and_no_route_a_resume_repeats_only_the_failed_items():
    lab = NodeRecorder()
    lab.broken.add("i1")
    flow = each(lab.item, on_failure="collect")
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.cursor == "each/1"
    lab.broken.clear()
    lab.ran.clear()
    assert (await flow.execute(resume=again(result))).state.found == [item.upper() for item in ITEMS]
    assert lab.ran == ["i1"]


async def test_with_collect_a_stop_beside_a_failed_item_loses_no_item():
    lab = NodeRecorder()
    lab.broken.add("i0")
    inside, gate = asyncio.Event(), asyncio.Event()

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        if item == "i1" and not gate.is_set():
            inside.set()
            await gate.wait()
        return await lab.item(item, ctx)

    flow = each(body, concurrency=1, on_failure="collect", failed=End("partly"))
    async with flow.start(Trail()) as run:
        await inside.wait()
        run.stop(StopAt.SAFE_POINT, reason="enough")
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert lab.ran == ["i0", "i1"]
    lab.broken.clear()
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == [item.upper() for item in ITEMS]


@pytest.mark.parametrize("kind", ["call", "iterator", "async"])
async def test_an_error_of_the_source_fails_the_node_and_the_done_items_are_kept(kind: str):
    lab = NodeRecorder()
    broken = [True]

    def call(state: Trail) -> list[str]:
        if broken:
            raise LookupError("no source")
        return list(ITEMS)

    def iterator(state: Trail) -> Iterator[str]:
        for item in ITEMS:
            if item == "i3" and broken:
                raise LookupError("no source")
            yield item

    async def asynchronous(state: Trail) -> AsyncIterator[str]:
        for item in iterator(state):
            yield item

    items: Any = {"call": call, "iterator": iterator, "async": asynchronous}[kind]
    flow = each(lab.item, items=items, concurrency=2)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert str(result.outcome.error) == "no source"
    broken.clear()
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == [item.upper() for item in ITEMS]


async def test_an_error_in_gather_fails_the_node_and_a_resume_only_gathers_again():
    lab = NodeRecorder()
    errors = [LookupError("mine")]

    async def body(item: str, ctx: NodeContext[Any]) -> list[str]:
        await lab.visit(item, ctx)
        return [item]

    def gather(state: Trail, results: list[list[str]]) -> None:
        for result in results:
            result.append("gathered")
            state.found += result
        if errors:
            raise errors.pop()

    flow = each(body, gather=gather)
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert (result.cursor, result.state) == ("each", Trail())
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == [word for item in ITEMS for word in (item, "gathered")]
    assert sorted(lab.ran) == ITEMS


async def test_what_is_no_source_fails_the_node():
    result = await each(NodeRecorder().item, items=lambda state: 5).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert "'int' object is not iterable" in str(result.outcome.error)


@pytest.mark.parametrize("kind", ["step", "flow"])
async def test_an_item_that_cannot_be_copied_fails_and_interrupts_no_worker_by_force(kind: str):
    ended: list[str] = []
    gate = asyncio.Event()

    async def body(item: Any, ctx: NodeContext[Any]) -> None:
        try:
            await gate.wait()
        finally:
            ended.append("stopped by the signal" if ctx.signal.aborted else "by force")

    flow = each(
        body if kind == "step" else one(body),
        items=lambda state: iter(["fine", (number for number in range(3))]),
        gather=None,
    )
    result = await flow.execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert "cannot be copied" in str(result.outcome.error)
    assert ended == ["stopped by the signal"]


async def test_an_item_that_ends_by_somebody_elses_cancellation_is_not_lost():
    async def body(item: str, ctx: NodeContext[Any]) -> str:
        if item == "i2":
            other = asyncio.ensure_future(asyncio.get_running_loop().create_future())
            await asyncio.sleep(0)
            other.cancel()
            await other
        return item

    result = await each(body).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert result.executed == ()


async def test_a_slow_source_is_interrupted_by_the_abort_and_closed():
    closed: list[str] = []
    waiting = asyncio.Event()

    async def source(state: Trail) -> AsyncIterator[str]:
        try:
            yield "i0"
            waiting.set()
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    lab = NodeRecorder()
    flow = each(lab.item, items=source)
    async with flow.start(Trail()) as run:
        await waiting.wait()
        run.abort("enough")
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert closed == ["closed"]
    assert again(result).place["inside"]["watermark"] == 1


async def test_a_source_that_does_not_close_does_not_keep_the_flow(clock: FakeClock):
    waiting, gate = asyncio.Event(), asyncio.Event()

    async def source(state: Trail) -> AsyncIterator[str]:
        try:
            waiting.set()
            await gate.wait()
            yield "i0"
        finally:
            await gate.wait()

    async with each(NodeRecorder().item, items=source).start(Trail()) as run:
        await waiting.wait()
        run.abort("enough")
        await clock.elapse(60)
        assert run.finished
        result = await run
    assert result.outcome.status == "aborted"
    gate.set()
    await drain_ready_tasks()


async def test_a_generator_is_closed_when_the_scatter_is_left_in_the_thread_that_asked_it_for_items():
    closed: list[threading.Thread] = []

    def source(state: Trail) -> Iterator[str]:
        try:
            yield from ITEMS
        finally:
            closed.append(threading.current_thread())

    kept: list[Iterator[str]] = []

    def items(state: Trail) -> Iterator[str]:
        kept.append(source(state))  # somebody else holds it too
        return kept[-1]

    lab = NodeRecorder()
    lab.broken.add("i1")
    result = await each(lab.item, items=items, concurrency=1).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert closed == [threading.current_thread()]


async def test_a_source_that_shrank_or_grew_is_resumed_by_position():
    lab = NodeRecorder()
    items = list(ITEMS)
    flow = each(lab.item, items=lambda state: list(items), concurrency=1)
    result = await lab.stop_in("i2", flow.start(Trail()))
    saved = again(result)
    del items[1:]
    shrunk = await flow.execute(resume=saved)
    assert shrunk.outcome.status == "completed"
    items[1:] = [*ITEMS[1:], "i5"]
    grown = await flow.execute(resume=saved)
    assert grown.state.found == [item.upper() for item in [*ITEMS, "i5"]]


async def test_a_final_item_is_acknowledged_after_the_abort():
    controller = AbortController()
    lab = NodeRecorder()

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        await lab.visit(item, ctx)
        if item == "i1":
            controller.abort("enough")
        return item

    flow = each(body, final=True, concurrency=1)
    result = await flow.execute(Trail(), signal=controller.signal)
    assert (result.outcome.status, result.cursor) == ("aborted", "each")
    resumed = await flow.execute(resume=again(result))
    assert resumed.state.found == ITEMS
    assert lab.ran == ITEMS


async def test_an_item_that_arrives_when_a_stop_waits_is_not_begun():
    lab = NodeRecorder()
    pulling, gate = asyncio.Event(), asyncio.Event()

    async def source(state: Trail) -> AsyncIterator[str]:
        yield "i0"
        pulling.set()
        await gate.wait()
        yield "i1"

    flow = each(lab.item, items=source, concurrency=1)
    async with flow.start(Trail()) as run:
        await pulling.wait()
        run.stop(StopAt.SAFE_POINT)
        gate.set()
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert lab.ran == ["i0"]
    assert (await flow.execute(resume=again(result))).state.found == ["I0", "I1"]
    assert lab.ran == ["i0", "i1"]


async def test_a_source_that_ends_by_somebody_elses_cancellation_has_failed():
    lab = NodeRecorder()

    async def source(state: Trail) -> AsyncIterator[str]:
        yield "i0"
        other = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        await asyncio.sleep(0)
        other.cancel()
        await other

    result = await each(lab.item, items=source).execute(Trail())
    assert isinstance(result.outcome, Failed)
    assert "'each/items' ended by a CancelledError" in str(result.outcome.error)


async def test_a_source_that_ignores_the_stop_is_left_behind_at_the_ceiling(clock: FakeClock):
    gate = asyncio.Event()

    async def source(state: Trail) -> AsyncIterator[str]:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        yield "i0"

    async with each(NodeRecorder().item, items=source).start(Trail(), abandon_after=1.0) as run:
        await drain_ready_tasks()
        run.abort("enough")
        await clock.elapse(10)
        assert run.finished
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert [entry.name for entry in result.outcome.receipt.still_running] == ["flow/each/items"]
    gate.set()
    await drain_ready_tasks()
