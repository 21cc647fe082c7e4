"""Programs that a tool starts: which process is which, and that a stop ends them with all that descends from them."""

import asyncio
import os
import queue
import random
import signal
import subprocess
import sys
import time
from multiprocessing.util import spawnv_passfds

import pytest

from safepoint.run import Context, Policy, Receipt, detached, leaf
from tests.kit.leaves import LeafRig, stop
from tests.kit.programs import alive, children
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
]


def seconds() -> str:
    """A length of sleep that no other program on the machine has: by it the program is found."""
    return f"{random.uniform(300, 400):.9f}"


def collect(pid: int) -> None:
    os.waitpid(pid, 0)


async def test_a_program_in_subprocess_run_ends_with_the_stop_and_the_next_line_does_not_run():
    length, after = seconds(), []

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["sleep", length], check=False)
        after.append("uploaded")

    stopped = await stop(tool, lambda: children(length))
    assert stopped.seconds < 2
    assert children(length) == []
    assert stopped.fate("sleep") == "stopped"
    assert stopped.entries("sleep")[0].pid is not None
    assert stopped.fate("tool") == "stopped"
    if sys.version_info >= (3, 12):  # on 3.11 the exception may come one line late; the value is dropped all the same
        assert after == []


async def test_a_loop_of_programs_starts_no_more_of_them_after_the_stop():
    begun: list[float] = []

    def tool(ctx: Context, value: object) -> None:
        while True:
            begun.append(time.monotonic())
            subprocess.run(["sleep", "0.2"], check=False)

    stopped = await stop(tool, lambda: len(begun) > 1)
    assert stopped.seconds < 2
    count = len(begun)
    assert stopped.fate("tool") == "stopped"
    await until(lambda: not children("sleep\0000.2"))
    assert len(begun) == count


@pytest.mark.backends("asyncio")
async def test_a_program_that_an_async_tool_awaits_ends_with_the_stop():
    length = seconds()

    async def tool(ctx: Context, value: object) -> None:
        process = await asyncio.create_subprocess_exec("sleep", length)
        await process.wait()

    stopped = await stop(tool, lambda: children(length))
    assert stopped.seconds < 2
    assert children(length) == []
    assert (stopped.fate("tool"), stopped.fate("sleep")) == ("stopped", "stopped")


@pytest.mark.parametrize("start", ["system", "posix_spawn", "fork"])
async def test_a_program_that_was_forked_by_hand_is_known_by_its_thread(start):
    length = seconds()

    def tool(ctx: Context, value: object) -> None:
        if start == "system":
            os.system(f"sleep {length}")
            return
        if start == "posix_spawn":
            pid = os.posix_spawnp("sleep", ["sleep", length], os.environ)
        else:
            pid = os.fork()
            if pid == 0:
                os.execvp("sleep", ["sleep", length])
        os.waitpid(pid, 0)

    stopped = await stop(tool, lambda: children(f"sleep\0{length}"))
    assert stopped.seconds < 3
    assert children(f"sleep\0{length}") == []
    assert [entry.fate for entry in stopped.receipt.entries if entry.kind == "program"] == ["stopped"]


async def test_all_that_descends_from_a_program_ends_even_outside_of_its_group_and_environment():
    length, other = seconds(), seconds()

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["sh", "-c", f"env -i setsid sleep {length} & sleep {other}"], check=False)

    stopped = await stop(tool, lambda: children(f"sleep\0{length}") and children(f"sleep\0{other}"))
    assert stopped.seconds < 3
    assert children(length) == []


async def test_a_program_that_ignores_term_is_killed():
    length = seconds()

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["sh", "-c", f"trap '' TERM; echo; sleep {length}; sleep {length}"], check=False)

    stopped = await stop(tool, lambda: children(f"sleep\0{length}"))
    assert 1.9 < stopped.seconds < 5
    assert children(length) == []


async def test_a_neighbours_program_is_not_touched():
    length, neighbour = seconds(), subprocess.Popen(["sleep", "300"])

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["sleep", length], check=False)

    try:
        await stop(tool, lambda: children(length))
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


async def test_two_leaves_side_by_side_end_their_own_programs_only():
    mine, theirs = seconds(), seconds()

    def other_tool(ctx: Context, value: object) -> None:
        subprocess.run(["sleep", theirs], check=False)

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["sleep", mine], check=False)

    other = asyncio.ensure_future(stop(other_tool, lambda: mine in ended))
    ended: list[str] = []
    await until(lambda: children(theirs))
    await stop(tool, lambda: children(mine))
    assert children(mine) == []
    assert len(children(theirs)) == 1
    ended.append(mine)
    await other
    assert children(theirs) == []


async def test_a_finished_leaf_keeps_its_program_and_the_receipt_names_it_and_can_end_it():
    length, started = seconds(), []

    async def tool(ctx: Context, value: object) -> None:
        from safepoint.run import leaf

        def start(ctx: Context, value: object) -> None:
            started.append(subprocess.Popen(["sleep", length]))

        await leaf(ctx, start)
        finished.set()
        await asyncio.get_running_loop().create_future()

    finished = asyncio.Event()
    stopped = await stop(tool, finished.is_set)
    [entry] = stopped.entries("sleep")
    assert (entry.fate, entry.pid) == ("still_running", started[0].pid)
    assert alive(started[0].pid)
    assert entry in stopped.receipt.still_running
    assert Receipt.from_json(stopped.receipt.to_json()).end_survivors() == ()
    assert not alive(started[0].pid)
    started[0].wait()


