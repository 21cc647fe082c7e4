"""Finding the place where something is stuck: the user's own line, and a handler that may have swallowed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from safepoint.run.where import place, swallower, thread_place
from safepoint.testing import settle

THIS = __file__


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
    await settle()
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
    await settle()
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
