"""Limits are limits, and ends are told as they were: what a leaf's caller gets, and what the receipt says of it."""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import pytest

from safepoint import Agent, tool
from safepoint.abort import AbortController, AbortError
from safepoint.errors import UsageError
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Aborted, ChildDied, Context, Failed, LeafExit, LeafTimeout, Policy, TimedOut, leaf, settle
from tests.kit.leaves import LeafRig, stop
from tests.kit.waiting import until
from tests.run import leaf_functions

LONG = 30


class Deaf:
    """A function that is inside a library, for long; the test lets it go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self, ctx: Context, value: object) -> str:
        self.begun.set()
        self.let_go.wait(LONG)
        return "late"


async def test_a_leafs_own_limit_holds_for_a_function_inside_a_library():
    bench, deaf, start = LeafRig(), Deaf(), time.monotonic()
    with pytest.raises(LeafTimeout, match=r"limit of 0\.2 s"):
        await leaf(bench.ctx, deaf, name="deaf", policy=Policy(timeout=0.2))
    assert time.monotonic() - start < 5
    [entry] = bench.entries()
    deaf.let_go.set()
    assert entry.fate == "still_running"
    assert not bench.ctx.signal.aborted


async def test_the_time_limit_of_a_run_holds_for_a_tool_inside_a_library():
    deaf = Deaf()

    @tool
    def slow() -> str:
        """Slow."""
        return deaf(Context(), None)

    start = time.monotonic()
    outcome = await Agent(ScriptedModel([Call("slow")]), tools=[slow]).run("go", timeout=0.3)
    assert time.monotonic() - start < 5
    assert isinstance(outcome, TimedOut)
    [entry] = outcome.receipt.still_running
    deaf.let_go.set()
    assert entry.name == "agent/slow"
    assert __file__ in (entry.where or "")


@pytest.mark.parametrize("around", ["leaf", "run"])
async def test_a_time_limit_around_it_holds_too(around):
    deaf = Deaf()

    @tool
    def slow() -> str:
        """Slow."""
        return deaf(Context(), None)

    start = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            if around == "leaf":
                await leaf(Context(), deaf)
            else:
                await Agent(ScriptedModel([Call("slow")]), tools=[slow]).run("go")
    assert time.monotonic() - start < 5
    deaf.let_go.set()


async def test_a_stop_waits_for_what_a_limit_would_leave_behind():
    deaf = Deaf()
    controller = AbortController()

    async def work(ctx: Context, value: None) -> object:
        return await leaf(ctx, deaf)

    running = asyncio.ensure_future(settle(Context(signal=controller.signal), work, None))
    await until(deaf.begun.is_set)
    controller.abort("stop")
    await asyncio.sleep(0.8)  # real time: longer than a limit would wait
    assert not running.done()
    deaf.let_go.set()
    assert (await running).status == "aborted"


@pytest.mark.parametrize("end", ["returns", "raises"])
async def test_what_completes_after_it_was_abandoned_is_finished(end):
    bench, begun, let_go = LeafRig(), threading.Event(), threading.Event()

    async def pay(ctx: Context, value: object) -> str:
        begun.set()
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.005)  # real time: it swallows what is to end it
            except asyncio.CancelledError:
                pass
        if end == "raises":
            raise ValueError("no money")
        return "paid"

    task = asyncio.ensure_future(leaf(bench.ctx, pay, policy=Policy(abandon_after=0.05)))
    await until(begun.is_set)
    bench.controller.abort("stop")
    with pytest.raises(AbortError):
        await task
    assert bench.fates() == ["still_running"]
    let_go.set()
    await until(lambda: bench.fates() == ["finished"])
    assert end.rstrip("s") in bench.entries()[0].note


def parse(ctx: Context, value: object) -> None:
    raise SystemExit(2)


async def parse_at_once(ctx: Context, value: object) -> None:
    raise SystemExit(2)


async def parse_later(ctx: Context, value: object) -> None:
    await asyncio.sleep(0)
    raise SystemExit(2)


EXITS: list[tuple[Callable[..., object], Policy]] = [
    (parse, Policy()),
    (parse, Policy(isolation="process")),
    (parse_at_once, Policy()),
    (parse_later, Policy()),
    (parse_later, Policy(on_abort="cooperate")),
    (parse_later, Policy(abandon_after=5)),
]


@pytest.mark.parametrize(
    ("work", "policy"), EXITS, ids=["thread", "process", "at once", "later", "cooperate", "task of its own"]
)
async def test_sys_exit_in_a_leaf_is_that_leafs_failure(work, policy):
    async def run(ctx: Context, value: None) -> None:
        with pytest.raises(LeafExit, match=rf"^{work.__name__} called sys.exit\(2\)$") as caught:
            await leaf(ctx, work, policy=policy)
        assert isinstance(caught.value.__cause__, SystemExit | ChildDied)
        await asyncio.sleep(0)  # the program goes on
        raise caught.value

    outcome = await settle(Context(), run, None)
    assert isinstance(outcome, Failed)
    [entry] = [entry for entry in outcome.receipt.entries if entry.name == f"run/{work.__name__}"]
    assert (entry.fate, entry.note) == ("finished", f"failed: LeafExit: {work.__name__} called sys.exit(2)")


async def test_a_process_that_ends_itself_without_sys_exit_has_died():
    async def run(ctx: Context, value: None) -> None:
        await leaf(ctx, leaf_functions.die, policy=Policy(isolation="process"))

    outcome = await settle(Context(), run, None)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ChildDied)
    assert (outcome.error.returncode, outcome.error.exit) == (3, None)


async def test_a_synchronous_wrapper_of_an_async_function_is_refused():
    async def body(ctx: Context, value: object) -> None:
        raise AssertionError("never runs")

    @functools.wraps(body)
    def wrapper(*args: object) -> object:
        return body(*args)  # type: ignore[arg-type]

    bench = LeafRig()
    work = functools.partial(lambda fn, ctx, value: fn(ctx, value), wrapper)
    with pytest.raises(UsageError, match="returned a coroutine"):
        await leaf(bench.ctx, work, name="wrapper")


class Later:
    def __await__(self) -> Iterator[None]:
        yield


def pieces() -> Iterator[int]:
    raise AssertionError("never runs")
    yield 1


async def async_pieces() -> AsyncIterator[int]:
    raise AssertionError("never runs")
    yield 1


@pytest.mark.parametrize(
    ("made", "called"),
    [(Later, "an awaitable"), (pieces, "a generator"), (async_pieces, "an async generator")],
    ids=["awaitable", "generator", "async generator"],
)
@pytest.mark.filterwarnings("error")
async def test_a_function_that_returns_what_has_not_run_yet_is_refused(made, called):
    bench = LeafRig()

    def wrapper(ctx: Context, value: object) -> object:
        return made()

    with pytest.raises(UsageError, match=f"run/wrapper returned {called}"):
        await leaf(bench.ctx, wrapper)
    [entry] = bench.entries()
    assert entry.fate == "finished"
    assert entry.note.startswith("failed: UsageError")


async def test_a_group_of_nothing_but_aborts_is_the_abort():
    begun = asyncio.Event()

    async def tool(ctx: Context, value: object) -> None:
        async def child() -> None:
            begun.set()
            await ctx.signal.sleep(LONG)

        async with anyio.create_task_group() as group:
            group.start_soon(child)
            group.start_soon(child)

    stopped = await stop(tool, begun.is_set)
    [entry] = stopped.entries("tool")
    assert (entry.fate, entry.note) == ("stopped", "")
    assert isinstance(stopped.outcome, Aborted)


async def test_a_signal_gives_its_own_error_for_a_group_of_nothing_but_aborts():
    controller = AbortController()

    async def child() -> None:
        await controller.signal.sleep(LONG)

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)
            tasks.start_soon(child)

    asyncio.get_running_loop().call_soon(controller.abort, "stop")
    with pytest.raises(AbortError, match="stop"):
        await controller.signal.run(group())


async def test_a_group_with_another_error_in_it_stays_what_it_is():
    controller = AbortController()

    async def child() -> None:
        try:
            await controller.signal.sleep(LONG)
        finally:
            raise ValueError("broken")

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)

    asyncio.get_running_loop().call_soon(controller.abort, "stop")
    with pytest.raises(BaseExceptionGroup):
        await controller.signal.run(group())


async def test_no_grace_at_all_does_not_hit_every_await_of_the_clean_up():
    cleaned: list[int] = []
    begun = asyncio.Event()

    async def tool(ctx: Context, value: object) -> None:
        try:
            begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            for step in range(5):
                await asyncio.sleep(0.02)  # real time: a clean-up that takes some steps
                cleaned.append(step)

    stopped = await stop(tool, begun.is_set, Policy(grace=0))
    assert cleaned == [0, 1, 2, 3, 4]
    assert not isinstance(stopped.outcome, Failed)
