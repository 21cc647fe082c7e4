"""Stops at every phase of a run, over real HTTP: outcome, receipt, conversation, the next turn, and nothing runs on."""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortSignal, Completed, Failed, TimedOut
from safepoint.agent import Agent, AgentResult, AgentRun, CallDelta, Chunk, ModelError, ModelRequest, tool
from safepoint.events import Event, LeafStarted, QuestionAsked, RetryScheduled, TextStreamed
from safepoint.models.anthropic import AnthropicModel
from safepoint.models.openai import OpenAIModel
from safepoint.run import LeafTimeout, Outcome, Policy, Retry
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.wire import outcome_to_json
from tests.agent import functions
from tests.conftest import counts
from tests.kit.agents import agents_kept, contents, fates, kinds, of_kind, read, so_far, statuses, stopped
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.llama import Llama
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Answer, Cut, Pause, Raw, Refusal, Silence, Stall, ToolCall
from tests.kit.providers.wire import bounded

SOON = Retry(attempts=3, delay=0, on=lambda error: isinstance(error, ModelError) and error.retryable)


class Watched:
    """A model that says when the agent has read the first piece of a tool call."""

    def __init__(self, model: OpenAIModel) -> None:
        self.name = model.name
        self.model = model
        self.in_arguments = asyncio.Event()

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        async with signal.stream(self.model.stream(request, signal=signal)) as chunks:
            async for chunk in chunks:
                yield chunk
                if isinstance(chunk, CallDelta):
                    self.in_arguments.set()


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[tuple[Provider, OpenAIModel]]:
    with Provider(*answers) as provider:
        async with OpenAIModel("any", base_url=provider.base_url, api_key="any") as model:
            yield provider, model
        await drain_ready_tasks()  # the last steps of the SDK, behind its answers


async def stop_when(run: AgentRun, there: Callable[[Event], object], reason: str = "enough") -> list[Event]:
    events = await read(run, lambda event: run.abort(reason) if there(event) else None)
    assert any(there(event) for event in events), kinds(events)
    return events


async def came(provider: Provider, number: int = 1) -> None:
    """The request has arrived at the provider."""
    async with asyncio.timeout(10):
        while len(provider.exchanges) < number:
            await asyncio.sleep(0.002)  # real time: the provider is a server in a thread of its own


async def check(outcome: Outcome[AgentResult], provider: Provider, model: OpenAIModel) -> AgentResult:
    """Whatever was stopped: the reason, the conversation, the next turn with two strict providers, nothing runs on."""
    partial = stopped(outcome)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "enough"
    assert outcome.receipt.still_running == ()
    assert {entry.fate for entry in outcome.receipt.entries} <= {"stopped", "finished", "not_started"}
    await drain_ready_tasks()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing runs on"
    asked = len(provider.exchanges)
    async with asyncio.timeout(10):  # each answer was given whole, or its connection was closed
        while not all(exchange.ended.is_set() or exchange.closed.is_set() for exchange in provider.exchanges):
            await asyncio.sleep(0.002)  # real time: the provider is a server in a thread of its own
    provider.will("next")
    following = await Agent(model).run("and now?", history=partial.messages)
    assert following.unwrap().text == "next", "a strict provider accepts the next turn"
    assert len(provider.exchanges) == asked + 1
    with Anthropic("next") as other:
        async with AnthropicModel("any", base_url=other.url, api_key="any") as another:
            assert (await Agent(another).run("and now?", history=partial.messages)).unwrap().text == "next"
    return partial


async def test_before_the_first_byte():
    async with serving(Silence()) as (provider, model):
        run = Agent(model).run("go")
        async with run:
            await came(provider)
            run.abort("enough")
            outcome = await run
        partial = await check(outcome, provider, model)
        assert provider.exchanges[0].hung_up
        assert fates(outcome) == {"agent/model": "stopped"}
        assert [message.kind for message in partial.messages] == ["user"]
        assert partial.usage.estimated


async def test_in_the_middle_of_the_text():
    async with serving(["Once upon a time", Stall()]) as (provider, model):
        run = Agent(model).run("go")
        events = await stop_when(run, lambda event: isinstance(event, TextStreamed) and "time" in event.text)
        outcome = await run
        partial = await check(outcome, provider, model)
        assert provider.exchanges[0].hung_up
        assert partial.text == "".join(event.text for event in of_kind(events, TextStreamed)) == "Once upon a time"
        assert fates(outcome) == {"agent/model": "stopped"}


