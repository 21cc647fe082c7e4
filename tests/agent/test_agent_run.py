"""An agent's run in the hand: when it starts, how it ends, its questions."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortSignal, Completed, TimedOut
from safepoint.agent import Agent, AgentRun, Chunk, ModelError, ModelRequest, TextDelta, ToolContext, ask_user, tool
from safepoint.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn, RunEnded, TextStreamed
from safepoint.models.scripted import Call, Delay, Error, ScriptedModel, Stall
from safepoint.run import Context
from safepoint.run import settle as settle_run
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.agents import contents, kinds, of_kind, read, so_far, statuses, stopped


async def test_a_run_can_be_named_and_stopped_before_it_starts_and_starts_by_being_awaited():
    model = ScriptedModel("hello")
    run = Agent(model).run("go")
    assert run.id
    assert not run.signal.aborted
    await drain_ready_tasks()
    assert model.requests == [], "nothing happens until somebody wants it"
    assert not run.finished
    outcome = await run
    assert outcome.unwrap().text == "hello"
    assert run.finished
    assert await run is outcome, "the outcome can be had again"


async def test_whoever_waits_with_a_limit_leaves_the_run_alone(clock: FakeClock):
    run = Agent(ScriptedModel(["half", Delay(5)])).run("go")
    waiting = asyncio.ensure_future(run.wait(timeout=1.0))
    await clock.elapse(1.1)
    with pytest.raises(TimeoutError):
        await waiting
    assert not run.signal.aborted
    await clock.elapse(5.0)
    assert isinstance(await run.wait(), Completed)
    assert await run.wait(timeout=0.0) is await run


@pytest.mark.parametrize("status", ["completed", "aborted", "timed_out", "failed"])
async def test_every_outcome_has_a_receipt_and_the_work_done_so_far(status: str, clock: FakeClock):
    @tool
    async def note() -> str:
        return "noted"

    last: dict[str, Any] = {"completed": "done", "failed": Error(ModelError("no"))}
    run = Agent(ScriptedModel([Call("note")], last.get(status, Stall())), tools=[note]).run("go", timeout=5)
    async with run:
        async for event in run:
            if event.kind == "answer_started" and event.step == 2:
                if status == "aborted":
                    run.stop()
                elif status == "timed_out":
                    await clock.elapse(5)
    outcome = await run
    assert outcome.status == status
    assert str(outcome.receipt)
    assert outcome.partial is not None
    assert [message.kind for message in outcome.partial.messages][:3] == ["user", "assistant", "tool_result"]


async def test_a_run_starts_by_iteration_and_by_entering_it():
    events = await read(Agent(ScriptedModel("hello")).run("go"))
    assert kinds(events)[0] == "run_started"
    model = ScriptedModel("hello")
    async with Agent(model).run("go") as run:
        await drain_ready_tasks()
        assert len(model.requests) == 1
        assert isinstance(await run, Completed)


@pytest.mark.parametrize("how", ["signal", "stopped before"])
async def test_under_an_aborted_signal_no_request_is_made_and_nothing_is_heard_but_the_end(how: str):
    model = ScriptedModel("never")
    if how == "signal":
        run = Agent(model).run("go", signal=AbortSignal.already("too late"))
    else:
        run = Agent(model).run("go")
        run.abort("too late")
    events = await read(run)
    assert kinds(events) == ["run_ended"]
    outcome = await run
    partial = stopped(outcome)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "too late"
    assert outcome.receipt.entries == ()
    assert model.requests == []
    assert [message.kind for message in partial.messages] == ["user"], "what was asked is kept"


async def test_the_signal_it_was_given_stops_it_and_is_not_stopped_by_it():
    controller = AbortController()
    first, second = (Agent(ScriptedModel(["a", Stall()])).run("go", signal=controller.signal) for _ in range(2))
    async with first, second:
        first.abort("only this one")
        assert isinstance(await first, Aborted)
        assert not controller.signal.aborted
        assert not second.signal.aborted
        controller.abort("both")
        outcome = await second
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "both"


async def test_two_runs_of_one_agent_side_by_side_know_nothing_of_each_other():
    inside = asyncio.Event()

    @tool
    async def waits(ctx: ToolContext) -> str:
        inside.set()
        await ctx.signal.wait_async()
        return "never"

    def answer(request: Any) -> Any:
        return [Call("waits")] if request.messages[-1].text == "wait" else "at once"

    agent = Agent(ScriptedModel(answer, answer), tools=[waits])
    first, second = agent.run("wait"), agent.run("go")
    assert first.id != second.id
    async with first:
        await inside.wait()
        assert (await second).unwrap().text == "at once"
        assert not first.finished
        first.abort("enough")
        assert statuses(stopped(await first)) == ["interrupted"]


async def test_a_deadline_ends_the_run_with_what_there_is(clock: FakeClock):
    run = Agent(ScriptedModel(["half", Delay(60), " and half"])).run("go", timeout=5)
    async with run:
        await clock.elapse(5)
        outcome = await run
    assert isinstance(outcome, TimedOut)
    assert outcome.reason.kind == "deadline"
    assert stopped(outcome).text == "half"


async def test_breaking_out_of_the_events_stops_the_run():
    ended = asyncio.Event()

    @tool
    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    run = Agent(ScriptedModel([Call("waits")]), tools=[waits]).run("go")
    async for event in run:
        if event.kind == "leaf_started" and event.path[-1] == "waits":
            break
    gc.collect()
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "disconnected"
    assert ended.is_set()
    assert statuses(stopped(outcome)) == ["interrupted"]
    await drain_ready_tasks()  # the interpreter closes the iterator in a task of its own


async def test_leaving_the_block_early_waits_until_nothing_runs_any_more():
    ended = asyncio.Event()

    @tool
    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()
        return "never"

    with pytest.raises(RuntimeError, match="mine"):
        async with Agent(ScriptedModel([Call("waits")]), tools=[waits]).run("go") as run:
            await drain_ready_tasks()
            raise RuntimeError("mine")
    assert ended.is_set()
    assert run.finished


async def test_cancelling_whoever_waits_aborts_the_run_and_waits_for_its_end():
    inside, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def waits() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()
        return "never"

    run = Agent(ScriptedModel([Call("waits")]), tools=[waits]).run("go")

    async def waiter() -> None:
        await run

    task = asyncio.ensure_future(waiter())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "parent"
    stopped(outcome)


async def test_the_events_of_a_run_come_in_order_and_end_with_its_end():
    @tool
    async def search(query: str) -> str:
        return query

    events = await read(Agent(ScriptedModel(["Well", Call("search", query="x")], "Found"), tools=[search]).run("go"))
    assert kinds(events) == [
        "run_started",
        "answer_started",
        "leaf_started",
        "text_streamed",
        "leaf_ended",
        "answer_finished",
        "tool_called",
        "call_recorded",
        "leaf_started",
        "leaf_ended",
        "tool_ended",
        "answer_started",
        "leaf_started",
        "text_streamed",
        "leaf_ended",
        "answer_finished",
        "run_ended",
    ]
    assert len({event.run_id for event in events}) == 1


def asking(**options: Any) -> AgentRun:
    @tool
    async def choose(ctx: ToolContext) -> str:
        return "chosen: " + await ctx.ask_user("Which one?", ("red", "blue"))

    return Agent(ScriptedModel([Call("choose")], "done"), tools=[choose], **options).run("go")


async def test_a_question_is_answered_through_the_run():
    run = asking()
    asked: list[QuestionAsked] = []

    def answer(event: Any) -> None:
        if isinstance(event, QuestionAsked):
            asked.append(event)
            assert not run.answer("no such question", "red")
            assert run.answer(event.question_id, "red")
            assert not run.answer(event.question_id, "blue"), "the first answer counts"

    events = await read(run, answer)
    assert contents(await run) == ["chosen: red"]
    assert (asked[0].text, asked[0].options, asked[0].path) == ("Which one?", ("red", "blue"), ("agent", "choose"))
    (answered,) = of_kind(events, QuestionAnswered)
    assert (answered.question_id, answered.text) == (asked[0].question_id, "red")
    assert not run.answer(asked[0].question_id, "blue"), "it waits no more"


@pytest.mark.parametrize("kind", ["async", "async with signal", "sync"])
async def test_a_question_is_answered_by_a_callback_of_any_kind(kind: str):
    async def later(question: str) -> str:
        return question.upper()

    async def with_signal(question: str, *, signal: AbortSignal) -> str:
        return f"{question} {signal.aborted}"

    def at_once(question: str) -> str:
        return question.lower()

    callback, answer = {
        "async": (later, "WHICH ONE?"),
        "async with signal": (with_signal, "Which one? False"),
        "sync": (at_once, "which one?"),
    }[kind]
    run = asking(ask_user=callback)
    ids: list[bool] = []
    events = await read(
        run, lambda event: ids.append(run.answer(event.question_id, "x")) if event.kind == "question_asked" else None
    )
    assert contents(await run) == [f"chosen: {answer}"]
    assert ids == [False], "the callback answers, nobody else"
    assert of_kind(events, QuestionAnswered)


async def test_a_question_is_answered_from_another_thread_at_once_and_by_one_of_many():
    run = asking()
    accepted: list[bool] = []
    async with run:
        async for event in run:
            if isinstance(event, QuestionAsked):
                every = [asyncio.to_thread(run.answer, event.question_id, "red") for _ in range(8)]
                accepted += await asyncio.gather(*every)
    assert contents(await run) == ["chosen: red"]
    assert sorted(accepted) == [False] * 7 + [True]


async def test_two_questions_at_once_are_answered_in_any_order():
    @tool
    async def choose(what: str, ctx: ToolContext) -> str:
        return f"{what}: " + await ctx.ask_user(f"Which {what}?")

    calls = [Call("choose", what="colour"), Call("choose", what="size")]
    run = Agent(ScriptedModel(calls, "done"), tools=[choose]).run("go")
    asked: list[QuestionAsked] = []

    def answer(event: Any) -> None:
        if isinstance(event, QuestionAsked):
            asked.append(event)
            if len(asked) == 2:
                for question in reversed(asked):
                    run.answer(question.question_id, f"as to {question.text}")

    await read(run, answer)
    assert contents(await run) == ["colour: as to Which colour?", "size: as to Which size?"]


async def test_a_question_that_is_stopped_is_withdrawn_and_takes_no_answer():
    run = asking()
    later: list[bool] = []

    def stop(event: Any) -> None:
        if isinstance(event, QuestionAsked):
            run.abort("enough")
        if isinstance(event, QuestionWithdrawn):
            later.append(run.answer(event.question_id, "red"))

    events = await read(run, stop)
    assert kinds(events, "question_asked", "question_answered", "question_withdrawn") == [
        "question_asked",
        "question_withdrawn",
    ]
    assert later == [False]
    assert statuses(stopped(await run)) == ["interrupted"]
    assert isinstance(events[-1], RunEnded)


@pytest.mark.parametrize("first", ["answer", "stop"])
async def test_of_an_answer_and_a_stop_in_one_moment_one_wins_and_everybody_is_told_the_same(first: str):
    run = asking()

    def race(event: Any) -> None:
        if isinstance(event, QuestionAsked):
            if first == "stop":
                run.abort("enough")
            run.answer(event.question_id, "red")
            if first == "answer":
                run.abort("enough")

    events = await read(run, race)
    partial = stopped(await run)
    told = kinds(events, "question_answered", "question_withdrawn")
    assert len(told) == 1
    assert (told == ["question_answered"]) == (statuses(partial) == ["completed"])


@pytest.mark.parametrize(
    ("options", "answer"),
    [({"tools": [ask_user]}, "by run"), ({"ask_user": lambda question: "by callback"}, "by callback")],
    ids=["through the run", "by its own callback"],
)
async def test_a_question_of_a_sub_agent_is_answered(options: dict[str, Any], answer: str):
    inner = Agent(ScriptedModel([Call("ask_user", question="Who?")], "it was asked"), name="inner", **options)
    run = Agent(ScriptedModel([Call("inner", prompt="x")], "done"), tools=[inner]).run("go")
    events = await read(
        run, lambda event: run.answer(event.question_id, "by run") if event.kind == "question_asked" else None
    )
    assert [event.text for event in of_kind(events, QuestionAnswered)] == [answer]
    assert contents(await run) == ["it was asked"]


async def test_an_agent_used_as_work_where_nobody_can_be_asked_says_so_instead_of_waiting():
    agent = Agent(ScriptedModel([Call("ask_user", question="Who?")], "well then"), ask_user=True)
    outcome = await settle_run(Context(), agent, "go")
    assert isinstance(outcome, Completed)
    assert statuses(outcome.value) == ["failed"]
    assert "nobody can be asked" in contents(outcome.value)[0]


async def test_a_stop_in_the_same_moment_as_the_last_word_is_a_stop_with_the_whole_answer():
    class StopsAtItsEnd(ScriptedModel):
        async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
            try:
                async for chunk in super().stream(request, signal=signal):
                    yield chunk
            finally:
                run.abort("enough")

    run = Agent(StopsAtItsEnd("the answer")).run("go")
    partial = stopped(await run)
    assert partial.text == "the answer"
    resumed = await Agent(ScriptedModel()).run(resume=partial)
    assert resumed.unwrap().text == "the answer", "there is nothing left to do"


def test_a_loop_that_ends_takes_a_run_that_streams_with_it():
    closed: list[str] = []

    class Closing(ScriptedModel):
        async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
            try:
                yield TextDelta("half")
                await asyncio.Event().wait()
            finally:
                closed.append("stream")

    async def main() -> AgentRun:
        run = Agent(Closing()).run("go")
        asyncio.ensure_future(run._wait())
        await drain_ready_tasks()
        return run

    run = asyncio.run(main())
    assert run.finished
    assert closed == ["stream"]


def test_a_loop_that_ends_takes_its_runs_with_it():
    """The loop cancels all tasks, and each of them twice: itself, and by the task group around it."""
    ended: list[str] = []
    thread_ended = threading.Event()

    @tool
    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")
        return "never"

    @tool
    def works(ctx: ToolContext) -> str:
        ctx.signal.wait(10)
        thread_ended.set()
        return "never"

    async def main() -> AgentRun:
        run = Agent(ScriptedModel([Call("waits"), Call("works")]), tools=[waits, works]).run("go")
        async for event in run:
            if event.kind == "leaf_started" and event.path[-1] == "works":
                break
        return run

    run = asyncio.run(main())
    assert run.finished
    assert ended == ["waits"]
    receipt = run._ctx.receipt_builder.receipt(run.signal)
    assert {entry.name: entry.fate for entry in receipt.entries if entry.kind != "thread"} == {
        "agent/model": "finished",
        "agent/waits": "stopped",
    }
    (thread,) = [entry for entry in receipt.entries if entry.kind == "thread"]
    assert thread.fate in ("stopped", "finished", "still_running"), (
        "nobody waited for the thread, but it is not forgotten"
    )
    assert thread_ended.wait(10), "it was told, and ends"


async def test_a_stop_after_the_end_is_answered_truthfully():
    run = Agent(ScriptedModel("hello")).run("go")
    await run
    ack = run.abort("too late")
    assert (ack.status, ack.level) == ("already_finished", "settled")
    assert isinstance(await run, Completed)
    assert (await ack.settled()).reason is None


async def test_the_acknowledgement_of_a_stop_leads_to_its_receipt():
    run = Agent(ScriptedModel(["half", Stall()])).run("go")
    async with run:
        async for event in run:
            if isinstance(event, TextStreamed):
                ack = run.stop(reason="enough")
                assert ack.status == "accepted"
                assert run.stop().status == "already_stopping"
        receipt = await ack.settled(timeout=5)
    assert receipt.reason is not None
    assert receipt.reason.message == "enough"
    assert [(entry.name, entry.fate) for entry in receipt.entries] == [("agent/model", "stopped")]


async def test_a_run_can_be_stopped_from_another_thread():
    run = Agent(ScriptedModel(["half", Stall()])).run("go")
    async with run:
        async for event in run:
            if isinstance(event, TextStreamed):
                await asyncio.to_thread(run.abort, "from a thread")
    assert so_far(await run).text == "half"
