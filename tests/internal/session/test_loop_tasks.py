"""Owns the tests that look inside, beside those of `tests/session/test_loop_tasks.py`.

Where a session lives: calls from other threads, and tasks that end before it.
"""

import asyncio
import threading

import pytest

from safepoint.session.loop_tasks import LoopTasks, wait_uninterrupted
from safepoint.testing import drain_ready_tasks


async def test_a_call_at_home_is_made_at_once() -> None:
    called: list[int] = []
    LoopTasks().call(called.append, 1)
    assert called == [1]


async def test_a_call_from_a_thread_is_handed_over() -> None:
    loop_tasks, called = LoopTasks(), list[int]()
    heard = asyncio.Event()

    def call() -> None:
        called.append(threading.get_ident())
        heard.set()

    await asyncio.to_thread(loop_tasks.call, call)
    await heard.wait()
    assert called == [threading.get_ident()]


def test_a_call_for_a_loop_that_is_closed_has_nobody_to_reach() -> None:
    async def make() -> LoopTasks:
        return LoopTasks()

    loop_tasks = asyncio.run(make())
    loop_tasks.call(pytest.fail, "there is nobody at home")


async def test_it_is_empty_when_all_tasks_but_the_one_that_asks_have_ended() -> None:
    loop_tasks, gate, order = LoopTasks(), asyncio.Event(), list[str]()

    async def work() -> None:
        await gate.wait()
        order.append("work")

    async def closing() -> None:
        await loop_tasks.wait_all()
        order.append("empty")

    loop_tasks.spawn(work(), "work")
    closes = loop_tasks.spawn(closing(), "closing")
    await drain_ready_tasks()
    assert order == []
    gate.set()
    await closes
    assert order == ["work", "empty"]


async def test_what_nobody_may_cut_short_ends_before_its_caller_goes() -> None:
    loop_tasks, gate = LoopTasks(), asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "done"

    task = loop_tasks.spawn(work(), "work")
    waiting = asyncio.create_task(wait_uninterrupted(task))
    await drain_ready_tasks()
    waiting.cancel()
    await drain_ready_tasks()
    assert not waiting.done(), "it waits on"
    gate.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await wait_uninterrupted(task) == "done"


async def test_whoever_is_told_twice_goes_at_once() -> None:
    loop_tasks, gate = LoopTasks(), asyncio.Event()
    task = loop_tasks.spawn(gate.wait(), "work")
    waiting = asyncio.create_task(wait_uninterrupted(task))
    await drain_ready_tasks()
    waiting.cancel()
    await drain_ready_tasks()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert not task.done()
    gate.set()
    await task
