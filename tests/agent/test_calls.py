"""The tool calls of one answer: side by side, each with exactly one result that says truthfully what became of it."""

import asyncio
import os
import sys
import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel

import safepoint
from safepoint import AbortController, Aborted, Completed, Failed, current_signal
from safepoint.agent import Agent, AgentRun, ToolContext, tool
from safepoint.agent import AnswerEnded as Ended
from safepoint.events import AbortIgnored, LeafStarted, ProgressMade, QuestionAsked, ToolCalled, ToolEnded
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Context, StopAt, leaf
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.agent import functions
from tests.kit.agents import (
    ONCE,
    ChunkModel,
    called,
    contents,
    fates,
    kinds,
    of_kind,
    read,
    results,
    said,
    statuses,
    stopped,
)


def agent_of(*tools: Any, calls: list[Any] | None = None, **options: Any) -> Agent:
    """An agent that calls these tools once, without arguments, and is done."""
    wanted = calls if calls is not None else [Call(tool(one).name) for one in tools]
    return Agent(ScriptedModel(wanted, "done"), tools=tools, **options)


async def test_calls_run_side_by_side_and_results_stand_in_the_order_of_the_calls():
    gates = {name: asyncio.Event() for name in "abc"}
    running: list[str] = []

    @tool
    async def step(name: str) -> str:
        running.append(name)
        await gates[name].wait()
        return name

    run = agent_of(step, calls=[Call("step", name=name) for name in "abc"]).run("go")
    async with run:
        await drain_ready_tasks()
        assert running == ["a", "b", "c"], "all three have begun"
        for name in "cba":
            gates[name].set()
            await drain_ready_tasks()
        assert contents(await run) == ["a", "b", "c"]


async def test_sync_async_and_process_tools_give_their_values():
    @tool
    def threaded() -> str:
        return threading.current_thread().name

    @tool
    async def awaited() -> dict[str, int]:
        return {"n": 1}

    calls = [Call("threaded"), Call("awaited"), Call("own_pid", word="in")]
    outcome = await agent_of(threaded, awaited, functions.own_pid, calls=calls).run("go")
    thread, value, process = contents(outcome)
    assert thread != threading.current_thread().name
    assert value == '{"n":1}'
    word, pid, call_id, key = process.split()
    assert (word, call_id) == ("in", "call-3")
    assert pid != str(os.getpid())
    assert key.endswith(":call-3")


async def test_a_tool_in_a_process_may_give_its_arguments_any_names():
    call = Call("joins", fn="a", signal="b", kill="c", grace="d", on_start="e")
    assert contents(await agent_of(functions.joins, calls=[call]).run("go")) == ["a b c d e"]


