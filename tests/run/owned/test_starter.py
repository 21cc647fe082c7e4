"""Who started a program: a stop ends no program under somebody who could not be kept from using what was cut."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from safepoint import AbortController
from safepoint.run import Context, Policy, leaf, settle
from tests.kit.leaves import Gate, stop
from tests.kit.programs import children, silent_server
from tests.kit.waiting import until
from tests.run.owned.test_programs import seconds

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
]


async def convert_and_upload(length: str, uploads: list[str]) -> None:
    process = await asyncio.create_subprocess_exec("sleep", length)
    await process.wait()
    uploads.append("uploaded")


def end(length: str) -> None:
    for pid in children(length):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("how", ["shield", "create_task"])
async def test_a_task_that_goes_on_keeps_its_program_and_both_are_named(how):
    length, uploads = seconds(), list[str]()
    tasks: list[asyncio.Task[None]] = []

    async def tool(ctx: Context, value: object) -> None:
        tasks.append(asyncio.ensure_future(convert_and_upload(length, uploads)))
        await (asyncio.shield(tasks[0]) if how == "shield" else asyncio.get_running_loop().create_future())

    stopped = await stop(tool, lambda: children(length))
    [program] = stopped.entries("sleep")
    assert [program.pid] == children(length)
    assert (program.fate, program.note) == ("still_running", "the code that started it still runs")
    assert stopped.fate("convert_and_upload") == "still_running"
    assert uploads == []
    end(length)
    await asyncio.wait(tasks)


@pytest.mark.backends("asyncio")
async def test_a_task_that_is_to_end_with_its_leaf_ends_before_its_program():
    length, uploads = seconds(), list[str]()

    async def tool(ctx: Context, value: object) -> None:
        await asyncio.shield(convert_and_upload(length, uploads))

    stopped = await stop(tool, lambda: children(length), Policy(tasks="end"))
    assert stopped.fate("sleep") == "stopped"
    assert children(length) == []
    assert uploads == []


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("how", ["gather", "TaskGroup"])
async def test_programs_of_tasks_that_the_tool_waits_for_end_with_them(how):
    lengths, uploads = [seconds(), seconds()], list[str]()

    async def tool(ctx: Context, value: object) -> None:
        if how == "gather":
            await asyncio.gather(*[convert_and_upload(length, uploads) for length in lengths])
            return
        async with asyncio.TaskGroup() as group:
            for length in lengths:
                group.create_task(convert_and_upload(length, uploads))

    stopped = await stop(tool, lambda: all(children(length) for length in lengths))
    assert [entry.fate for entry in stopped.entries("sleep")] == ["stopped", "stopped"]
    assert uploads == []


@pytest.mark.backends("asyncio")
async def test_a_program_that_a_tools_clean_up_waits_for_ends_when_the_task_has_ended_that_started_it():
    length, cleaned = seconds(), list[int]()

    async def tool(ctx: Context, value: object) -> None:
        processes: list[asyncio.subprocess.Process] = []

        async def convert() -> None:
            processes.append(await asyncio.create_subprocess_exec("sleep", length))
            await processes[0].wait()

        try:
            await asyncio.gather(convert())
        finally:
            cleaned.append(await processes[0].wait())

    stopped = await stop(tool, lambda: children(length))
    assert stopped.seconds < 5
    assert cleaned == [-15]


async def test_a_task_that_blocks_the_loop_with_a_program_does_not_hold_up_the_stop():
    length = seconds()
    controller = AbortController()

    async def blocks() -> None:
        subprocess.run(["sleep", length], check=False)

    async def tool(ctx: Context, value: object) -> None:
        await asyncio.gather(blocks())

    def stop_from_a_thread() -> None:
        while not children(length):
            pass
        controller.abort("stop")

    async def work(ctx: Context, value: None) -> None:
        await leaf(ctx, tool)

    stopper = threading.Thread(target=stop_from_a_thread)
    stopper.start()
    async with asyncio.timeout(10):
        outcome = await settle(Context(signal=controller.signal), work, None)
    stopper.join()
    assert outcome.status == "aborted"


async def test_a_program_whose_pid_is_not_known_yet_when_the_stop_comes_ends_too(monkeypatch):
    length, exists = seconds(), threading.Event()
    controller = AbortController()
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def slow(*args: object) -> int:
        pid: int = fork_exec(*args)
        exists.set()
        controller.signal.wait(10)
        time.sleep(0.05)  # real time: the programs are ended in another thread meanwhile
        return pid

    monkeypatch.setattr(subprocess, "_fork_exec", slow)

    async def blocks(ctx: Context, value: object) -> None:
        subprocess.run(["sleep", length], check=False, start_new_session=True)

    async def work(ctx: Context, value: None) -> None:
        await leaf(ctx, blocks)

    stopper = threading.Thread(target=lambda: exists.wait(10) and controller.abort("stop"))
    stopper.start()
    async with asyncio.timeout(10):
        outcome = await settle(Context(signal=controller.signal), work, None)
    stopper.join()
    assert outcome.status == "aborted"
    assert [entry.fate for entry in outcome.receipt.entries if entry.kind == "program"] == ["stopped"]
    assert children(length) == []


async def test_what_a_leaf_makes_of_a_program_that_was_starting_when_the_stop_came_is_dropped(monkeypatch):
    length, exists, go_on = seconds(), threading.Event(), threading.Event()
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def slow(*args: object) -> int:
        pid: int = fork_exec(*args)
        exists.set()
        go_on.wait(10)
        return pid

    monkeypatch.setattr(subprocess, "_fork_exec", slow)

    async def swallows(ctx: Context, value: object) -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.to_thread(subprocess.run, ["sleep", length])
        threading.Timer(0.1, go_on.set).start()  # real time: it has returned before its program has a pid
        return "converted"

    stopped = await stop(swallows, exists.is_set)
    assert stopped.fate("swallows") == "stopped"
    assert stopped.fate("sleep") == "stopped"
    assert children(length) == []


@pytest.mark.parametrize("how", ["finally", "ExitStack"])
async def test_a_program_that_a_clean_up_has_started_before_the_stop_runs_to_its_end(how):
    length, codes = "0.71" if how == "finally" else "0.72", list[int]()

    def save() -> None:
        codes.append(subprocess.run(["sleep", length], check=False).returncode)

    def tool(ctx: Context, value: object) -> None:
        with ExitStack() as stack:
            if how == "ExitStack":
                stack.callback(save)
                return
        try:
            pass
        finally:
            save()

    stopped = await stop(tool, lambda: children(f"sleep\0{length}"))
    assert codes == [0]
    assert stopped.receipt.still_running == ()


async def test_a_program_that_was_started_before_the_clean_up_which_waits_for_it_ends():
    length, codes = seconds(), list[int]()

    def tool(ctx: Context, value: object) -> None:
        process = subprocess.Popen(["sleep", length])
        try:
            pass
        finally:
            codes.append(process.wait())

    stopped = await stop(tool, lambda: children(length))
    assert codes == [-15]
    assert stopped.fate("sleep") == "stopped"


async def test_a_program_that_was_started_while_a_lock_is_held_without_a_block_is_left_until_it_is_released():
    lock, used = threading.Lock(), list[int]()

    def tool(ctx: Context, value: object) -> None:
        lock.acquire()
        code = subprocess.run(["sleep", "0.73"], check=False).returncode
        used.append(code)
        lock.release()

    await stop(tool, lambda: children("sleep\0000.73"))
    assert used == [0]
    assert not lock.locked()


async def test_a_program_that_is_waited_for_while_a_lock_is_held_without_a_block_is_left_until_it_is_released():
    lock, used = threading.Lock(), list[int]()

    def tool(ctx: Context, value: object) -> None:
        with subprocess.Popen(["sleep", "0.74"]) as program:
            lock.acquire()
            code = program.wait()
            used.append(code)
            lock.release()

    await stop(tool, lambda: lock.locked() and children("sleep\0000.74"))
    assert used == [0]
    assert not lock.locked()


async def test_a_program_in_a_tools_own_context_manager_ends_and_the_next_line_does_not_run():
    length, used = seconds(), list[str]()

    @contextmanager
    def converted() -> Iterator[str]:
        subprocess.run(["sleep", length], check=False)
        used.append("next line")
        yield "out.mp4"

    def tool(ctx: Context, value: object) -> None:
        with converted() as path:
            used.append(path)

    stopped = await stop(tool, lambda: children(length))
    assert stopped.fate("sleep") == "stopped"
    if sys.version_info >= (3, 12):  # on 3.11 the exception may come one line late; the value is dropped all the same
        assert used == []


async def test_a_program_in_a_tools_own_enter_method_is_left_until_that_has_returned():
    used: list[int] = []

    class Converted:
        def __enter__(self) -> int:
            return subprocess.run(["sleep", "0.74"], check=False).returncode

        def __exit__(self, *error: object) -> None:
            pass

    def tool(ctx: Context, value: object) -> None:
        with Converted() as code:
            used.append(code)

    await stop(tool, lambda: children("sleep\0000.74"))
    assert used in ([], [0])


async def test_a_connection_in_a_tools_own_context_manager_is_freed():
    @contextmanager
    def downloaded(url: str) -> Iterator[bytes]:
        data = urllib.request.urlopen(url).read()
        used.append(data)
        yield data

    def tool(ctx: Context, value: object) -> None:
        with downloaded(url) as data:
            used.append(data)

    used: list[bytes] = []
    with silent_server() as (url, taken):
        stopped = await stop(tool, lambda: taken, Policy(abandon_after=10))
        assert stopped.fate("tool") == "stopped"
        assert used == []


async def test_a_stream_whose_headers_have_not_come_yet_is_freed():
    import httpx

    def tool(ctx: Context, value: object) -> None:
        with httpx.Client(timeout=60) as client, client.stream("GET", url) as response:
            response.read()

    with silent_server() as (url, taken):
        stopped = await stop(tool, lambda: taken, Policy(abandon_after=10))
        assert stopped.fate("tool") == "stopped"


async def test_no_connection_is_ended_while_a_lock_is_held_without_a_block():
    lock, gate = threading.Lock(), Gate()

    def tool(ctx: Context, value: object) -> None:
        lock.acquire()
        data = urllib.request.urlopen(url).read()
        try:
            used.append(data)
        finally:
            lock.release()

    used: list[bytes] = []
    with silent_server() as (url, taken):
        running = asyncio.ensure_future(stop(tool, lambda: taken, Policy(abandon_after=0.5)))
        stopped = await running
        [entry] = stopped.entries("tool")
        assert entry.fate == "still_running"
        assert entry.where is not None
        for connection in taken:
            connection.sendall(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nwhole")
        await until(lambda: not lock.locked())
    gate.open()