def call_piece(**function: str) -> Raw:
    call: dict[str, Any] = {"index": 0, "function": function}
    if "name" in function:
        call |= {"id": "call_half", "type": "function"}
    choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
    data = {"id": "x", "created": 1, "model": "any", "object": "chat.completion.chunk", "choices": [choice]}
    return Raw(b"data: " + json.dumps(data).encode() + b"\n\n")


async def test_in_the_middle_of_the_arguments_of_a_call():
    answer: Answer = ["Let me", call_piece(name="search", arguments='{"que'), Stall()]
    async with serving(answer) as (provider, model):
        ran: list[str] = []

        @tool
        async def search(query: str = "default") -> str:
            ran.append(query)
            return query

        watched = Watched(model)
        run = Agent(watched, tools=[search]).run("go")
        async with run:
            await watched.in_arguments.wait()
            run.abort("enough")
            outcome = await run
        partial = await check(outcome, provider, model)
        assert provider.exchanges[0].hung_up
        assert ran == []
        assert statuses(partial) == ["not_started"]
        assert partial.text == "Let me"
        assert fates(outcome) == {"agent/model": "stopped"}


@pytest.mark.parametrize("finished", ["none", "one"])
async def test_in_parallel_tools_of_each_kind(finished: str, tmp_path: Path):
    in_thread, thread_gone, inside = threading.Event(), threading.Event(), asyncio.Event()
    started = tmp_path / "started"

    @tool
    def threaded() -> str:
        in_thread.set()
        try:
            while True:
                time.sleep(0.002)  # real time: a thread that works
        finally:
            thread_gone.set()

    @tool
    async def awaited() -> str:
        inside.set()
        if finished == "none":
            await asyncio.Event().wait()
        return "was quick"

    calls = [ToolCall("threaded", {}), ToolCall("works_for_ever", {"started": str(started)}), ToolCall("awaited", {})]
    async with serving(calls) as (provider, model):
        run = Agent(model, tools=[threaded, awaited, functions.works_for_ever]).run("go")
        async with run:
            await inside.wait()
            assert await bounded(in_thread)
            async with asyncio.timeout(20):
                while not (started.exists() and started.read_text(encoding="utf-8")):
                    await asyncio.sleep(0.005)  # real time: another process starts
            run.abort("enough")
            outcome = await run
        partial = await check(outcome, provider, model)
        assert thread_gone.is_set()
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text(encoding="utf-8")), 0)
        last = "completed" if finished == "one" else "interrupted"
        assert statuses(partial) == ["interrupted", "interrupted", last], "in the order of the calls"
        assert fates(outcome) == {
            "agent/model": "finished",
            "agent/threaded": "stopped",
            "agent/works_for_ever": "stopped",
            "agent/awaited": "finished" if finished == "one" else "stopped",
        }


async def test_in_the_back_off_after_too_many_requests(clock: FakeClock):
    async with serving(Refusal(429, "slow down", retry_after="60")) as (provider, model):
        run = Agent(model).run("go")
        events = await stop_when(run, lambda event: isinstance(event, RetryScheduled))
        outcome = await run
        assert [event.delay for event in of_kind(events, RetryScheduled)] == [60.0]
        await clock.elapse(600)
        assert len(provider.exchanges) == 1, "no attempt comes after the stop, however long one waits"
        await check(outcome, provider, model)
        assert fates(outcome) == {"agent/model": "finished"}
        assert clock.pending == 0


async def test_in_the_stream_of_a_sub_agent():
    answers: list[Answer] = [[ToolCall("inner", {"prompt": "dig"}, id="outer_call")], ["Deep in", Stall()]]
    async with serving(*answers) as (provider, model):
        run = Agent(model, tools=[Agent(model, name="inner")]).run("go")
        await stop_when(run, lambda event: isinstance(event, TextStreamed) and event.path == ("agent", "inner"))
        outcome = await run
        partial = await check(outcome, provider, model)
        assert provider.exchanges[1].hung_up
        assert statuses(partial) == ["interrupted"]
        assert agents_kept(partial)[0].text.startswith("Deep"), "how far it had come is kept"
        assert fates(outcome) == {"agent/model": "finished", "agent/inner": "stopped", "agent/inner/model": "stopped"}


