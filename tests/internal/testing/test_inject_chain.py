"""Where code is, in words: through coroutines, generators and what hides them, without the machinery itself."""

import asyncio
import os
import threading
import types

from safepoint.testing.inject import chain as inject_chain
from safepoint.testing.inject.chain import place, running, shown, suspended, thread_place

HERE = os.path.relpath(__file__)


async def wait_for_ever():
    await asyncio.get_running_loop().create_future()


def names(chain):
    return [code.co_name for code, _ in chain]


async def chain_of(coroutine):
    """Let it run until it waits, look, and end it."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    chain = suspended(task.get_coro())
    task.cancel()
    await asyncio.wait([task])
    return chain


async def test_a_chain_goes_through_coroutines_to_the_innermost():
    async def outer():
        await wait_for_ever()

    chain = await chain_of(outer())
    assert names(chain) == ["outer", "wait_for_ever"]
    assert place(chain) == (__file__, wait_for_ever.__code__.co_firstlineno + 1)


async def test_a_chain_goes_through_async_generators():
    async def chunks():
        await wait_for_ever()
        yield 1

    async def outer():
        async for _ in chunks():
            pass

    assert names(await chain_of(outer())) == ["outer", "chunks", "wait_for_ever"]


async def test_a_chain_goes_through_the_closing_of_an_async_generator():
    async def chunks():
        try:
            yield 1
        finally:
            await wait_for_ever()

    async def outer():
        generator = chunks()
        await anext(generator)
        await generator.aclose()

    assert names(await chain_of(outer())) == ["outer", "chunks", "wait_for_ever"]


async def test_a_chain_goes_through_awaitable_objects_and_old_style_generators():
    class Awaitable:
        def __await__(self):
            return wait_for_ever().__await__()

    @types.coroutine
    def old_style():
        yield from wait_for_ever()

    async def outer():
        await Awaitable()

    async def other():
        await old_style()

    assert names(await chain_of(outer())) == ["outer", "wait_for_ever"]
    assert names(await chain_of(other())) == ["other", "old_style", "wait_for_ever"]


async def test_the_chain_of_what_has_not_begun_or_has_ended_is_short():
    coroutine = wait_for_ever()
    assert names(suspended(coroutine)) == ["wait_for_ever"]
    coroutine.close()
    assert suspended(coroutine) == []
    assert place([]) == ("?", 0)
    assert shown([]) == ()


def test_running_code_knows_its_own_chain():
    def inner():
        return running()

    chain = inner()
    assert names(chain)[-2:] == ["test_running_code_knows_its_own_chain", "inner"]
    assert place(chain) == (__file__, inner.__code__.co_firstlineno + 1)


async def test_a_place_is_the_users_line_not_the_librarys():
    async def waits():
        await asyncio.Event().wait()

    chain = await chain_of(waits())
    assert names(chain) == ["waits", "wait"]
    assert place(chain) == (__file__, waits.__code__.co_firstlineno + 1)
    assert place(chain[1:])[0].endswith("locks.py")


async def test_a_chain_for_people_has_short_paths_and_full_names():
    async def waits():
        await asyncio.Event().wait()

    own, library = shown(await chain_of(waits()))
    assert own == f"{HERE}:{waits.__code__.co_firstlineno + 1} {waits.__qualname__}"
    assert library.startswith(f"asyncio{os.sep}locks.py:")


def test_installed_packages_are_not_taken_for_the_standard_library():
    path = os.path.join(inject_chain.LIBRARY, "site-packages", "tool", "run.py")
    assert inject_chain.short(path) == os.path.join("tool", "run.py")
    assert not inject_chain._plumbing(path)


def test_a_thread_says_where_it_is():
    gate = threading.Event()
    thread = threading.Thread(target=lambda: gate.wait(10))
    thread.start()
    try:
        assert thread_place(thread.ident).startswith(f"{HERE}:")
    finally:
        gate.set()
        thread.join()
    assert thread_place(thread.ident) == "?"
    assert thread_place(None) == "?"
