"""Functions that a leaf hands to other threads are on its account, everybody else's run as ever."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from safepoint.run import Context, detached, leaf, settle
from tests.kit.leaves import Gate, stop
from tests.kit.programs import children
from tests.kit.waiting import until
from tests.run.owned.test_programs import seconds


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


def own_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def custom_default() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("how", ["alone", "gather", "shield", "TaskGroup"])
@pytest.mark.parametrize("pool", [lambda: None, own_pool, custom_default], ids=["default", "own", "custom default"])
async def test_every_call_behind_an_await_is_on_the_account_and_is_interrupted(pool, how):
    begun: list[Gate] = []

    def function() -> None:
        begun.append(Gate())
        while True:
            time.sleep(0.005)  # real time: a function that has to be interrupted

    async def tool(ctx: Context, value: object) -> None:
        loop, executor = asyncio.get_running_loop(), pool()
        if how == "alone":
            await loop.run_in_executor(executor, function)
        elif how == "shield":
            await asyncio.shield(loop.run_in_executor(executor, function))
        elif how == "gather":
            await asyncio.gather(*[loop.run_in_executor(executor, function) for _ in range(2)])
        else:
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(in_executor(executor, function))

    async def in_executor(executor: ThreadPoolExecutor | None, function: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(executor, function)

    number = 1 if how in ("alone", "shield") else 2
    stopped = await stop(tool, lambda: len(begun) == number)
    assert [entry.fate for entry in stopped.entries("function")] == ["stopped"] * number
    assert stopped.receipt.still_running == ()


@pytest.mark.backends("asyncio", "uvloop")
async def test_calls_that_cannot_be_interrupted_are_named_one_by_one():
    gates, let_go = [Gate(), Gate()], threading.Event()
    pool = ThreadPoolExecutor(2)

    def function(gate: Gate) -> None:
        gate.open()
        let_go.wait(30)

    async def tool(ctx: Context, value: object) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[loop.run_in_executor(pool, function, gate) for gate in gates])

    stopped = await stop(tool, lambda: all(gate._event.is_set() for gate in gates))
    let_go.set()
    assert [entry.fate for entry in stopped.entries("function")] == ["still_running", "still_running"]
    assert all(__file__ in (entry.where or "") for entry in stopped.entries("function"))
    pool.shutdown()


async def test_what_belongs_to_the_application_is_on_nobodys_account():
    gate, let_go = Gate(), threading.Event()
    pool = ThreadPoolExecutor(2)

    def function() -> None:
        gate.open()
        let_go.wait(30)

    async def tool(ctx: Context, value: object) -> None:
        with detached():
            threading.Thread(target=function, daemon=True).start()
            pool.submit(function)
            asyncio.get_running_loop().run_in_executor(pool, function)
        await asyncio.get_running_loop().create_future()

    stopped = await stop(tool, gate._event.is_set)
    let_go.set()
    assert [entry.name for entry in stopped.receipt.entries] == ["run/tool"]
    pool.shutdown()


async def test_a_process_pool_works_as_ever():
    loop = asyncio.get_running_loop()
    seen: list[object] = []

    class Pool(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            seen.append(fn)
            done: Future[Any] = Future()
            done.set_result(fn(*args, **kwargs))
            return done

    async def tool(ctx: Context, value: object) -> object:
        return await loop.run_in_executor(Pool(), int, "3")

    async def work(ctx: Context, value: None) -> object:
        return await leaf(ctx, tool)

    outcome = await settle(Context(), work, None)
    assert outcome.unwrap() == 3
    assert seen == [int]


@pytest.mark.parametrize("how", ["map", "submit", "thread"])
async def test_programs_of_a_tools_own_threads_end_with_it_and_what_is_made_of_them_is_dropped(how):
    length, after = seconds(), list[str]()

    def convert(_: object = None) -> None:
        subprocess.run(["sleep", length], check=False)
        after.append("uploaded")

    def tool(ctx: Context, value: object) -> None:
        if how == "thread":
            thread = threading.Thread(target=convert, name="helper")
            thread.start()
            thread.join()
        else:
            with ThreadPoolExecutor(2) as pool:
                if how == "map":
                    list(pool.map(convert, range(4)))
                else:
                    pool.submit(subprocess.run, ["sleep", length]).result()
        after.append("done")

    stopped = await stop(tool, lambda: len(children(length)) == (2 if how == "map" else 1))
    assert stopped.seconds < 5
    assert children(length) == []
    assert {entry.fate for entry in stopped.entries("sleep")} == {"stopped"}
    assert stopped.fate("tool") == "stopped"
    if sys.version_info >= (3, 12):  # on 3.11 the exception may come one line late; the value is dropped all the same
        assert after == []


async def test_a_neighbours_program_in_a_shared_pool_goes_on():
    mine, theirs = seconds(), seconds()
    pool = ThreadPoolExecutor(2)

    def tool(ctx: Context, value: object) -> None:
        pool.submit(subprocess.run, ["sleep", mine]).result()  # starts the threads of the pool

    def neighbour() -> int:
        return subprocess.run(["sleep", theirs], check=False).returncode

    running = asyncio.ensure_future(stop(tool, lambda: children(theirs)))
    await until(lambda: children(mine))
    other = pool.submit(neighbour)
    await running
    assert children(mine) == []
    [pid] = children(theirs)
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.wrap_future(other) == -signal.SIGKILL
    pool.shutdown()


async def test_a_helper_is_not_interrupted_and_may_connect_after_the_stop():
    begun, let_go, ended = Gate(), threading.Event(), list[str]()

    def serve() -> None:
        begun.open()
        let_go.wait(30)
        with socket.create_connection(address):
            ended.append("connected")

    def tool(ctx: Context, value: object) -> None:
        threading.Thread(target=serve, daemon=True).start()
        while True:
            time.sleep(0.005)  # real time: a function that has to be interrupted

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        await stop(tool, begun._event.is_set)
        let_go.set()
        await until(lambda: ended)


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