async def test_in_a_question_to_the_person():
    async with serving([ToolCall("ask_user", {"question": "Which?"})]) as (provider, model):
        run = Agent(model, ask_user=True).run("go")
        events: list[Event] = []
        async for event in run:
            events.append(event)
            if isinstance(event, LeafStarted) and event.path[-1] == "question":
                run.abort("enough")
        outcome = await run
        partial = await check(outcome, provider, model)
        assert kinds(events, "question_asked", "question_withdrawn") == ["question_asked", "question_withdrawn"]
        assert statuses(partial) == ["interrupted"]
        assert fates(outcome)["agent/ask_user/question"] == "stopped"


async def test_in_a_pending_approval():
    @tool(requires_approval=True)
    async def pay() -> str:
        raise AssertionError("it must not run")

    async with serving([ToolCall("pay", {})]) as (provider, model):
        run = Agent(model, tools=[pay]).run("go")
        events = await stop_when(run, lambda event: isinstance(event, QuestionAsked))
        outcome = await run
        partial = await check(outcome, provider, model)
        assert "question_withdrawn" in kinds(events)
        assert statuses(partial) == ["not_started"]
        assert "agent/pay" not in fates(outcome), "it was never given a line: it was never about to run"


async def test_between_two_rounds():
    @tool
    async def search() -> str:
        run.abort("enough")
        return "found"

    async with serving([ToolCall("search", {})], "never") as (provider, model):
        run = Agent(model, tools=[search]).run("go")
        outcome = await run
        provider._answers.clear()
        partial = await check(outcome, provider, model)
        assert contents(partial) == ["found"]


@pytest.mark.parametrize("busy", [False, True], ids=["idle loop", "busy loop"])
async def test_many_streams_stopped_at_once_close_every_connection_and_lose_no_word(busy: bool):
    number = counts(200, 400)
    controller = AbortController()
    over = asyncio.Event()

    async def keep_busy() -> None:
        while not over.is_set():
            time.sleep(0.01)  # real time: somebody blocks the loop again and again
            await asyncio.sleep(0)

    async with serving() as (provider, model):
        provider.always(["Once upon a time", Stall()])
        runs = [Agent(model).run("go", signal=controller.signal) for _ in range(number)]
        heard: dict[str, str] = {run.id: "" for run in runs}
        all_talk = asyncio.Event()

        def note(event: Event) -> None:
            if isinstance(event, TextStreamed):
                heard[event.run_id] += event.text
                if all(text.endswith("time") for text in heard.values()):
                    all_talk.set()

        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(read(run, note))
            await all_talk.wait()
            if busy:
                group.create_task(keep_busy())
                await asyncio.sleep(0)
            controller.abort("enough")
            outcomes = [await run for run in runs]
            over.set()
        assert len(provider.exchanges) == number
        for exchange in provider.exchanges:
            assert await bounded(exchange.closed), "a connection was left open"
            assert exchange.hung_up
        for run, outcome in zip(runs, outcomes, strict=True):
            assert stopped(outcome).text == heard[run.id] == "Once upon a time"
            assert fates(outcome) == {"agent/model": "stopped"}


async def test_too_many_requests_are_waited_for_as_long_as_the_provider_says(clock: FakeClock):
    async with serving(Refusal(429, "slow down", retry_after="7"), "at last") as (provider, model):
        run = Agent(model).run("go")
        delays: list[float] = []

        def go_on(event: Event) -> None:
            if isinstance(event, RetryScheduled):
                delays.append(event.delay)
                asyncio.get_running_loop().call_soon(clock.advance, 7)

        await read(run, go_on)
        assert (await run).unwrap().text == "at last"
        assert delays == [7.0]
        assert len(provider.exchanges) == 2


async def test_a_provider_that_asks_for_a_day_is_not_waited_for(clock: FakeClock):
    async with serving(Refusal(429, "slow down", retry_after="86400"), "never") as (provider, model):
        outcome = await Agent(model).run("go")
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, ModelError)
        assert outcome.error.retry_after == 86400
        told = "slow down (status 429); it asks to wait 86400 s, longer than max_delay=60"
        assert str(outcome.error).endswith(told)
        assert told in outcome_to_json(outcome)
        [line] = [entry for entry in outcome.receipt.entries if entry.kind == "stream"]
        assert line.note.endswith("slow down (status 429); it asks to wait 86400 s")
        assert len(provider.exchanges) == 1
        assert clock.pending == 0


async def test_a_quota_that_is_used_up_is_not_asked_again():
    message = "You exceeded your current quota, please check your plan and billing details."
    about = {"message": message, "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}
    async with serving(Refusal(429, body=json.dumps({"error": about}).encode()), "never") as (provider, model):
        outcome = await Agent(model).run("go")
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, ModelError)
        assert (outcome.error.status, outcome.error.retryable) == (429, False)
        assert len(provider.exchanges) == 1