async def test_an_unknown_tool_and_wrong_arguments_are_told_to_the_model_which_goes_on():
    @tool
    async def search(query: str) -> str:
        return query

    model = ChunkModel(
        [called(0, "a", "find", "{}"), Ended("tool_calls")],
        [called(0, "b", "search", '{"q": 1}'), Ended("tool_calls")],
        [called(0, "c", "search", '{"query": '), Ended("tool_calls")],
        said("I give up"),
    )
    run = Agent(model, tools=[search]).run("go")
    events = await read(run)
    outcome = await run
    assert isinstance(outcome, Completed)
    assert statuses(outcome) == ["failed"] * 3
    unknown, wrong, broken = contents(outcome)
    assert unknown == "There is no tool named 'find'. The tools are: search."
    assert "query: Field required" in wrong
    assert "q: Extra inputs are not permitted" in wrong
    assert 'not a JSON object: {"query": ' in broken
    assert not of_kind(events, LeafStarted)[1:] or "search" not in [e.path[-1] for e in of_kind(events, LeafStarted)]
    assert contents(await Agent(ScriptedModel([Call("x")], "ok")).run("go")) == [
        "There is no tool named 'x'. The tools are: none."
    ]


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("bad page"), "ValueError: bad page"),
        (Odd("really odd"), "Odd: really odd"),
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
        (ExceptionGroup("several", [ValueError("a"), KeyError("b")]), "ExceptionGroup: several (2 sub-exceptions)"),
        (BaseExceptionGroup("several", [Odd()]), "BaseExceptionGroup: several"),
        (TimeoutError("private"), "TimeoutError: private"),
        (StopAsyncIteration(), "StopAsyncIteration"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_whatever_a_tool_raises_is_told_to_the_model_and_the_others_go_on(
    error: BaseException, told: str, beside: bool
):
    done: list[str] = []

    @tool
    async def breaks() -> str:
        await asyncio.sleep(0)
        raise error

    @tool
    async def works() -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        done.append("works")
        return "fine"

    agent = agent_of(breaks, works) if beside else agent_of(breaks)
    run = agent.run("go")
    events = await read(run)
    outcome = await run
    assert isinstance(outcome, Completed)
    assert told in contents(outcome)[0]
    assert statuses(outcome) == (["failed", "completed"] if beside else ["failed"])
    assert done == (["works"] if beside else [])
    assert kinds(events, "tool_called", "tool_ended").count("tool_ended") == len(statuses(outcome))


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_an_exception_in_a_thread_or_process_is_told_too(kind: str):
    @tool
    def breaks() -> str:
        raise ValueError("broken in its thread")

    outcome = await agent_of(breaks if kind == "thread" else functions.breaks).run("go")
    assert statuses(outcome) == ["failed"]
    assert f"ValueError: broken in its {kind}" in contents(outcome)[0]


async def test_a_tool_in_a_process_cannot_ask_and_says_what_to_do():
    outcome = await agent_of(functions.asks, calls=[Call("asks", question="Who?")]).run("go")
    assert statuses(outcome) == ["failed"]
    assert "use isolation='thread'" in contents(outcome)[0]


async def test_of_calls_that_need_approval_none_is_asked_about_after_a_stop():
    asked: list[str] = []

    class Stops:
        async def __call__(self, ctx: Context, value: str) -> str:
            run.abort("enough")
            return "stopped"

    stops = tool(Stops(), name="stops")  # in this task, so before the question is on its way
    calls = [Call("stops", input="go"), Call("launch", target="moon")]

    def person(question: str) -> str:
        asked.append(question)
        return "allow"

    run = agent_of(stops, launch, calls=calls, ask_user=person).run("go")
    assert statuses(stopped(await run)) == ["completed", "not_started"]
    assert asked == []


@pytest.mark.parametrize("kind", ["task", "thread", "process"])
async def test_a_tool_that_exits_ends_itself_and_not_the_program(kind: str):
    def exits() -> str:
        sys.exit(2)

    async def exits_in_a_task() -> str:
        return exits()

    made = {"task": tool(exits_in_a_task, name="exits"), "thread": tool(exits), "process": functions.exits}[kind]
    outcome = await agent_of(made).run("go")
    assert isinstance(outcome, Completed)
    assert statuses(outcome) == ["failed"]
    assert "exit" in contents(outcome)[0].lower()


async def test_a_plain_function_that_hands_out_a_coroutine_is_no_success():
    async def fetch() -> str:
        return "fetched"

    @tool
    def wrapped() -> Any:
        return fetch()

    outcome = await agent_of(wrapped).run("go")
    assert statuses(outcome) == ["failed"]
    assert "declare the function with `async def`" in contents(outcome)[0]


async def test_a_tool_that_takes_too_long_is_told_to_the_model(clock: FakeClock):
    @tool(timeout=5)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    run = agent_of(slow).run("go")
    async with run:
        await clock.elapse(4.9)
        assert not run.finished
        await clock.elapse(0.1)
        outcome = await run
    assert isinstance(outcome, Completed)
    assert statuses(outcome) == ["failed"]
    assert "took longer than its limit of 5 s" in contents(outcome)[0]


async def test_a_failed_tool_is_never_retried():
    attempts: list[int] = []

    @tool
    async def flaky() -> str:
        attempts.append(1)
        raise ConnectionError("down")

    assert statuses(await agent_of(flaky).run("go")) == ["failed"]
    assert len(attempts) == 1


async def test_progress_and_the_life_of_a_call_are_events_in_order():
    @tool
    async def climb(ctx: ToolContext) -> str:
        ctx.progress("half way", 0.5)
        return "top"

    @tool
    def dive(ctx: ToolContext) -> str:
        ctx.progress("down", 1.0)
        return "bottom"

    run = agent_of(climb).run("go")
    events = await read(run)
    wanted = ("tool_called", "call_recorded", "leaf_started", "progress_made", "leaf_ended", "tool_ended")
    mine = [event for event in events if "climb" in (event.path[-1], getattr(event, "name", ""))]
    assert tuple(kinds(mine)) == wanted
    (made,) = of_kind(events, ProgressMade)
    assert (made.message, made.fraction, made.path) == ("half way", 0.5, ("agent", "climb"))
    (asked,), (ended,) = of_kind(events, ToolCalled), of_kind(events, ToolEnded)
    assert (asked.call_id, asked.name, asked.arguments) == ("call-1", "climb", "{}")
    assert (ended.call_id, ended.status, ended.content) == ("call-1", "completed", "top")
    events = await read(agent_of(dive).run("go"))
    assert [event.message for event in of_kind(events, ProgressMade)] == ["down"]


async def test_the_keys_of_calls_differ_between_calls_and_between_runs():
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    model = ChunkModel([called(0, "", "pay"), Ended()], [called(0, "", "pay"), Ended()], said("done"))
    run = Agent(model, tools=[pay]).run("go")
    await run
    await agent_of(pay).run("go")
    assert len(set(keys)) == 3
    assert all(key.startswith(run.id) for key in keys[:2])


async def test_two_calls_of_one_sub_agent_have_keys_of_their_own():
    """Each sub-agent's conversation begins anew, so a server that gives no ids begins to count anew."""
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    model = ChunkModel([called(0, "", "pay"), Ended()], said("one"), [called(0, "", "pay"), Ended()], said("two"))
    payer = Agent(model, tools=[pay], name="payer")
    calls: list[Any] = [[Call("payer", prompt="a")], [Call("payer", prompt="b")], "done"]
    await Agent(ScriptedModel(*calls), tools=[payer.as_tool()]).run("go")
    assert len(keys) == 2
    assert keys[0] != keys[1]


async def test_agents_that_one_tool_calls_have_keys_and_records_of_their_own():
    paid: list[tuple[str, int, int]] = []

    @tool
    async def pay(amount: int, ctx: ToolContext) -> str:
        recorded = await ctx.once("amount", lambda: amount)
        paid.append((ctx.idempotency_key, amount, recorded))
        return "paid"

    def payer(amount: int) -> Agent:
        model = ChunkModel([called(0, "1", "pay", f'{{"amount": {amount}}}'), Ended()], said("done"))
        return Agent(model, tools=[pay], name="payer")

    @tool
    async def both(ctx: ToolContext) -> str:
        await payer(1)(ctx, "the first")
        await payer(2)(ctx, "the second")
        return "both"

    await agent_of(both).run("go")
    assert [(amount, recorded) for _, amount, recorded in paid] == [(1, 1), (2, 2)]
    assert len({key for key, _, _ in paid}) == 2


async def test_the_keys_of_calls_are_ascii_and_differ_whatever_ids_a_model_gives():
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    payer = Agent(ChunkModel([called(0, "b ü", "pay"), Ended()], said("done")), tools=[pay], name="Zahlstelle ü")
    chief = ChunkModel(
        [called(0, "a", "payer", '{"prompt": "go"}'), called(1, "a:b ü", "pay"), Ended()],
        said("done"),
    )
    await Agent(chief, tools=[payer.as_tool("payer"), pay]).run("go")
    assert len(set(keys)) == 2
    assert all(key.isascii() and key.isprintable() and " " not in key for key in keys), keys


@tool(requires_approval=True)
async def launch(target: str) -> str:
    """Launch it."""
    return f"launched at {target}"


def approving(answer: Any) -> tuple[Agent, list[str]]:
    asked: list[str] = []

    async def person(question: str) -> str:
        asked.append(question)
        return answer if isinstance(answer, str) else await answer()

    return agent_of(launch, calls=[Call("launch", target="moon")], ask_user=person), asked


@pytest.mark.parametrize("answer", ["allow", "Yes ", "OK", "y"])
async def test_an_approved_call_runs(answer: str):
    agent, asked = approving(answer)
    assert contents(await agent.run("go")) == ["launched at moon"]
    assert asked == ['Allow launch({"target": "moon"})?']


@pytest.mark.parametrize("answer", ["deny", "no", "", "rather not"])
async def test_a_denied_call_does_not_run_and_the_model_is_told(answer: str):
    agent, _ = approving(answer)
    outcome = await agent.run("go")
    assert isinstance(outcome, Completed)
    assert statuses(outcome) == ["failed"]
    words = " The user answered: rather not" if answer == "rather not" else ""
    assert contents(outcome) == [f"The user did not allow this call of launch. It did not run.{words}"]


async def test_when_nobody_can_be_asked_the_call_does_not_run():
    async def broken() -> str:
        raise ConnectionError("the person has left")

    agent, _ = approving(broken)
    outcome = await agent.run("go")
    assert statuses(outcome) == ["failed"]
    assert "did not run" in contents(outcome)[0]
    assert "the person has left" in contents(outcome)[0]


async def test_a_stop_denies_a_pending_approval():
    agent, _ = approving(asyncio.Event().wait)
    run = agent.run("go")

    def stop(event: Any) -> None:
        if isinstance(event, QuestionAsked):
            assert event.options == ("allow", "deny")
            run.abort("enough")

    events = await read(run, stop)
    partial = stopped(await run)
    assert statuses(partial) == ["not_started"]
    assert "the stop denied it" in contents(partial)[0]
    assert "question_withdrawn" in kinds(events)
    assert not [event for event in of_kind(events, LeafStarted) if event.path[-1] == "launch"]


async def test_a_stop_in_the_same_moment_as_the_approval_keeps_the_call_from_running_and_blames_nobody():
    holder: list[AgentRun] = []

    async def person(question: str) -> str:
        holder[0].abort("enough")
        return "allow"

    holder.append(agent_of(launch, calls=[Call("launch", target="moon")], ask_user=person).run("go"))
    partial = stopped(await holder[0])
    assert statuses(partial) == ["not_started"]
    assert "did not allow" not in contents(partial)[0]


async def test_an_approval_is_answered_by_run_answer_where_there_is_no_callback():
    run = agent_of(launch, calls=[Call("launch", target="moon")]).run("go")

    def answer(event: Any) -> None:
        if isinstance(event, QuestionAsked):
            assert run.answer(event.question_id, "allow")

    await read(run, answer)
    assert contents(await run) == ["launched at moon"]


class Charge(BaseModel):
    amount: int


class Till:
    """Charge it, step by step."""

    name = "till"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, ctx: Context, value: Charge) -> str:
        self.seen.append(ctx)

        async def part(ctx: Context, number: int) -> int:
            return number

        amounts = [await leaf(ctx, part, number) for number in range(value.amount)]
        return f"charged {sum(amounts)}"


