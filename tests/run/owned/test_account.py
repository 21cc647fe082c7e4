"""The account of a leaf: what it lists, what it ends, and what it says of it later."""

import asyncio
import os
import subprocess
import threading
import time

from safepoint import run_process
from safepoint.run import Completed, Context, Policy, leaf, settle
from safepoint.wire import outcome_from_json, outcome_to_json
from tests.kit.leaves import LeafRig, stop
from tests.kit.programs import alive, children
from tests.kit.waiting import until
from tests.run.owned.test_programs import seconds


async def test_a_receipt_that_is_asked_for_later_says_that_a_program_has_ended_since():
    bench, started = LeafRig(), []

    def tool(ctx: Context, value: object) -> None:
        started.append(subprocess.Popen(["sleep", "300"]))

    await leaf(bench.ctx, tool)
    assert [(entry.kind, entry.fate) for entry in bench.entries()] == [
        ("thread", "finished"),
        ("program", "still_running"),
    ]
    started[0].kill()
    started[0].wait()
    assert [entry.fate for entry in bench.entries()] == ["finished", "finished"]


async def test_what_outlives_a_program_that_was_stopped_is_listed_by_its_pid():
    length = seconds()

    async def tool(ctx: Context, value: object) -> None:
        await run_process(["sh", "-c", f"setsid sleep {length} & sleep 300"], signal=ctx.signal)

    stopped = await stop(tool, lambda: children(f"sleep\0{length}"))
    [entry] = [entry for entry in stopped.receipt.entries if entry.kind == "program"]
    assert (entry.fate, entry.name) == ("still_running", "run/tool/sleep")
    assert entry.pid in children(length)
    assert "outlived" in entry.note
    assert stopped.receipt.end_survivors() == ()
    assert children(length) == []


async def test_what_outlives_a_program_with_an_empty_environment_is_listed_too():
    length = seconds()

    async def tool(ctx: Context, value: object) -> None:
        await run_process(["sh", "-c", f"env -i setsid sleep {length} & sleep 300"], signal=ctx.signal)

    stopped = await stop(tool, lambda: children(f"sleep\0{length}"))
    [entry] = stopped.receipt.still_running
    assert entry.pid in children(length)
    stopped.receipt.end_survivors()
    assert children(length) == []


async def test_what_a_program_that_has_finished_left_running_is_listed():
    length = seconds()

    async def tool(ctx: Context, value: object) -> None:
        await run_process(["sh", "-c", f"sleep {length} >&- 2>&- & echo ok"], signal=ctx.signal)
        raise ValueError("to get a receipt")

    async def work(ctx: Context, value: None) -> None:
        await leaf(ctx, tool)

    outcome = await settle(Context(), work, None)
    assert outcome.status == "failed"
    [entry] = outcome.receipt.still_running
    assert entry.pid in children(length)
    outcome.receipt.end_survivors()
    await until(lambda: not children(length))


async def test_what_outlives_an_isolated_process_is_listed():
    folder: list[str] = []
    stopped = await stop(isolated, lambda: folder or children(ISOLATED), Policy(isolation="process"))
    survivors = [entry for entry in stopped.receipt.still_running if entry.pid is not None]
    assert [entry.pid for entry in survivors] == children(ISOLATED)
    assert stopped.receipt.end_survivors() == ()
    assert children(ISOLATED) == []


ISOLATED = "sleep\000398.123456"


def isolated(ctx: Context, value: object) -> None:
    subprocess.Popen(["env", "-i", "setsid", "sleep", "398.123456"])
    time.sleep(60)  # real time: until it is killed


async def test_programs_that_were_ended_by_a_stop_are_stopped_and_not_finished():
    length = seconds()

    def tool(ctx: Context, value: object) -> None:
        with subprocess.Popen(["sleep", length]) as process:
            process.wait()

    stopped = await stop(tool, lambda: children(length))
    [entry] = stopped.entries("sleep")
    assert entry.fate == "stopped"
    assert entry.seconds is not None
    assert not alive(entry.pid or 0)


async def test_a_run_that_has_completed_names_what_its_leaves_kept():
    started: list[subprocess.Popen[bytes]] = []

    def start(ctx: Context, value: object) -> str:
        started.append(subprocess.Popen(["sleep", "300"]))
        subprocess.run(["true"], check=False)
        return "started"

    async def work(ctx: Context, value: None) -> object:
        return await leaf(ctx, start)

    outcome = await settle(Context(), work, None)
    assert outcome.status == "completed"
    assert outcome == Completed("started", started_at=outcome.started_at, finished_at=outcome.finished_at)
    [entry] = outcome.receipt.entries
    assert (entry.kind, entry.fate, entry.pid) == ("program", "still_running", started[0].pid)
    read = outcome_from_json(outcome_to_json(outcome))
    assert read.receipt.entries == (entry,)
    assert read.receipt.end_survivors() == ()
    assert not alive(started[0].pid)
    started[0].wait()


async def test_a_run_of_which_nothing_goes_on_says_nothing_more_on_the_wire():
    async def work(ctx: Context, value: None) -> object:
        return await leaf(ctx, lambda ctx, value: 3)

    outcome = await settle(Context(), work, None)
    assert outcome.receipt.entries == ()
    assert "receipt" not in outcome_to_json(outcome)


async def test_a_run_inside_of_a_run_names_what_is_its_own():
    running, end = asyncio.Event(), asyncio.Event()

    async def neighbour(ctx: Context, value: object) -> None:
        running.set()
        await end.wait()

    async def inner(ctx: Context, value: None) -> int:
        return 4

    async def work(ctx: Context, value: None) -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf(ctx, neighbour))
            await running.wait()
            outcome = await settle(ctx.child("inner"), inner, None)
            end.set()
        return outcome.receipt.entries

    outcome = await settle(Context(), work, None)
    assert outcome.unwrap() == ()


async def test_the_accounts_of_many_leaves_do_not_add_up():
    bench = LeafRig()

    def tool(ctx: Context, value: object) -> None:
        subprocess.run(["true"], check=False)

    for _ in range(30):
        await leaf(bench.ctx, tool)
    bench.entries()
    assert bench.ctx.receipt_builder._updaters == {}


async def test_a_program_and_the_thread_that_waits_for_it_end_together_behind_an_await():
    length, after = seconds(), []

    def function() -> None:
        subprocess.run(["sleep", length], check=False)
        after.append(1)

    async def tool(ctx: Context, value: object) -> None:
        await asyncio.to_thread(function)

    stopped = await stop(tool, lambda: children(length))
    assert children(length) == []
    assert (stopped.fate("function"), stopped.fate("sleep")) == ("stopped", "stopped")
    assert after == []


def test_a_fork_inside_a_leaf_does_not_take_the_account_along():
    def tool(ctx: Context, value: object) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if threading.active_count() == 1 else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def main() -> int:
        code: int = await leaf(Context(), tool)
        return code

    assert asyncio.run(main()) == 0
