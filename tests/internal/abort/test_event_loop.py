"""Owns the proof that calls, futures and changes reach the event loop they belong to, from wherever they come."""

import asyncio
import threading

import pytest

from safepoint.abort.event_loop import Broadcast, call_in, fail, post, resolve, set_within, wake

SECONDS = 10


def elsewhere(call):
    """Run the call in another thread, and return what it returned."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(SECONDS)
    return found[0]


@pytest.fixture
def closed_loop():
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


async def test_a_call_from_another_thread_runs_in_the_loop():
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    threads = []

    def callback(number):
        threads.append((threading.get_ident(), number))
        called.set()

    assert elsewhere(lambda: post(loop, callback, 3)) is True
    async with asyncio.timeout(SECONDS):
        await called.wait()
    assert threads == [(threading.get_ident(), 3)]


def test_a_call_into_a_closed_loop_is_dropped_and_reported(closed_loop):
    called = []
    assert post(closed_loop, called.append, 1) is False
    call_in(closed_loop, called.append, 2)
    assert called == []


async def test_a_call_in_the_running_loop_happens_at_once_and_one_from_elsewhere_soon():
    loop, called = asyncio.get_running_loop(), []
    call_in(loop, called.append, "here")
    assert called == ["here"]
    elsewhere(lambda: call_in(loop, called.append, "from another thread"))
    assert called == ["here"]
    other = asyncio.new_event_loop()
    call_in(other, called.append, "in another loop")
    await asyncio.sleep(0)
    assert called == ["here", "from another thread"]
    other.call_soon(other.stop)
    await asyncio.to_thread(other.run_forever)
    other.close()
    assert called == ["here", "from another thread", "in another loop"]


async def test_the_first_result_of_a_future_counts():
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    resolve(future, 1)
    resolve(future, 2)
    fail(future, ValueError("late"))
    assert await future == 1


async def test_the_first_error_of_a_future_counts_and_a_waiter_that_has_left_gets_nothing():
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    fail(future, ValueError("first"))
    fail(future, ValueError("second"))
    resolve(future, 1)
    with pytest.raises(ValueError, match="first"):
        await future
    left: asyncio.Future[int] = loop.create_future()
    left.cancel()
    fail(left, ValueError("late"))
    assert left.cancelled()


async def test_a_waiter_is_woken_from_another_thread():
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    elsewhere(lambda: wake(waiter))
    async with asyncio.timeout(SECONDS):
        await waiter


async def test_a_broadcast_wakes_all_that_wait_and_who_took_it_before_the_look_misses_no_change():
    broadcast = Broadcast()
    taken = broadcast.next
    waiting = [asyncio.create_task(broadcast.next.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    broadcast.notify()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(taken.wait(), *waiting)
    assert not broadcast.next.is_set()


async def test_what_has_happened_is_not_waited_for():
    event = asyncio.Event()
    event.set()
    assert await set_within(-1.0, event)


async def test_what_happens_meanwhile_ends_the_wait():
    event = asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(set_within(60.0, event))
        group.create_task(asyncio.sleep(0)).add_done_callback(lambda _: event.set())
    assert waiting.result()


async def test_what_does_not_happen_is_given_up():
    assert not await set_within(0.01, asyncio.Event())


async def test_others_have_their_turn_where_no_time_is_left():
    others = []
    asyncio.get_running_loop().call_soon(others.append, "here")
    assert not await set_within(0.0, asyncio.Event())
    assert others == ["here"]


async def test_a_cancellation_is_not_taken_for_the_end_of_the_time():
    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(set_within(60.0, asyncio.Event()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