async def test_work_that_is_no_agent_runs_as_a_child_with_its_own_leaves_in_the_receipt():
    till = Till()

    @tool
    async def stops() -> str:
        run.abort("enough")
        return "stopped"

    model = ScriptedModel([Call("till", amount=3)], [Call("stops")])
    run = Agent(model, tools=[till, stops]).run("go")
    outcome = await run
    assert contents(outcome)[0] == "charged 3"
    assert isinstance(till.seen[0], ToolContext)
    assert fates(outcome)["agent/till"] == "finished"
    assert fates(outcome)["agent/till/part"] == "finished"


async def test_a_tool_that_swallows_the_abort_and_returns_keeps_its_result_and_the_run_is_aborted():
    inside = asyncio.Event()

    @tool
    async def stubborn() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I finished anyway"
        return "never"

    run = agent_of(stubborn).run("go")
    async with run:
        await inside.wait()
        run.abort("enough")
        outcome = await run
    partial = stopped(outcome)
    assert contents(partial) == ["I finished anyway"]
    assert fates(outcome)["agent/stubborn"] == "finished"


@pytest.mark.parametrize(("effects", "status"), [("irreversible", "unknown"), ("read", "interrupted")])
async def test_a_stopped_call_with_effects_that_cannot_be_taken_back_is_unknown(effects: Any, status: str):
    inside = asyncio.Event()

    @tool(effects=effects)
    async def act() -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    run = agent_of(act).run("go")
    async with run:
        await inside.wait()
        run.abort("enough")
        assert statuses(stopped(await run)) == [status]


