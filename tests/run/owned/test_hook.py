"""The audit hook: on whose account a start is, what it refuses, and that it hurts nobody else."""

import asyncio
import os
import socket
import subprocess
import threading

import pytest

from safepoint.abort.accounting import current_account
from safepoint.run import AbortInterrupt, Context, Policy, detached, leaf, settle
from safepoint.run.owned import hook
from tests.abort.programs import VERSIONS, printed, run_core
from tests.run.owned.lab import Gate, silent_server, stop, until


class Leaf:
    """A leaf as the hook sees it, which writes down what it is told."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.programs: list[str] = []
        self.threads: list[threading.Thread] = []

    def own(self) -> "Leaf":
        return self

    def add_program(self, program: object) -> None:
        self.programs.append(program.name)  # type: ignore[attr-defined]

    def helper(self, fn: object, *, thread: threading.Thread | None = None) -> object:
        if thread is not None:
            self.threads.append(thread)
        return fn

    keeps = ""
    task = None

    def call_here(self) -> None:
        return None

    def expect_program(self, keep: str, starter: object) -> None:
        self.programs.append("forked")

    def refuse_if_stopped(self, what: str) -> None:
        if self.refuses:
            raise AbortInterrupt


def under(account: Leaf) -> None:
    hook.install()
    current_account.set(account)  # type: ignore[arg-type]  # in a context of its own: see `in_context`


def in_context(account: Leaf, fn: object) -> object:
    import contextvars

    def run() -> object:
        under(account)
        return fn()  # type: ignore[operator]

    return contextvars.copy_context().run(run)


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


@pytest.mark.parametrize(
    ("command", "name"),
    [(["sleep", "0"], "sleep"), ("true and more", "sh"), ([b"true"], "true")],
    ids=["list", "shell", "bytes"],
)
def test_a_program_is_on_the_account_of_the_leaf_that_starts_it(command, name):
    account = Leaf()
    in_context(account, lambda: subprocess.run(command, shell=isinstance(command, str), check=False))
    assert account.programs == [name]
    subprocess.run(["true"], check=False)  # on nobody's account
    assert account.programs == [name]


def test_what_belongs_to_the_application_is_on_nobodys_account():
    account = Leaf()

    def start() -> None:
        with detached():
            subprocess.run(["true"], check=False)

    in_context(account, start)
    assert account.programs == []


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


def test_a_refusal_comes_out_where_the_program_would_start_and_leaves_no_descriptor_open():
    account = Leaf(refuses=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(AbortInterrupt):
            in_context(account, lambda: subprocess.run(["true"], capture_output=True, check=False))
        with pytest.raises(AbortInterrupt):
            in_context(account, lambda: os.system("true"))
        with socket.socket() as mine, pytest.raises(AbortInterrupt):
            in_context(account, lambda mine=mine: mine.connect(("127.0.0.1", 9)))
    assert len(os.listdir("/proc/self/fd")) == before
    assert account.programs == []


def test_a_thread_is_on_the_account_of_the_leaf_that_starts_it_but_threads_of_pools_are_not():
    from concurrent.futures import ThreadPoolExecutor

    account = Leaf()

    def start() -> None:
        thread = threading.Thread(target=int, name="mine")
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()

    in_context(account, start)
    assert [thread.name for thread in account.threads] == ["mine"]


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


def test_a_refused_connect_leaves_the_socket_as_it_was():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        with pytest.raises(AbortInterrupt):
            in_context(Leaf(refuses=True), lambda: mine.connect(("127.0.0.1", 9)))
        assert mine.fileno() >= 0


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
