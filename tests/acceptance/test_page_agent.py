"""Owns the acceptance lines of page-agent: one signal for the model and the tools."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from safepoint import AbortController, Aborted, AbortError, AbortSignal, run_in_thread
from safepoint.abort import fence, on_abort_timeout
from safepoint.agent import Agent, AgentRun, AnyTool, Chunk, ModelRequest, ToolContext, tool, wait
from safepoint.events import (
    AbortIgnored,
    Event,
    LeafStarted,
    QuestionAsked,
    QuestionWithdrawn,
    RetryScheduled,
    RunEnded,
    TextStreamed,
    ToolCalled,
)
from safepoint.messages import ToolResult
from safepoint.models.openai import OpenAIModel
from safepoint.models.scripted import Call, Error, ScriptedModel
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.architecture.source import read
from tests.architecture.triggers import table_rows, unlisted_triggers
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Stall

ROOT = Path(__file__).parents[2]


def agent_of(name: str, used: AnyTool) -> Agent:
    """An agent whose model calls this tool, and then has nothing more to say."""
    arguments = dict.fromkeys(used.spec.parameters.get("properties", {}), "x")
    return Agent(ScriptedModel([Call(name, **arguments)], "done"), tools=[used])


async def stop_when(run: AgentRun, gate: asyncio.Event) -> list[Event]:
    """Read the run's events to its end, and stop it when the gate opens."""

    async def stop() -> None:
        await gate.wait()
        run.abort("enough")

    async with asyncio.TaskGroup() as group:
        group.create_task(stop())
        return [event async for event in run]


async def stop_at(run: AgentRun, kind: type[Event], path: str | None = None) -> list[Event]:
    """Read the run's events and stop it at the first of this kind."""
    events: list[Event] = []
    async for event in run:
        events.append(event)
        if isinstance(event, kind) and (path is None or event.path[-1] == path):
            run.abort("enough")
    return events


async def test_01_every_tool_is_handed_the_signal_and_a_tool_without_context_works_unchanged() -> None:
    """Every tool is handed `ctx.signal` as part of its context; a tool written without `ctx` still works unchanged."""
    seen: list[AbortSignal] = []

    @tool
    async def with_context(word: str, ctx: ToolContext) -> str:
        seen.append(ctx.signal)
        return word

    @tool
    async def without(word: str) -> str:
        return word.upper()

    @tool
    def in_a_thread(word: str) -> str:
        return word.title()

    calls = [Call("with_context", word="a"), Call("without", word="b"), Call("in_a_thread", word="cd")]
    agent = Agent(ScriptedModel(calls, "done"), tools=[with_context, without, in_a_thread])
    run = agent.run("go")
    result = (await run).unwrap()
    assert [message.content for message in result.messages if isinstance(message, ToolResult)] == ["a", "B", "Cd"]
    (signal,) = seen
    assert not signal.aborted
    run_again = agent_of("with_context", with_context).run("go")
    async with run_again:
        async for event in run_again:
            if isinstance(event, ToolCalled):
                run_again.abort("enough")
    assert run_again.signal.aborted


async def test_02_a_stop_during_ask_user_withdraws_the_question_and_ends_the_run_aborted() -> None:
    """Stop during `ask_user` → the callback's signal fires, the question is withdrawn, the run ends `aborted`, and
    the panel or page has nothing left to clean up.
    """
    heard: list[AbortSignal] = []
    shown = asyncio.Event()

    async def panel(question: str, *, signal: AbortSignal) -> str:
        heard.append(signal)
        shown.set()
        return await signal.run(asyncio.get_running_loop().create_future())

    run = Agent(ScriptedModel([Call("ask_user", question="Which one?")]), ask_user=panel).run("go")
    events = await stop_when(run, shown)
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert heard[0].aborted
    asked = [event.question_id for event in events if isinstance(event, QuestionAsked)]
    assert [event.question_id for event in events if isinstance(event, QuestionWithdrawn)] == asked
    assert len(asked) == 1


