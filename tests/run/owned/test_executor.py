"""The default executor: calls on a leaf's account, everybody else's calls as ever."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from safepoint.run import Context, leaf, settle
from safepoint.run.owned.executor import AccountingExecutor, install_executor
from tests.run.owned.lab import Gate, stop


async def test_it_stands_in_the_place_of_the_pool_that_asyncio_makes():
    loop = asyncio.get_running_loop()
    install_executor(loop)
    assert isinstance(loop._default_executor, AccountingExecutor)  # type: ignore[attr-defined]
    first = loop._default_executor  # type: ignore[attr-defined]
    install_executor(loop)
    assert loop._default_executor is first  # type: ignore[attr-defined]


async def test_a_pool_that_asyncio_has_made_already_is_replaced_and_shut_down_with_it():
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(int)
    before = loop._default_executor  # type: ignore[attr-defined]
    install_executor(loop)
    now = loop._default_executor  # type: ignore[attr-defined]
    assert now is not before
    assert await asyncio.to_thread(lambda: threading.current_thread().name.startswith("asyncio"))
    now.shutdown()
    with pytest.raises(RuntimeError):
        before.submit(int)


async def test_a_pool_that_the_program_has_chosen_is_left_alone():
    loop, chosen = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="mine")
    loop.set_default_executor(chosen)
    install_executor(loop)
    assert loop._default_executor is chosen  # type: ignore[attr-defined]


@pytest.mark.backends("asyncio", "uvloop")
async def test_calls_outside_of_leaves_and_calls_that_end_have_no_line():
    async def tool(ctx: Context, value: object) -> int:
        return await asyncio.to_thread(lambda: 4)

    async def work(ctx: Context, value: None) -> int:
        assert await asyncio.to_thread(lambda: 3) == 3
        await leaf(ctx, tool)
        raise ValueError("to get a receipt")

    outcome = await settle(Context(), work, None)
    assert outcome.status == "failed"
    assert [entry.name for entry in outcome.receipt.entries] == ["run/tool"]


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_call_in_a_pool_of_the_programs_own_is_named():
    gate, let_go = Gate(), threading.Event()
    pool = ThreadPoolExecutor(1)

    def function() -> None:
        gate.open()
        let_go.wait(30)

    async def tool(ctx: Context, value: object) -> None:
        await asyncio.get_running_loop().run_in_executor(pool, function)

    stopped = await stop(tool, gate._event.is_set)
    let_go.set()
    [entry] = stopped.entries("executor")
    assert (entry.fate, entry.kind) == ("still_running", "thread")
    pool.shutdown()


async def test_a_call_that_ends_in_the_moment_of_the_stop_is_finished():
    begun = Gate()

    def function() -> None:
        begun.open()
        time.sleep(0.02)  # real time: it ends by itself, soon after the stop

    async def tool(ctx: Context, value: object) -> None:
        await asyncio.to_thread(function)

    stopped = await stop(tool, begun._event.is_set)
    assert stopped.fate("function") in ("finished", "stopped")
    assert stopped.receipt.still_running == ()