async def test_a_program_that_belongs_to_the_application_is_left_alone():
    length = seconds()

    def tool(ctx: Context, value: object) -> None:
        with detached():
            started.append(subprocess.Popen(["sleep", length]))
        while True:
            time.sleep(0.01)  # real time: a tool that has to be interrupted

    started: list[subprocess.Popen[bytes]] = []
    stopped = await stop(tool, lambda: started and children(length))
    try:
        assert stopped.entries("sleep") == []
        assert started[0].poll() is None
    finally:
        started[0].kill()
        started[0].wait()


async def test_a_policy_can_leave_programs_running_and_they_are_named():
    length = seconds()

    def tool(ctx: Context, value: object) -> None:
        started.append(subprocess.Popen(["sleep", length]))
        while True:
            time.sleep(0.01)  # real time: a tool that has to be interrupted

    started: list[subprocess.Popen[bytes]] = []
    stopped = await stop(tool, lambda: started and children(length), Policy(programs="leave"))
    try:
        [entry] = stopped.entries("sleep")
        assert (entry.fate, entry.pid) == ("still_running", started[0].pid)
        assert "policy" in entry.note
        assert started[0].poll() is None
    finally:
        started[0].kill()
        started[0].wait()


async def test_clean_up_after_the_interruption_may_start_programs():
    cleaned: list[int] = []

    def tool(ctx: Context, value: object) -> None:
        begun.append(1)
        try:
            while True:
                time.sleep(0.005)  # real time: a tool that has to be interrupted
        finally:
            cleaned.append(subprocess.run(["true"], check=False).returncode)

    begun: list[int] = []
    stopped = await stop(tool, lambda: begun)
    assert cleaned == [0]
    assert stopped.fate("tool") == "stopped"


async def test_a_tool_that_only_sees_the_signal_keeps_its_programs():
    length = seconds()

    def tool(ctx: Context, value: object) -> int:
        with subprocess.Popen(["sleep", length]) as process:
            ctx.signal.wait(30)
            assert process.poll() is None
            process.terminate()
        return process.returncode

    stopped = await stop(tool, lambda: children(length), Policy(on_abort="cooperate"))
    assert stopped.fate("tool") == "finished"


async def test_its_own_time_limit_ends_a_tools_programs_too():
    length = seconds()

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["sleep", length], check=False)

    stopped = await stop(tool, lambda: False, Policy(timeout=0.5))
    assert stopped.outcome.status == "failed"
    await until(lambda: not children(length))


async def test_processes_of_a_pool_are_named_and_never_ended():
    import multiprocessing

    pool = multiprocessing.get_context("fork")

    def tool(ctx: Context, value: object) -> None:
        worker = pool.Process(target=time.sleep, args=(300,))  # real time: until it is killed
        worker.start()
        started.append(worker)
        while True:
            time.sleep(0.01)  # real time: a tool that has to be interrupted

    started: list[multiprocessing.process.BaseProcess] = []
    stopped = await stop(tool, lambda: started)
    try:
        [entry] = [entry for entry in stopped.receipt.entries if entry.kind == "program"]
        assert (entry.fate, entry.pid) == ("still_running", started[0].pid)
        assert started[0].is_alive()
    finally:
        started[0].kill()
        started[0].join()


@pytest.mark.parametrize("collected", [False, True], ids=["own child runs", "own child is collected"])
async def test_a_neighbours_process_that_nobody_sees_start_is_not_taken_for_a_forked_one(collected):
    begun, length = asyncio.Event(), seconds()
    own: list[int] = []

    async def tool(ctx: Context, value: object) -> None:
        own.append(os.posix_spawnp("true" if collected else "sleep", ["sleep", length], os.environ))
        if collected:
            collect(own[0])
        begun.set()
        await asyncio.get_running_loop().create_future()

    running = asyncio.ensure_future(stop(tool, lambda: neighbours))
    neighbours: list[int] = []
    await begun.wait()
    neighbours.append(spawnv_passfds(b"/bin/sleep", [b"sleep", b"300"], ()))  # there is no audit event for this
    try:
        stopped = await running
        assert alive(neighbours[0])
        ended = [entry.pid for entry in stopped.receipt.entries if entry.fate == "stopped" and entry.pid is not None]
        assert ended == ([] if collected else own)
    finally:
        os.kill(neighbours[0], signal.SIGKILL)
        collect(neighbours[0])
        if not collected:
            collect(own[0])


async def test_an_item_is_not_lost_because_a_program_in_the_background_ends():
    length, inbox = seconds(), queue.SimpleQueue[int]()
    done: list[int] = []
    started: list[int] = []

    def tool(ctx: Context, value: object) -> None:
        background = subprocess.Popen(["sleep", length])
        started.append(background.pid)
        try:
            while True:
                item = inbox.get()
                done.append(item)
        finally:
            background.wait()

    for number in range(5):
        started.clear()
        running = asyncio.ensure_future(stop(tool, lambda: started))
        # By its pid: for a moment after its start a program has no command line to find it by.
        await until(lambda: started and not alive(started[0]))  # the stop has ended it
        inbox.put(number)
        await running
        assert len(done) + inbox.qsize() == number + 1


async def test_a_forked_program_of_a_finished_leaf_is_known():
    pids: list[int] = []

    def start(ctx: Context, value: object) -> None:
        pids.append(os.posix_spawnp("sleep", ["sleep", "300"], os.environ))

    bench = LeafRig()
    await leaf(bench.ctx, start)
    [_, entry] = bench.entries()
    assert (entry.kind, entry.fate, entry.pid) == ("program", "still_running", pids[0])
    assert "interruption" not in entry.note
    os.kill(pids[0], signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pids[0], 0)
