"""What goes on when a run is over: tasks, threads and processes, each with a line in the receipt."""

import asyncio
import threading

import anyio.to_thread
import pytest

from safepoint.run import Context, Policy, leaf
from tests.kit.leaves import Gate, stop
from tests.kit.programs import printed


@pytest.mark.backends("asyncio", "uvloop", "eager")
@pytest.mark.parametrize("how", ["create_task", "shield"])
async def test_a_task_that_a_tool_leaves_behind_is_named_and_never_called_stopped(how):
    begun, end = asyncio.Event(), asyncio.Event()

    async def background() -> None:
        begun.set()
        await end.wait()

    async def tool(ctx: Context, value: object) -> None:
        task = asyncio.ensure_future(background())
        kept.append(task)
        if how == "shield":
            await asyncio.shield(task)
        await asyncio.get_running_loop().create_future()

    kept: list[asyncio.Future[None]] = []
    stopped = await stop(tool, begun.is_set)
    [entry] = stopped.entries("background")
    assert (entry.fate, entry.kind) == ("still_running", "task")
    assert entry.where is not None
    assert f"{__file__}:{background.__code__.co_firstlineno + 2}" in entry.where
    end.set()
    await asyncio.wait(kept)


async def test_a_task_is_named_although_its_starter_had_no_leaf_when_another_run_looked():
    go, idle, begun, end = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waiting(ctx: Context, value: object) -> None:
        idle.set()
        await asyncio.get_running_loop().create_future()

    async def background() -> None:
        begun.set()
        await end.wait()

    async def tool(ctx: Context, value: object) -> None:
        kept.append(asyncio.ensure_future(background()))
        await asyncio.get_running_loop().create_future()

    async def later() -> list[str]:
        await go.wait()
        return [entry.fate for entry in (await stop(tool, begun.is_set)).entries("background")]

    kept: list[asyncio.Future[None]] = []
    fates = asyncio.ensure_future(later())
    for _ in range(2):  # both look at the task of `later`, which no leaf has started
        assert (await stop(waiting, idle.is_set)).receipt.still_running == ()
    go.set()
    assert await fates == ["still_running"]
    end.set()
    await asyncio.wait(kept)


async def test_a_task_is_still_named_after_another_run_has_looked_at_it():
    idle, begun, go, end = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waiting(ctx: Context, value: object) -> None:
        idle.set()
        await asyncio.get_running_loop().create_future()

    async def background() -> None:
        begun.set()
        await end.wait()

    async def tool(ctx: Context, value: object) -> None:
        kept.append(asyncio.ensure_future(background()))
        await asyncio.get_running_loop().create_future()

    kept: list[asyncio.Future[None]] = []
    first = asyncio.ensure_future(stop(tool, go.is_set))
    await begun.wait()
    assert (await stop(waiting, idle.is_set)).receipt.still_running == ()  # it looks at the task, which is not its own
    go.set()
    [entry] = (await first).entries("background")
    assert entry.fate == "still_running"
    end.set()
    await asyncio.wait(kept)


async def test_a_policy_can_end_the_tasks_of_a_tool_with_it():
    begun = asyncio.Event()

    async def background() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def tool(ctx: Context, value: object) -> None:
        kept.append(asyncio.ensure_future(background()))
        await asyncio.get_running_loop().create_future()

    kept: list[asyncio.Future[None]] = []
    stopped = await stop(tool, begun.is_set, Policy(tasks="end"))
    assert kept[0].cancelled()
    assert stopped.entries("background") == []


async def test_tasks_that_end_with_their_tool_have_no_line():
    begun = asyncio.Event()

    async def child() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def tool(ctx: Context, value: object) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    stopped = await stop(tool, begun.is_set)
    assert stopped.receipt.still_running == ()


async def test_a_task_that_a_finished_leaf_left_behind_is_named_too():
    end = asyncio.Event()

    async def background() -> None:
        await end.wait()

    async def starts(ctx: Context, value: object) -> None:
        kept.append(asyncio.ensure_future(background()))

    async def tool(ctx: Context, value: object) -> None:
        await leaf(ctx, starts)
        await asyncio.get_running_loop().create_future()

    kept: list[asyncio.Future[None]] = []
    stopped = await stop(tool, lambda: kept)
    [entry] = stopped.entries("background")
    assert (entry.fate, entry.name) == ("still_running", "run/tool/starts/background")
    end.set()
    await asyncio.wait(kept)


async def test_a_task_of_somebody_else_is_not_named():
    async def background() -> None:
        await end.wait()

    end = asyncio.Event()
    other = asyncio.ensure_future(background())
    begun = asyncio.Event()

    async def tool(ctx: Context, value: object) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    stopped = await stop(tool, begun.is_set)
    assert stopped.entries("background") == []
    end.set()
    await other


