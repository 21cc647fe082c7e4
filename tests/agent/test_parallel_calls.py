"""How many calls of one answer run at once, and in which order."""

import asyncio
import threading
from typing import Any

import pytest

from safepoint import Aborted, Agent, Completed, StopAt
from safepoint.agent import AgentResult, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.events import CallRecorded
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.testing import FakeClock

SECONDS = 20


def results(value: AgentResult | None) -> list[tuple[str, str]]:
    messages = [] if value is None else value.messages
    return [(message.name, message.status) for message in messages if isinstance(message, ToolResult)]


class Counter:
    """Counts the calls that run at once; each waits until the gate is open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.running = 0
        self.peak = 0

    def __call__(self) -> None:
        with self.lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
        self.gate.wait(SECONDS)
        with self.lock:
            self.running -= 1

    async def reached(self, number: int) -> None:
        async with asyncio.timeout(SECONDS):
            while self.running < number:
                await asyncio.sleep(0.001)  # real time: threads begin


@pytest.mark.parametrize(("max_parallel", "expected"), [(None, 32), (3, 3), (40, 40)])
async def test_three_hundred_synchronous_calls_of_one_answer_have_a_bounded_number_of_threads(
    max_parallel: int | None, expected: int
):
    counter = Counter()
    model = ScriptedModel([Call("count") for _ in range(300)], "ok")
    agent = Agent(model, tools=[tool(counter, name="count")], max_parallel=max_parallel)
    async with agent.run("go") as run:
        waiting = asyncio.ensure_future(run.wait())
        await counter.reached(expected)  # all other calls have had the same chance to begin
        counter.gate.set()
        outcome = await waiting
    assert isinstance(outcome, Completed)
    assert counter.peak == expected
    assert results(outcome.value) == [("count", "completed")] * 300


async def test_async_calls_run_all_at_once_unless_the_agent_limits_them():
    running = peak = 0
    all_run = asyncio.Event()

    @tool
    async def look() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        if running == 100:
            all_run.set()
        async with asyncio.timeout(SECONDS):
            await all_run.wait()
        await asyncio.sleep(0)
        running -= 1

    model = ScriptedModel([Call("look") for _ in range(100)], "ok", [Call("look") for _ in range(100)], "ok")
    (await Agent(model, tools=[look]).run("go")).unwrap()
    assert peak == 100
    running = peak = 0
    (await Agent(model, tools=[look], max_parallel=7).run("go")).unwrap()
    assert peak == 7


@pytest.mark.parametrize("max_parallel", [None, 5])
async def test_a_call_that_is_not_parallel_runs_alone_in_the_order_of_the_answer(max_parallel: int | None):
    log: list[str] = []

    @tool
    async def read(name: str) -> None:
        log.append(f"begin {name}")
        await asyncio.sleep(0)
        log.append(f"end {name}")

    write = tool(read, name="write", parallel=False)
    model = ScriptedModel(
        [
            Call("read", name="a"),
            Call("read", name="b"),
            Call("write", name="c"),
            Call("write", name="d"),
            Call("read", name="e"),
            Call("read", name="f"),
        ],
        "ok",
    )
    (await Agent(model, tools=[read, write], max_parallel=max_parallel).run("go")).unwrap()
    assert log[:2] == ["begin a", "begin b"]
    assert log[4:8] == ["begin c", "end c", "begin d", "end d"]
    assert log[8:10] == ["begin e", "begin f"]
    assert tool(write, timeout=3).parallel is False


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_stop_leaves_the_calls_that_wait_not_started_and_a_resume_runs_them(ordered: bool):
    begun: list[int] = []
    first = asyncio.Event()

    @tool(effects="idempotent", parallel=not ordered)
    async def work(number: int, ctx: ToolContext) -> str:
        begun.append(number)
        if len(begun) == 1:
            first.set()
            await ctx.wait(SECONDS)
        return "done"

    calls = [Call("work", number=number) for number in range(3)]
    agent = Agent(ScriptedModel(calls, "ok"), tools=[work], max_parallel=None if ordered else 1)
    recorded = 0
    async with agent.run("go") as run:
        async for event in run:
            recorded += isinstance(event, CallRecorded)
            if first.is_set():
                run.stop()
        outcome = await run
    assert isinstance(outcome, Aborted)
    assert results(outcome.partial) == [("work", "interrupted"), ("work", "not_started"), ("work", "not_started")]
    assert begun == [0]
    assert recorded == 1, "what has not begun is not recorded as if it had"
    fates = sorted(entry.fate for entry in outcome.receipt.entries if entry.kind == "await")
    assert fates == ["not_started", "not_started", "stopped"]

    resumed = await agent.run(resume=outcome.partial)
    assert results(resumed.unwrap()) == [("work", "completed")] * 3
    assert begun == [0, 0, 1, 2]


async def test_a_stop_at_a_safe_point_inside_a_call_starts_none_of_those_that_wait():
    begun: list[int] = []

    @tool(effects="read")
    async def work(number: int, ctx: ToolContext) -> str:
        begun.append(number)
        run.stop(StopAt.SAFE_POINT)
        await ctx.safe_point()
        return "done"

    model = ScriptedModel([Call("work", number=number) for number in range(3)], "ok")
    run = Agent(model, tools=[work], max_parallel=1).run("go")
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert [status for _, status in results(outcome.partial)] == ["interrupted", "not_started", "not_started"]
    assert begun == [0]


async def test_the_time_limit_of_a_call_begins_when_the_call_begins(clock: FakeClock):
    @tool(timeout=5)
    async def work(ctx: ToolContext) -> str:
        await ctx.wait(4)
        return "done"

    model = ScriptedModel([Call("work") for _ in range(4)], "ok")
    async with Agent(model, tools=[work], max_parallel=1).run("go") as run:
        for _ in range(4):
            await clock.elapse(4)
        outcome = await run
    assert results(outcome.unwrap()) == [("work", "completed")] * 4


@pytest.mark.parametrize("max_parallel", [0, -1, True, 1.5, "2"])
def test_a_limit_that_is_no_number_of_calls_is_refused(max_parallel: int):
    with pytest.raises(UsageError, match="max_parallel must be a whole number of 1 or more, or None"):
        Agent(ScriptedModel(), max_parallel=max_parallel)


def work_of_nothing() -> None: ...


def test_whether_a_tool_is_parallel_is_yes_or_no():
    maybe: Any = 2
    with pytest.raises(UsageError, match="parallel of 'work' must be True or False"):
        tool(work_of_nothing, name="work", parallel=maybe)
