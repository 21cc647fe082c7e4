"""Finding the place where something is stuck: the user's own line, and a handler that may have swallowed."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from safepoint.run.interrupt.code_location import blocking_place, place, swallower, thread_place
from safepoint.testing import drain_ready_tasks
from tests.conftest import LOOPS

THIS = __file__
each_loop = pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)


async def stuck() -> None:
    await asyncio.get_running_loop().create_future()


async def outer() -> None:
    await stuck()


async def streaming() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 1


async def reading() -> None:
    async for _ in streaming():
        pass


async def polite() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise
    except ValueError:
        pass


def line_of(function: object, text: str) -> int:
    code = function.__code__  # type: ignore[attr-defined]
    lines = Path(THIS).read_text(encoding="utf-8").splitlines()
    return next(n for n in range(code.co_firstlineno, len(lines) + 1) if text in lines[n - 1])


async def started(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(coroutine)
    await drain_ready_tasks()
    return task


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_the_place_is_the_innermost_line_of_the_users_own_code():
    task = await started(outer())
    assert place(task) == f"{THIS}:{line_of(stuck, 'create_future')} in stuck"
    await ended(task)


async def test_a_wait_inside_a_library_is_named_by_the_users_line_that_called_it():
    task = await started(reading())
    assert place(task) == f"{THIS}:{line_of(streaming, 'Event().wait')} in streaming"
    await ended(task)


async def test_a_finished_task_has_no_place():
    task = await started(asyncio.sleep(0))
    await task
    assert place(task) is None


async def test_a_handler_that_may_have_swallowed_the_cancellation_is_a_candidate():
    stop = asyncio.Event()

    async def swallows() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except (asyncio.CancelledError, ValueError):
                pass

    task = await started(swallows())
    task.cancel()
    await drain_ready_tasks()
    assert swallower(task) == f"{THIS}:{line_of(swallows, 'except (asyncio')} in swallows"
    stop.set()
    await task


async def test_a_handler_that_raises_again_or_catches_something_else_is_none():
    task = await started(polite())
    assert swallower(task) is None
    await ended(task)


async def test_a_handler_behind_the_line_counts_only_in_a_loop():
    gate = asyncio.Event()

    async def once() -> None:
        await gate.wait()
        try:
            await gate.wait()
        except BaseException:
            pass

    task = await started(once())
    assert swallower(task) is None
    gate.set()
    await task


def test_the_place_of_a_thread_names_the_users_line_and_the_library_it_is_in():
    gate = threading.Event()
    begun = threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(10)
    while "threading.py" not in (thread_place(thread.ident or 0) or ""):
        pass
    told = thread_place(thread.ident or 0)
    assert told is not None
    assert told.startswith(f"{THIS}:")
    assert " in work (in " in told
    gate.set()
    thread.join()
    assert thread_place(thread.ident or 0) is None


class Block:
    """Blocks the thread that calls it, and with it an event loop, until the test has looked."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()

    def __call__(self) -> None:
        # In one line, so that the place is this one however soon the test looks.
        assert [self.entered.set(), self.gate.wait(30)][1]  # type: ignore[func-returns-value]


@contextmanager
def blocked_loop(
    make_loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[Block], Coroutine[Any, Any, None]]
) -> Iterator[None]:
    """`main` in an event loop of another thread, up to where it calls its block; at the end to its end."""
    block = Block()

    def run() -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(main(block))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run)
        try:
            assert block.entered.wait(30)
            yield
        finally:
            block.gate.set()
            ended.result(30)


BLOCKED = line_of(Block.__call__, "gate.wait")


def deep(block: Block) -> None:
    block()


@each_loop
def test_a_task_that_blocks_its_event_loop_is_where_it_blocks_it(make_loop: Callable[[], asyncio.AbstractEventLoop]):
    tasks: list[asyncio.Task[Any]] = []

    async def again(block: Block, times: int) -> None:
        current = asyncio.current_task()
        assert current is not None
        tasks.append(current)
        if times:
            await again(block, times - 1)  # so that several frames look like the outermost one of the task
        else:
            deep(block)

    async def main(block: Block) -> None:
        await asyncio.ensure_future(again(block, 3))

    with blocked_loop(make_loop, main):
        for where in (place(tasks[0]), blocking_place(tasks[0])):
            assert where is not None
            assert where.startswith(f"{THIS}:{BLOCKED} in __call__ (in ")
    assert (place(tasks[0]), blocking_place(tasks[0])) == (None, None)


@each_loop
def test_a_task_that_cannot_go_on_because_another_blocks_the_loop_is_told_with_both_places(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
):
    tasks: list[asyncio.Task[Any]] = []

    async def main(block: Block) -> None:
        tasks.append(asyncio.ensure_future(stuck()))
        await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None
        current.set_name("the other one")
        deep(block)
        await ended(tasks[0])

    with blocked_loop(make_loop, main):
        where = place(tasks[0])
        assert where is not None
        assert where.startswith(
            f"{THIS}:{line_of(stuck, 'create_future')} in stuck (it waits; the event loop is busy with"
            f" task 'the other one' at {THIS}:{BLOCKED} in __call__ (in "
        )
        assert blocking_place(tasks[0]) is None


def test_a_callback_that_blocks_the_loop_is_named_like_a_task():
    tasks: list[asyncio.Task[Any]] = []

    async def main(block: Block) -> None:
        tasks.append(asyncio.ensure_future(stuck()))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(deep, block)
        await asyncio.to_thread(block.gate.wait, 30)
        await ended(tasks[0])

    with blocked_loop(asyncio.new_event_loop, main):
        where = place(tasks[0])
        assert where is not None
        assert f"in stuck (it waits; the event loop is busy with a callback at {THIS}:" in where


@each_loop
def test_a_task_that_waits_in_an_idle_loop_of_another_thread_is_only_told_by_its_own_place(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
):
    tasks: list[asyncio.Task[Any]] = []

    async def main(block: Block) -> None:
        tasks.append(asyncio.ensure_future(stuck()))
        await asyncio.to_thread(block)
        await ended(tasks[0])

    alone = f"{THIS}:{line_of(stuck, 'create_future')} in stuck"
    with blocked_loop(make_loop, main):
        while place(tasks[0]) != alone:  # until the loop has gone to sleep
            pass


async def test_asked_from_its_own_thread_a_loop_is_not_called_blocked():
    task = await started(stuck())
    assert blocking_place(task) is None
    current = asyncio.current_task()
    assert current is not None
    assert blocking_place(current) is None
    await ended(task)


def test_of_a_task_that_runs_only_a_handler_that_it_is_in_counts():
    tasks: list[asyncio.Task[Any]] = []

    async def inside(block: Block) -> None:
        try:
            raise asyncio.CancelledError
        except BaseException:
            deep(block)

    async def behind(block: Block) -> None:
        try:
            await asyncio.sleep(0)
        except BaseException:
            pass
        deep(block)

    async def main(block: Block, work: Callable[[Block], Coroutine[Any, Any, None]]) -> None:
        tasks.append(asyncio.ensure_future(work(block)))
        await tasks[-1]

    with blocked_loop(asyncio.new_event_loop, lambda block: main(block, inside)):
        assert swallower(tasks[-1]) == f"{THIS}:{line_of(inside, 'except BaseException')} in inside"
    with blocked_loop(asyncio.new_event_loop, lambda block: main(block, behind)):
        assert swallower(tasks[-1]) is None