async def test_03_an_ask_user_callback_may_take_the_signal_or_not_and_cannot_hang_the_stop() -> None:
    """A callback for `ask_user` may take the signal or not; one that ignores it cannot hang the stop."""

    async def takes_it(question: str, *, signal: AbortSignal) -> str:
        return f"{question} yes, {signal.aborted}"

    async def does_not(question: str) -> str:
        return f"{question} no"

    for callback, answer in ((takes_it, "ready? yes, False"), (does_not, "ready? no")):
        model = ScriptedModel([Call("ask_user", question="ready?")], "fine")
        result = (await Agent(model, ask_user=callback).run("go")).unwrap()
        assert answer in [message.content for message in result.messages if isinstance(message, ToolResult)]

    let_go, shown, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def deaf(question: str) -> str:
        loop.call_soon_threadsafe(shown.set)
        let_go.wait(30)
        return "too late"

    run = Agent(ScriptedModel([Call("ask_user", question="ready?")]), ask_user=deaf).run("go")
    await stop_when(run, shown)
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert [entry.name for entry in outcome.receipt.still_running] == ["agent/ask_user/question"]
    let_go.set()


async def test_04_a_stop_during_wait_ends_it_at_once(clock: FakeClock) -> None:
    """Stop during `wait` → it ends at once, not when its time is up."""
    model = ScriptedModel([Call("wait", seconds=600)])
    run = Agent(model, tools=[wait]).run("go")
    before = clock.monotonic()
    await stop_at(run, LeafStarted, path="wait")
    assert isinstance(await run, Aborted)
    assert clock.monotonic() == before
    assert clock.pending == 0


async def test_05_a_stop_during_a_near_instant_tool_discards_its_result_and_ends_the_run_aborted() -> None:
    """Stop during a near-instant tool → its result is discarded if the signal was aborted, and the run ends
    `aborted`.
    """
    holder: list[AgentRun] = []

    @tool
    async def click(button: str) -> str:
        holder[0].abort("enough")
        return "clicked"

    model = ScriptedModel([Call("click", button="buy")], "you should not see this")
    holder.append(Agent(model, tools=[click]).run("go"))
    outcome = await holder[0]
    assert isinstance(outcome, Aborted)
    assert len(model.requests) == 1, "the result went nowhere: the model was not asked again"
    assert outcome.partial is not None
    assert outcome.partial.text == ""


async def test_06_closing_during_any_tool_is_the_same_as_stop_and_then_the_closed_event() -> None:
    """Closing the agent or session (dispose) during any tool → the same as stop, then the closed event, in that
    order.
    """
    ended = asyncio.Event()

    @tool
    async def drive() -> str:
        """Drive the page."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        return "never"

    run = agent_of("drive", drive).run("go")
    events: list[Event] = []
    async with run:
        async for event in run:
            events.append(event)
            if isinstance(event, LeafStarted) and event.path[-1] == "drive":
                break
    assert ended.is_set(), "when it is closed, nothing of it runs any more"
    assert run.finished
    assert isinstance(await run, Aborted)
    events += [event async for event in run]
    assert isinstance(events[-1], RunEnded)
    assert [type(event) for event in events].count(RunEnded) == 1


async def test_07_a_tool_that_ignores_the_signal_blocks_visibly_and_is_warned_about_exactly_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A tool that ignores the signal: the run stays visibly blocked; after 3 s exactly one warning names the tool
    and says what to do; nothing is masked; when the tool returns, the run ends `aborted`.
    """
    caplog.set_level(logging.WARNING, "safepoint")
    let_go = asyncio.Event()

    @tool(grace=60)
    async def deaf() -> str:
        """Ignore everything."""
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        return "at last"

    run = agent_of("deaf", deaf).run("go")
    events: list[Event] = []

    async def read() -> None:
        async for event in run:
            events.append(event)
            if isinstance(event, LeafStarted) and event.path[-1] == "deaf":
                run.abort("enough")

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        await drain_ready_tasks()
        clock.advance(2.9)
        await drain_ready_tasks()
        assert not caplog.records
        assert not run.finished, "it stays visibly blocked"
        clock.advance(0.1)
        await drain_ready_tasks()
        clock.advance(30)
        await drain_ready_tasks()
        assert not run.finished
        let_go.set()
    (record,) = caplog.records
    assert "agent/deaf" in record.getMessage()
    assert "ctx.signal" in record.getMessage()
    assert [type(event) for event in events].count(AbortIgnored) == 1
    assert isinstance(await run, Aborted)


