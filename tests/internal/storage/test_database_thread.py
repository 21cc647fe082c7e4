"""A thread that does the work of a database: in order, to the end, for whoever waits in whatever event loop."""

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from safepoint.storage.database_thread import DatabaseThread
from tests.kit.waiting import wait_until


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


class Large(Exception):
    """Something that should not be kept."""


async def test_nothing_of_a_call_is_kept_while_the_thread_waits_for_the_next() -> None:
    thread, references = DatabaseThread("t"), list[weakref.ref[Large]]()

    def call(fails: bool) -> Large:
        large = Large()
        references.append(weakref.ref(large))
        try:
            if fails:
                raise large
            return large
        finally:
            del large  # a local that refers to its own traceback would be a cycle of this test

    gc.disable()
    try:
        await thread.do(lambda: call(False))
        with contextlib.suppress(Large):
            await thread.do(lambda: call(True))
        await asyncio.to_thread(wait_until, lambda: [reference() for reference in references] == [None, None])
    finally:
        gc.enable()
    thread.end()
    await asyncio.to_thread(thread.join)
