"""The audit hook: on whose account a start is, what it refuses, and that it hurts nobody else."""

import asyncio
import subprocess
import threading

import pytest

from safepoint.run import Context, Policy, leaf, settle
from tests.kit.leaves import Gate, stop
from tests.kit.programs import VERSIONS, printed, run_core, silent_server
from tests.kit.waiting import until


def test_it_is_installed_with_the_first_leaf_and_not_at_import():
    told = printed(
        """
        import sys
        installed = []
        real = sys.addaudithook
        sys.addaudithook = lambda hook: installed.append(hook) or real(hook)
        import asyncio, safepoint.run
        from safepoint.run import Context, leaf
        print(len(installed))

        async def tool(ctx, value):
            pass

        async def main():
            await leaf(Context(), tool)
            await leaf(Context(), tool)

        asyncio.run(main())
        print(len(installed))
        """
    )
    assert told.split() == ["0", "1"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_program_that_exits_while_an_abandoned_thread_runs_exits_without_a_word(version):
    ended = run_core(
        version,
        """
        import asyncio, logging, socket, threading
        from safepoint.abort import AbortController
        from safepoint.run.context import Context
        from safepoint.run.leaf import leaf
        from safepoint.run.policy import Policy
        from safepoint.run.settle import settle

        class Late:  # what the hook hears of when the interpreter has taken its module apart
            def __del__(self, sock=socket.socket()):
                sock.connect_ex(("127.0.0.1", 9))
                sock.close()

        def deaf(ctx, value):
            from safepoint.run.owned import hook  # its thread holds the module, which is emptied under it
            threading.Event().wait(60)

        async def work(ctx, value):
            await leaf(ctx, deaf, policy=Policy(abandon_after=0.05))

        async def main():
            controller = AbortController()
            asyncio.get_running_loop().call_later(0.05, controller.abort)
            print((await settle(Context(signal=controller.signal), work, None)).status)

        asyncio.run(main())
        logging.late = Late()  # of a module that was loaded before, so it is taken apart afterwards
        """,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "aborted\n", "")


def test_a_program_that_cannot_be_started_leaves_nothing_behind():
    async def tool(ctx: Context, value: object) -> None:
        with pytest.raises(FileNotFoundError):
            subprocess.run(["no-such-program-anywhere"], check=False)
        raise ValueError("to get a receipt")

    async def work(ctx: Context, value: None) -> None:
        await leaf(ctx, tool)

    outcome = asyncio.run(settle(Context(), work, None))
    assert outcome.status == "failed"
    assert [entry.kind for entry in outcome.receipt.entries] == ["await"]


async def test_an_async_tool_that_blocks_the_loop_starts_nothing_after_the_stop():
    begun, programs = Gate(), []

    async def tool(ctx: Context, value: object) -> None:
        begun.open()
        while True:
            programs.append(1)
            subprocess.run(["sleep", "0.05"], check=False)  # it never gives the loop a chance

    def stop_from_a_thread() -> None:
        begun._event.wait(20)
        controller.abort("stop")

    from safepoint import AbortController

    controller = AbortController()
    stopper = threading.Thread(target=stop_from_a_thread)
    stopper.start()

    async def work(ctx: Context, value: None) -> None:
        await leaf(ctx, tool)

    async with asyncio.timeout(10):
        outcome = await settle(Context(signal=controller.signal), work, None)
    stopper.join()
    assert outcome.status == "aborted"
    assert len(programs) < 20


async def test_a_task_that_outlives_its_leaf_may_connect_after_the_stop():
    with silent_server() as (url, taken):
        port = int(url.rstrip("/").rpartition(":")[2])
        go, begun = asyncio.Event(), asyncio.Event()

        async def background() -> None:
            await go.wait()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()

        async def tool(ctx: Context, value: object) -> None:
            kept.append(asyncio.ensure_future(background()))
            begun.set()
            await asyncio.get_running_loop().create_future()

        kept: list[asyncio.Future[None]] = []
        await stop(tool, begun.is_set)
        go.set()
        await kept[0]
        await until(lambda: taken)


async def test_a_leaf_that_may_finish_starts_programs_until_its_grace_is_over():
    codes: list[int] = []
    begun = Gate()

    def tool(ctx: Context, value: object) -> str:
        begun.open()
        ctx.signal.wait(20)
        codes.append(subprocess.run(["true"], check=False).returncode)
        return "finished"

    stopped = await stop(tool, begun._event.is_set, Policy(on_abort="finish", grace=10))
    assert codes == [0]
    assert stopped.fate("tool") == "finished"


async def test_inside_a_shield_programs_go_on_and_may_start():
    from safepoint import shield

    begun, codes = asyncio.Event(), []

    async def tool(ctx: Context, value: object) -> None:
        with shield(10):
            process = await asyncio.create_subprocess_exec("sleep", "0.3")
            begun.set()
            codes.append(await process.wait())
            second = await asyncio.create_subprocess_exec("true")
            codes.append(await second.wait())

    stopped = await stop(tool, begun.is_set)
    assert codes == [0, 0]
    assert stopped.outcome.status == "aborted"


async def test_a_task_of_a_shared_client_is_not_refused_for_the_leaf_that_first_used_it():
    with silent_server() as (url, _):
        port = int(url.rstrip("/").rpartition(":")[2])
        go, begun, ended = asyncio.Event(), asyncio.Event(), []

        async def background() -> None:
            await go.wait()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            ended.append("connected")
            writer.close()

        async def tool(ctx: Context, value: object) -> None:
            kept.append(asyncio.ensure_future(background()))
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                go.set()
                await kept[0]
                raise

        kept: list[asyncio.Future[None]] = []
        await stop(tool, begun.is_set)
        assert ended == ["connected"]
