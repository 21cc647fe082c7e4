"""A leaf's side of its account: what is refused and waited for, and what the model is told of a call that goes on."""

import asyncio
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from safepoint import Aborted, Agent, tool
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Context, LeafTimeout, Policy, leaf
from tests.conftest import counts
from tests.kit.leaves import Gate, LeafRig, stop
from tests.kit.programs import children
from tests.kit.waiting import until
from tests.run.owned.test_programs import seconds

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
]


@pytest.mark.parametrize("left", ["thread", "task", "pool"])
async def test_the_model_is_told_unknown_of_a_call_whose_work_goes_on(left):
    begun, let_go, done = Gate(), threading.Event(), asyncio.Event()
    kept: list[asyncio.Future[None]] = []

    def mail() -> None:
        begun.open()
        let_go.wait(30)

    async def background() -> None:
        begun.open()
        await done.wait()

    @tool
    async def send() -> str:
        """Send."""
        if left == "thread":
            await asyncio.to_thread(mail)
        elif left == "pool":
            from concurrent.futures import ThreadPoolExecutor

            await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), mail)
        else:
            kept.append(asyncio.ensure_future(background()))
            await asyncio.shield(kept[0])
        return "sent"

    run = Agent(ScriptedModel([Call("send")]), tools=[send]).run("go")
    running = asyncio.ensure_future(run._wait())
    await until(begun._event.is_set)
    run.stop()
    outcome = await running
    assert isinstance(outcome, Aborted)
    assert outcome.partial is not None
    [result] = [message for message in outcome.partial.messages if isinstance(message, ToolResult)]
    let_go.set()
    done.set()
    if kept:
        await asyncio.wait(kept)
    assert result.status == "unknown"
    assert [entry.fate for entry in outcome.receipt.still_running] == ["still_running"]


async def test_a_call_that_ended_with_all_it_started_is_told_as_interrupted():
    begun = Gate()

    def work() -> None:
        begun.open()
        while True:
            time.sleep(0.005)  # real time: a function that has to be interrupted

    @tool
    async def send() -> str:
        """Send."""
        await asyncio.to_thread(work)
        return "sent"

    run = Agent(ScriptedModel([Call("send")]), tools=[send]).run("go")
    running = asyncio.ensure_future(run._wait())
    await until(begun._event.is_set)
    run.stop()
    outcome = await running
    assert isinstance(outcome, Aborted)
    assert outcome.partial is not None
    [result] = [message for message in outcome.partial.messages if isinstance(message, ToolResult)]
    assert result.status == "interrupted"
    assert outcome.receipt.still_running == ()


async def test_a_leaf_whose_caller_is_told_to_go_while_it_waits_for_its_programs_is_written_down():
    begun = asyncio.Event()
    bench = LeafRig()

    async def starts(ctx: Context, value: object) -> None:
        processes.append(subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300 & wait; wait"]))
        begun.set()
        await asyncio.get_running_loop().create_future()

    processes: list[subprocess.Popen[bytes]] = []
    task = asyncio.ensure_future(leaf(bench.ctx, starts))
    await begun.wait()
    bench.controller.abort("stop")
    await until(lambda: any(entry.kind == "program" for entry in bench.entries()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert next(entry.fate for entry in bench.entries() if entry.kind == "await") == "stopped"
    await until(lambda: processes[0].poll() is not None)


async def test_a_stop_in_the_moment_of_the_end_leaves_nothing_unknown():
    for _ in range(20):
        gate = Gate()

        async def tool(ctx: Context, value: object, gate: Gate = gate) -> None:
            gate.open()

        stopped = await stop(tool, gate._event.is_set)
        if stopped.outcome.status == "aborted":
            assert all(entry.fate != "unknown" for entry in stopped.receipt.entries)


async def blocks_the_loop(ctx: Context, length: str) -> str:
    code = subprocess.run(["sleep", length], check=False).returncode
    return f"converted with {code}"


async def swallows_the_interruption(ctx: Context, length: str) -> str:
    process = await asyncio.create_subprocess_exec("sleep", length)
    with suppress(asyncio.CancelledError):
        await process.wait()
    return "converted"


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("abandon", [None, 20.0], ids=["inline", "in a task"])
@pytest.mark.parametrize("work", [blocks_the_loop, swallows_the_interruption])
async def test_what_an_async_leaf_makes_of_a_program_that_its_limit_has_ended_is_dropped(work, abandon):
    bench = LeafRig()
    with pytest.raises(LeafTimeout):
        await leaf(bench.ctx, work, seconds(), policy=Policy(timeout=0.3, abandon_after=abandon))
    assert bench.entries()[-1].fate == "stopped"


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("abandon", [None, 20.0], ids=["inline", "in a task"])
async def test_it_is_dropped_too_if_the_program_is_being_ended_by_another_thread(abandon):
    # The limit's timer ends the program in one thread, while in another the body swallows the interruption and returns.
    for _ in range(counts(40, 1_000)):
        with pytest.raises(LeafTimeout):
            policy = Policy(timeout=0.02, abandon_after=abandon)
            await leaf(LeafRig().ctx, swallows_the_interruption, seconds(), policy=policy)


@pytest.mark.backends("asyncio")
async def test_what_an_async_leaf_makes_of_a_program_that_a_stop_has_ended_is_dropped():
    length, values = seconds(), list[str]()

    async def tool(ctx: Context, value: object) -> None:
        values.append(await leaf(ctx, swallows_the_interruption, length, name="inner"))

    stopped = await stop(tool, lambda: children(length))
    assert values == []
    assert stopped.fate("inner") == "stopped"


@pytest.mark.backends("asyncio")
async def test_an_async_leaf_that_has_swallowed_an_interruption_of_something_else_keeps_its_value():
    begun = asyncio.Event()

    async def tool(ctx: Context, value: object) -> str:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        return "partial"

    stopped = await stop(tool, begun.is_set)
    assert stopped.fate("tool") == "finished"