async def test_a_tool_that_is_left_behind_is_unknown_and_what_it_still_says_goes_nowhere(caplog: Any):
    inside, let_go = asyncio.Event(), asyncio.Event()
    seen: list[ToolContext] = []

    @tool(abandon_after=0)
    async def deaf(ctx: ToolContext) -> str:
        seen.append(ctx)
        inside.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        ctx.progress("still here")
        return "too late"

    run = agent_of(deaf).run("go")
    events: list[Any] = []
    async with run:
        await inside.wait()
        run.abort("enough")
        outcome = await run
        events += [event async for event in run]
    assert statuses(stopped(outcome)) == ["unknown"]
    assert isinstance(outcome, Aborted)
    assert [entry.name for entry in outcome.receipt.still_running] == ["agent/deaf"]
    let_go.set()
    await drain_ready_tasks()
    assert not of_kind(events, ProgressMade)
    assert statuses(stopped(await run)) == ["unknown"], "the late result changes nothing"


async def test_a_run_that_a_tool_starts_without_a_signal_stops_with_it():
    inner_runs: list[AgentRun] = []
    inside = asyncio.Event()

    @tool
    async def waits() -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    @tool
    async def delegates() -> str:
        inner = agent_of(waits).run("inner")
        inner_runs.append(inner)
        return (await inner).status

    run = agent_of(delegates).run("go")
    async with run:
        await inside.wait()
        run.abort("enough")
        outcome = await run
    assert isinstance(outcome, Aborted)
    inner = await inner_runs[0]
    assert isinstance(inner, Aborted)
    assert inner.reason.message == "enough"