async def test_a_thread_that_anyio_leaves_behind_is_named():
    gate, let_go = Gate(), threading.Event()

    def function() -> None:
        gate.open()
        let_go.wait(30)

    async def tool(ctx: Context, value: object) -> None:
        await anyio.to_thread.run_sync(function, abandon_on_cancel=True)

    stopped = await stop(tool, gate._event.is_set)
    let_go.set()
    [entry] = [entry for entry in stopped.receipt.still_running if entry.kind == "thread"]
    assert entry.where is not None
    assert __file__ in entry.where


async def test_a_plain_thread_that_a_tool_started_is_named():
    gate, let_go = Gate(), threading.Event()

    def function() -> None:
        gate.open()
        let_go.wait(30)

    async def tool(ctx: Context, value: object) -> None:
        threading.Thread(target=function, name="helper", daemon=True).start()
        await asyncio.get_running_loop().create_future()

    stopped = await stop(tool, gate._event.is_set)
    let_go.set()
    [entry] = stopped.entries("helper")
    assert (entry.fate, entry.kind) == ("still_running", "thread")
    assert entry.where is not None
    assert __file__ in entry.where


def test_a_program_that_nobody_saw_start_is_unknown():
    told = printed(
        """
        import asyncio, uvloop, time
        from safepoint import AbortController
        from safepoint.run import Context, leaf, settle

        async def tool(ctx, value):
            process = await asyncio.create_subprocess_exec("sleep", "300")
            started.append(process)
            await asyncio.get_running_loop().create_future()

        async def work(ctx, value):
            await leaf(ctx, tool)

        async def main():
            controller = AbortController()
            running = asyncio.ensure_future(settle(Context(signal=controller.signal), work, None))
            while not started:
                await asyncio.sleep(0.01)
            controller.abort("stop")
            outcome = await running
            for entry in outcome.receipt.entries:
                if entry.kind == "program":
                    print(entry.name, entry.fate, entry.pid == started[0].pid, "cannot be seen" in entry.note)
            started[0].kill()
            await started[0].wait()

        started = []
        uvloop.run(main())
        """
    )
    assert told == "sleep unknown True True"


def test_a_program_in_the_background_of_a_shell_that_has_ended_is_unknown_and_can_be_ended():
    told = printed(
        """
        import asyncio, os, subprocess
        from safepoint import AbortController
        from safepoint.run import Context, leaf, settle

        os.setsid()  # so that nobody else's programs are in this process group

        def shell():
            return int(subprocess.check_output("sleep 300 > /dev/null & echo $!", shell=True))

        def tool(ctx, value):
            started.append(shell())
            ctx.signal.wait(30)

        def other(ctx, value):
            started.append(0)
            ctx.signal.wait(30)

        async def stopped(tool):
            started.clear()
            controller = AbortController()

            async def work(ctx, value):
                await leaf(ctx, tool)

            running = asyncio.ensure_future(settle(Context(signal=controller.signal), work, None))
            while not started:
                await asyncio.sleep(0.01)
            controller.abort("stop")
            receipt = (await running).receipt
            found = [(entry.pid, entry.name, entry.fate) for entry in receipt.entries if entry.kind == "program"]
            return receipt, found

        async def main():
            before = shell()
            await asyncio.sleep(0.05)  # real time: the clock of process starts has ticks of 10 ms
            receipt, found = await stopped(tool)
            assert found == [(started[0], "sleep", "unknown")], found
            _, elsewhere = await stopped(other)
            assert elsewhere == [], elsewhere
            assert receipt.end_survivors() == ()
            os.kill(found[0][0], 0)  # it may be somebody else's, so it is ended only where that is wanted
            assert receipt.end_survivors(unknown=True) == ()
            assert not os.path.exists(f"/proc/{found[0][0]}") or "Z" in open(f"/proc/{found[0][0]}/stat").read()
            os.kill(before, 9)
            print("ended")

        started = []
        asyncio.run(main())
        """
    )
    assert told == "ended"


@pytest.mark.parametrize("moved", [-3600.0, 3600.0], ids=["back", "forward"])
def test_a_process_that_began_before_the_run_is_not_named_when_the_date_moves(moved):
    told = printed(
        f"""
        import asyncio, os, signal, time
        from multiprocessing.util import spawnv_passfds
        from safepoint.abort import use_clock
        from safepoint.run import Context, settle
        from safepoint.testing import FakeClock

        async def work(ctx, value):
            time.time = lambda now=time.time: now() + {moved}
            raise ValueError("to get a receipt")

        pid = spawnv_passfds(b"/bin/sleep", [b"sleep", b"60"], ())  # there is no audit event for this
        time.sleep(0.1)
        with use_clock(FakeClock()):
            first = asyncio.run(settle(Context(), work, None))
        second = asyncio.run(settle(Context(), work, None))
        print(len(first.receipt.entries), len(second.receipt.entries))
        os.kill(pid, signal.SIGKILL)
        """
    )
    assert told == "0 0"
