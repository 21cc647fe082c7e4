"""Owns the tests of waiting: for something that happens, and for no longer than that."""

import asyncio

from safepoint.abort.event_loop import set_within


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