async def test_a_run_that_a_thread_tool_starts_without_a_signal_stops_with_it():
    inside = threading.Event()
    seen: list[str] = []

    @tool(on_abort="cooperate")
    def delegates() -> str:
        async def inner() -> str:
            assert current_signal() is not None

            @tool
            async def waits() -> str:
                inside.set()
                await asyncio.Event().wait()
                return "never"

            return (await agent_of(waits).run("inner")).status

        seen.append(asyncio.run(inner()))
        return seen[0]

    run = agent_of(delegates).run("go")
    async with run:
        assert await asyncio.to_thread(inside.wait, 10)
        run.abort("enough")
        assert isinstance(await run, Aborted)
    assert seen == ["aborted"]


async def test_a_private_abort_of_a_tool_is_its_failure_and_a_stop_with_any_error_is_a_stop():
    @tool
    async def private() -> str:
        own = AbortController()
        own.abort("my own")
        own.signal.raise_if_aborted()
        return "never"

    outcome = await agent_of(private).run("go")
    assert isinstance(outcome, Completed)
    assert statuses(outcome) == ["failed"]

    @tool
    async def breaks() -> str:
        run.abort("enough")
        raise ExceptionGroup("all at once", [ValueError("x")])

    run = agent_of(breaks).run("go")
    assert statuses(stopped(await run)) == ["interrupted"]