async def test_08_normal_execution_has_no_warning_no_timer_left_and_no_change(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Normal execution: no warning, no timer left, no behavioural change."""
    caplog.set_level(logging.WARNING, "safepoint")

    @tool
    async def read(page: int) -> str:
        return f"page {page}"

    model = ScriptedModel([Call("read", page=1), Call("read", page=2)], "two pages")
    outcome = await Agent(model, tools=[read]).run("go", signal=AbortController().signal)
    assert outcome.unwrap().text == "two pages"
    assert not caplog.records
    assert clock.pending == 0


def test_09_on_abort_timeout_fires_when_its_time_is_up_and_never_once_removed(clock: FakeClock) -> None:
    """`on_abort_timeout(signal, seconds, callback)`: already aborted → the callback runs (its time is up at once);
    aborted later → after `seconds`; removed before → never.
    """
    rang: list[str] = []
    on_abort_timeout(AbortSignal.already(), 3, lambda: rang.append("already aborted"))
    assert rang == ["already aborted"]

    controller = AbortController()
    on_abort_timeout(controller.signal, 3, lambda: rang.append("aborted later"))
    removed_before_the_abort = on_abort_timeout(controller.signal, 3, lambda: rang.append("never"))
    removed_after_the_abort = on_abort_timeout(controller.signal, 3, lambda: rang.append("never"))
    clock.advance(60)
    assert removed_before_the_abort.remove()
    controller.abort()
    clock.advance(2.9)
    assert rang == ["already aborted"]
    assert removed_after_the_abort.remove()
    clock.advance(0.1)
    assert rang == ["already aborted", "aborted later"]
    assert clock.pending == 0


async def test_10_the_status_follows_from_the_end_of_the_tool_and_stop_itself_sets_none() -> None:
    """The status follows by itself from the tool's end through the one boundary; stop itself sets no status."""
    let_go = asyncio.Event()

    @tool(on_abort="finish", grace=60)
    async def slow() -> str:
        """Take its time."""
        await let_go.wait()
        return "finished"

    run = agent_of("slow", slow).run("go")
    statuses: list[str] = []
    async with run:
        async for event in run:
            if isinstance(event, LeafStarted) and event.path[-1] == "slow":
                ack = run.stop(reason="enough")
                assert ack.status == "accepted"
                assert not run.finished
                assert statuses == [], "a stop sets no status by itself"
                let_go.set()
            if isinstance(event, RunEnded):
                statuses.append(event.status)
    assert statuses == ["aborted"]
    assert (await run).status == "aborted"


async def test_11_what_decides_is_the_signal_however_the_error_was_thrown_or_wrapped() -> None:
    """What decides is `signal.aborted`, however the error was thrown or wrapped: a stop plus an ordinary error is
    `aborted`, with no retry and no "retrying" event; a tool's private abort without a stop is a failure of the
    tool.
    """
    holder: list[AgentRun] = []

    @tool
    async def breaks() -> str:
        """Break while it is stopped."""
        holder[-1].abort("enough")
        raise ValueError("the page is gone")

    @tool
    async def private() -> str:
        """Abort something of its own."""
        own = AbortController()
        own.abort("a private matter")
        await own.signal.sleep(60)
        return "never"

    model = ScriptedModel([Call("breaks")])
    holder.append(Agent(model, tools=[breaks]).run("go"))
    events = [event async for event in holder[-1]]
    assert isinstance(await holder[-1], Aborted)
    assert not [event for event in events if isinstance(event, RetryScheduled)]
    assert len(model.requests) == 1

    class Breaking(ScriptedModel):
        def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
            holder[-1].abort("enough")
            return super().stream(request, signal=signal)

    broken = Breaking(Error("overloaded", retryable=True), "never asked")
    holder.append(Agent(broken).run("go"))
    events = [event async for event in holder[-1]]
    assert isinstance(await holder[-1], Aborted)
    assert not [event for event in events if isinstance(event, RetryScheduled)]

    model = ScriptedModel([Call("private")], "it failed, I see")
    result = (await Agent(model, tools=[private]).run("go")).unwrap()
    (told,) = [message for message in result.messages if isinstance(message, ToolResult)]
    assert told.status == "failed"
    assert "a private matter" in told.content


def test_12_the_list_of_abort_triggers_is_complete_and_nothing_aborts_as_a_side_effect() -> None:
    """The trigger audit: the list of places that may abort is in `docs/abort-triggers.md`, complete (a test
    compares), and says for each whether it can hit a running tool; no clean-up path, error path or reset aborts as
    a side effect.
    """
    page = (ROOT / "docs" / "abort-triggers.md").read_text(encoding="utf-8")
    assert list(unlisted_triggers(read(ROOT / "src" / "safepoint"), page)) == []
    answers = [row[2] for row in table_rows(page)]
    assert answers
    assert all(answer.startswith(("yes", "no")) for answer in answers), "each row says whether it can hit running work"


async def test_13_a_stop_before_the_body_of_a_tool_begins_keeps_it_from_beginning() -> None:
    """The entry guard: a stop before the tool's body begins → the body never begins."""
    began: list[str] = []

    @tool
    async def stops() -> str:
        """Stop the run."""
        run.abort("enough")
        return "stopped it"

    @tool
    async def click(button: str) -> str:
        began.append(button)
        return "clicked"

    run = Agent(ScriptedModel([Call("stops"), Call("click", button="buy")]), tools=[stops, click]).run("go")
    events = [event async for event in run]
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert began == []
    assert outcome.partial is not None
    results = [message for message in outcome.partial.messages if isinstance(message, ToolResult)]
    assert [result.status for result in results] == ["completed", "not_started"]
    assert not [event for event in events if isinstance(event, LeafStarted) and event.path[-1] == "click"]


async def test_14_a_fenced_resource_refuses_calls_after_the_abort() -> None:
    """The controller guard (their future layer): a resource handed to a tool through `fence` refuses calls after
    the abort, so that an orphaned tool has no further effect.
    """

    class Page:
        def __init__(self) -> None:
            self.clicks: list[str] = []

        def click(self, button: str) -> None:
            self.clicks.append(button)

    page, controller = Page(), AbortController()
    clicked, go_on, refused = threading.Event(), threading.Event(), threading.Event()

    def orphan(page: Page) -> None:
        page.click("search")
        clicked.set()
        go_on.wait(10)  # deaf to its signal
        try:
            page.click("buy")
        except AbortError:
            refused.set()

    async def run() -> None:
        await run_in_thread(orphan, fence(page, controller.signal), signal=controller.signal)

    task = asyncio.ensure_future(run())
    assert await asyncio.to_thread(clicked.wait, 10)
    controller.abort("stop")
    with pytest.raises(AbortError):
        await task
    go_on.set()
    assert await asyncio.to_thread(refused.wait, 10)
    assert page.clicks == ["search"]


async def test_15_the_signal_of_a_run_is_readable_from_outside_and_fresh_for_each_run() -> None:
    """The signal of a run is readable from outside (`run.signal`); each run has a fresh one."""
    agent = Agent(ScriptedModel("one", "two"))
    first, second = agent.run("a"), agent.run("b")
    assert first.signal is not second.signal
    assert not first.signal.aborted
    first.abort("enough")
    assert first.signal.aborted
    assert first.signal.reason is not None
    assert first.signal.reason.message == "enough"
    assert not second.signal.aborted
    assert (await second).unwrap().text == "one"
    assert isinstance(await first, Aborted)


async def test_16_the_model_request_receives_the_same_signal_and_its_connection_closes() -> None:
    """The model request receives the same signal: the HTTP connection closes."""
    with Provider(["Once upon a time", Stall()]) as provider:
        async with OpenAIModel("any", base_url=provider.base_url, api_key="any") as model:
            run = Agent(model).run("tell me a story")
            await stop_at(run, TextStreamed)
            outcome = await run
        assert isinstance(outcome, Aborted)
        (exchange,) = provider.exchanges
        assert await asyncio.to_thread(exchange.closed.wait, 10)
        assert exchange.hung_up