async def test_a_provider_that_stalls_ends_by_the_limit_of_the_request_or_of_the_run(clock: FakeClock):
    for limits, deadline, kind in ((Policy(timeout=30), None, Failed), (Policy(), 30, TimedOut)):
        async with serving(["Well", Stall()]) as (provider, model):
            run = Agent(model, model_policy=limits).run("go", timeout=deadline)
            await read(run, lambda event: clock.advance(30) if isinstance(event, TextStreamed) else None)
            outcome = await run
            assert isinstance(outcome, kind)
            assert so_far(outcome).text == "Well"
            if isinstance(outcome, Failed):
                assert isinstance(outcome.error, LeafTimeout)
            assert await bounded(provider.exchanges[0].closed)
            assert provider.exchanges[0].hung_up


async def test_a_slow_first_byte_is_waited_for():
    async with serving([Pause(0.05), "slow but sure"], [Silence(0.05), "slow but sure"]) as (_, model):
        for _ in range(2):
            assert (await Agent(model).run("go")).unwrap().text == "slow but sure"


@pytest.mark.parametrize(
    "broken",
    [["Once upon", Cut()], ["Once upon", Raw(b"data: {not json\n\n")], ["Once upon", Raw(b"data: [1, 2]\n\n")]],
    ids=["connection cut in a chunk", "malformed event", "an event of another kind"],
)
async def test_an_answer_that_breaks_is_asked_for_again_and_taken_off_the_screen(broken: Answer):
    async with serving(broken, "Once more") as (provider, model):
        run = Agent(model, retry=SOON).run("go")
        events = await read(run)
        outcome = await run
        assert isinstance(outcome, Completed), outcome
        assert outcome.value.text == "Once more"
        assert "answer_restarted" in kinds(events)
        assert len(provider.exchanges) == 2
        assert [message.kind for message in outcome.value.messages] == ["user", "assistant"]


async def test_a_provider_that_breaks_every_time_fails_with_the_last_error_and_what_was_said():
    async with serving() as (provider, model):
        provider.always(["Once upon", Cut()])
        outcome = await Agent(model, retry=SOON).run("go")
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, ModelError)
        assert outcome.error.retryable
        assert len(provider.exchanges) == 3
        assert so_far(outcome).text == "Once upon"
        provider.will("next")
        assert (await Agent(model).run("and?", history=so_far(outcome).messages)).unwrap().text == "next"


async def test_a_refusal_that_will_not_change_fails_at_once():
    async with serving(Refusal(400, "context too long")) as (provider, model):
        outcome = await Agent(model).run("go")
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, ModelError)
        assert outcome.error.status == 400
        assert "context too long" in str(outcome.error)
        assert len(provider.exchanges) == 1


async def test_a_real_inference_server_stops_generating_and_gets_no_other_request(llama: Llama):
    async with OpenAIModel("tiny", base_url=llama.base_url, api_key="any") as model:
        run = Agent(model).run("tell me a story")
        pieces: list[str] = []

        def stop(event: Event) -> None:
            if isinstance(event, TextStreamed):
                pieces.append(event.text)
                if len(pieces) == 5:
                    assert llama.busy() == 1
                    run.abort("enough")

        await read(run, stop)
        partial = stopped(await run)
        idle = await asyncio.to_thread(llama.wait_idle, 5.0)
        assert idle is not None
        assert idle < 1.0, "its slot is free within a second"
        assert partial.text.startswith("".join(pieces))
        worked = (llama.read(), llama.written())
        await asyncio.sleep(0.2)  # real time: another process would be generating
        assert (llama.read(), llama.written()) == worked, "nothing is generated any more, and no request came"


async def test_a_tool_stopped_before_it_began_is_in_the_receipt_as_not_started():
    @tool
    async def first() -> str:
        run.abort("enough")
        return "done"

    @tool
    async def second() -> str:
        raise AssertionError("it must not begin")

    async with serving([ToolCall("first", {}), ToolCall("second", {})]) as (provider, model):
        run = Agent(model, tools=[first, second]).run("go")
        events = await read(run)
        outcome = await run
        partial = await check(outcome, provider, model)
        assert statuses(partial) == ["completed", "not_started"]
        assert fates(outcome) == {"agent/model": "finished", "agent/first": "finished", "agent/second": "not_started"}
        assert [event.path[-1] for event in of_kind(events, LeafStarted)] == ["model", "first"]