async def test_a_safe_point_of_a_tool_is_honoured_by_a_stop_that_waits_for_one():
    passed: list[int] = []

    @tool
    async def long(ctx: ToolContext) -> str:
        for number in range(10):
            passed.append(number)
            if number == 3:
                run.stop(StopAt.SAFE_POINT, reason="at a good moment")
            await ctx.safe_point()
        return "all ten"

    @tool
    async def other() -> str:
        for _ in range(30):
            await asyncio.sleep(0)
        return "finished"

    run = agent_of(long, other).run("go")
    partial = stopped(await run)
    assert passed == [0, 1, 2, 3]
    assert statuses(partial) == ["interrupted", "completed"]


async def test_huge_outputs_arrive_whole():
    @tool
    async def dump() -> str:
        return "x" * 5_000_000

    run = agent_of(dump).run("go")
    events = await read(run)
    assert len(contents(await run)[0]) == 5_000_000
    assert len(of_kind(events, ToolEnded)[0].content) == 5_000_000


async def test_a_failed_round_is_not_the_end_of_the_run_but_a_failed_model_is():
    model = ScriptedModel()
    outcome = await Agent(model, retry=ONCE).run("go")
    assert isinstance(outcome, Failed)
    assert results(outcome) == []


# By the package's own folder: the folder into which the project was cloned may have the same name.
PACKAGE = os.path.dirname(safepoint.__file__) + os.sep


def frames_of_ours(depth: int) -> list[tuple[str, str]]:
    """File and function of the frames of this library, innermost first, up to the run's task."""
    import sys

    frame: Any = sys._getframe(depth)
    found: list[tuple[str, str]] = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            found.append((name.rpartition("/")[2], frame.f_code.co_name))
        frame = frame.f_back
    return found


async def test_from_the_task_of_a_tool_to_its_first_line_are_few_frames_in_few_files():
    found: list[list[tuple[str, str]]] = []

    @tool
    async def look() -> str:
        found.append(frames_of_ours(1))
        return "seen"

    await agent_of(look).run("go")
    (frames,) = found
    assert len(frames) <= 2, frames
    assert frames[-1] == ("leaf.py", "body"), "the first frame of the tool's task"


async def test_a_blocking_thread_tool_does_not_hold_up_the_others():
    let_go = threading.Event()

    @tool
    def blocks() -> str:
        assert let_go.wait(10)
        return "thread"

    @tool
    async def quick() -> str:
        let_go.set()
        return "quick"

    started = time.monotonic()
    assert contents(await agent_of(blocks, quick).run("go")) == ["thread", "quick"]
    assert time.monotonic() - started < 9


async def test_a_tool_that_ignores_the_abort_deep_inside_is_warned_about_once(clock: FakeClock, caplog: Any):
    let_go, inside = asyncio.Event(), asyncio.Event()

    @tool(grace=60)
    async def deaf() -> str:
        inside.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        return "at last"

    low = Agent(ScriptedModel([Call("deaf")]), tools=[deaf], name="low")
    mid = Agent(ScriptedModel([Call("low", prompt="x")]), tools=[low], name="mid")
    run = Agent(ScriptedModel([Call("mid", prompt="x")]), tools=[mid]).run("go")
    async with run:
        await inside.wait()
        run.abort("enough")
        await clock.elapse(10)
        let_go.set()
        await run
        events = [event async for event in run]
    assert [event.path for event in of_kind(events, AbortIgnored)] == [("agent", "mid", "low", "deaf")]
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["agent/mid/low/deaf"]
