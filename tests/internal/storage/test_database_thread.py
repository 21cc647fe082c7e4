"""A thread that does the work of a database: in order, to the end, for whoever waits in whatever event loop."""

import asyncio
import threading

import pytest

from safepoint.storage.database_thread import DatabaseThread


async def test_calls_are_done_one_after_the_other_in_its_thread_and_answered_in_ours() -> None:
    thread, seen = DatabaseThread("t"), list[tuple[int, int]]()
    assert not thread.begun

    def call(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number

    calls = [thread.do(lambda number=number: call(number)) for number in range(20)]  # type: ignore[misc]
    assert [await done for done in calls] == list(range(20))
    assert [number for number, _ in seen] == list(range(20))
    assert {ident for _, ident in seen}.isdisjoint({threading.get_ident()})
    assert (thread.begun, thread.left_by_fork) == (True, 0)
    thread.end()
    await asyncio.to_thread(thread.join)


async def test_what_a_call_raises_comes_out_where_it_is_awaited_and_the_next_is_done() -> None:
    thread = DatabaseThread("t")
    with pytest.raises(ZeroDivisionError):
        await thread.do(lambda: 1 / 0)
    assert await thread.do(lambda: "next") == "next"
    thread.end()
    await asyncio.to_thread(thread.join)


async def test_what_was_asked_for_before_the_end_is_done_and_also_what_nobody_waits_for() -> None:
    thread, done = DatabaseThread("t"), list[str]()
    gate = threading.Event()
    first = thread.do(lambda: gate.wait(20))
    second = thread.do(lambda: done.append("done"))
    second.cancel()
    thread.end()
    gate.set()
    assert await first
    await asyncio.to_thread(thread.join)
    assert done == ["done"]
