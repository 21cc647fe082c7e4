"""What all parts of one execution share, and how its checkpoint is written down."""

import asyncio

import pytest

from safepoint import AbortController, AbortError, AbortSignal
from safepoint.flow.execution import ITEM_SECONDS, CoalescingWriter, FlowExecution
from safepoint.run import Context
from safepoint.testing import FakeClock, drain_ready_tasks

NEVER = AbortSignal.never()


class Disk:
    """Writes what is true when a writing begins. `gate`: one writing waits for each release."""

    def __init__(self) -> None:
        self.truth = 0
        self.written: list[int] = []
        self.gate = asyncio.Semaphore(0)
        self.errors: list[Exception] = []

    async def write(self) -> None:
        now = self.truth
        await self.gate.acquire()
        if self.errors:
            raise self.errors.pop()
        self.written.append(now)


async def test_whoever_saves_returns_when_what_was_true_is_written():
    disk = Disk()
    writer = CoalescingWriter(disk.write)
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(1, 4):
            disk.truth = number
            tasks.append(group.create_task(writer.save(NEVER)))
            await asyncio.sleep(0)
        disk.gate.release()
        await drain_ready_tasks()
        assert [task.done() for task in tasks] == [True, False, False]
        disk.gate.release()
        await drain_ready_tasks()
        assert all(task.done() for task in tasks)
    assert disk.written == [1, 3]  # one writing served both who had come meanwhile


async def test_a_writing_that_fails_is_told_and_the_next_one_is_tried():
    disk = Disk()
    writer = CoalescingWriter(disk.write)
    disk.errors.append(OSError("disk full"))
    disk.gate.release()
    with pytest.raises(OSError, match="disk full"):
        await writer.save(NEVER)
    assert isinstance(writer.error, OSError)
    disk.gate.release()
    await writer.save(NEVER)
    assert writer.error is None


async def test_a_store_that_hangs_does_not_outlast_an_abort():
    disk = Disk()
    writer = CoalescingWriter(disk.write)
    controller = AbortController()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_error(writer.save(controller.signal)))
        second = group.create_task(_error(writer.save(controller.signal)))
        await drain_ready_tasks()
        controller.abort("enough")
    assert isinstance(first.result(), AbortError)
    assert isinstance(second.result(), AbortError)
    disk.gate.release()
    await writer.save(NEVER)  # nobody holds the turn any more
    assert disk.written == [0]


async def _error(awaitable: "asyncio.Future[None] | object") -> BaseException | None:
    try:
        await awaitable  # type: ignore[misc]
    except Exception as error:
        return error
    return None


async def test_a_journey_gives_back_why_saving_failed_and_an_abort_is_no_failure(clock: FakeClock):
    disk = Disk()
    execution = FlowExecution("j")
    controller = AbortController()
    ctx = Context("flow", signal=controller.signal)
    assert await execution.save(ctx) is None  # there is no store
    execution.writer = CoalescingWriter(disk.write)
    disk.errors.append(OSError("disk full"))
    disk.gate.release()
    assert isinstance(await execution.save(ctx), OSError)
    controller.abort("enough")
    assert await execution.save(ctx) is None


async def test_items_are_saved_every_so_often(clock: FakeClock):
    disk = Disk()
    execution = FlowExecution("j", writer=CoalescingWriter(disk.write), in_item=True)
    ctx = Context("flow")
    for _ in range(10):
        disk.gate.release()
        disk.truth += 1
        assert await execution.save(ctx) is None
    assert disk.written == [1]
    clock.advance(ITEM_SECONDS)
    await execution.save(ctx)
    assert disk.written == [1, 10]


def test_an_operation_is_a_path_from_the_root_of_the_flow():
    ctx = Context("outer").child("flow").child("sub")
    assert FlowExecution("j", depth=2).operation(ctx, "c") == "sub/c"
    assert FlowExecution("j", depth=1).operation(ctx, "c") == "flow/sub/c"


def test_a_recorded_failure_says_what_where_and_when(clock: FakeClock):
    execution = FlowExecution("j")
    execution.record(Context("flow"), LookupError("lost"), "sub/c")
    (error,) = execution.errors
    assert (error.code, error.message, error.operation, error.recoverable, error.timestamp) == (
        "LookupError",
        "lost",
        "sub/c",
        True,
        clock.time(),
    )
