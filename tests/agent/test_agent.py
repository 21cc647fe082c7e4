"""The loop: ask the model, run its tool calls, ask again; limits, usage, retries, sub-agents."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from safepoint import AbortSignal, Completed, Failed
from safepoint.agent import (
    Agent,
    AnswerEnded,
    CallDelta,
    Chunk,
    LimitExceeded,
    ModelError,
    ModelRequest,
    TextDelta,
    ToolContext,
    UsageReported,
    tool,
    validate,
)
from safepoint.errors import UsageError
from safepoint.events import AnswerFinished, AnswerRestarted, AnswerStarted, RetryScheduled, TextStreamed
from safepoint.messages import AssistantMessage, SystemMessage, ToolResult, UserMessage
from safepoint.models.scripted import Call, Delay, Error, Finish, ScriptedModel, Stall
from safepoint.run import Context, Policy, Retry, StopAt, Usage
from safepoint.run import settle as settle_run
from safepoint.testing import FakeClock
from tests.kit.agents import (
    ONCE,
    ChunkModel,
    called,
    contents,
    fates,
    kinds,
    of_kind,
    read,
    said,
    so_far,
    statuses,
    stopped,
)


@tool
async def search(query: str) -> str:
    """Look it up."""
    return f"about {query}"


async def test_the_model_is_asked_until_it_answers_and_reads_every_result():
    model = ScriptedModel(
        ["I look. ", Call("search", query="a"), Call("search", query="b")], [Call("search", query="c")], "Found."
    )
    outcome = await Agent(model, tools=[search], instructions="Be brief.").run("find it")
    result = outcome.unwrap()
    model.done()
    assert result.text == "Found."
    assert result.steps == 3
    assert [message.kind for message in result.messages] == [
        "user",
        "assistant",
        "tool_result",
        "tool_result",
        "assistant",
        "tool_result",
        "assistant",
    ]
    assert contents(outcome) == ["about a", "about b", "about c"]
    assert model.requests[0].messages == (SystemMessage(text="Be brief."), UserMessage(text="find it"))
    assert model.requests[2].messages[1:] == result.messages[:-1]
    assert [spec.name for spec in model.requests[0].tools] == ["search"]
    validate(result.messages)


async def test_a_history_goes_before_the_prompt_and_is_mended():
    model = ScriptedModel("fine")
    open_call = AssistantMessage(calls=(called_as("a"),))
    await Agent(model).run("and now?", history=[UserMessage(text="before"), open_call])
    sent = model.requests[0].messages
    assert [message.kind for message in sent] == ["user", "assistant", "tool_result", "user"]
    assert isinstance(sent[2], ToolResult)
    assert sent[2].status == "unknown"


def called_as(call_id: str) -> Any:
    from safepoint.messages import ToolCall

    return ToolCall(call_id=call_id, name="search", arguments="{}")


async def test_a_prompt_may_be_a_message_or_several():
    model = ScriptedModel("one", "two")
    agent = Agent(model)
    await agent.run(UserMessage(text="a"))
    await agent.run([UserMessage(text="b"), UserMessage(text="c")])
    assert [message.text for message in model.requests[1].messages if isinstance(message, UserMessage)] == ["b", "c"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda agent: agent.run(), "give a prompt, or resume="),
        (lambda agent: agent.run(""), "the prompt is empty"),
        (lambda agent: agent.run("  \n"), "the prompt is empty"),
        (lambda agent: agent.run([]), "the prompt is empty"),
        (lambda agent: agent.run(UserMessage(text=" ")), "the prompt is empty"),
        (lambda agent: agent.run([ToolResult(call_id="a", name="x", content="y")]), "the prompt is empty"),
        (lambda agent: agent.run([UserMessage(text="a"), AssistantMessage(text="b")]), "the last message is an answer"),
        (lambda agent: agent.run("go", timeout=-1), "timeout"),
        (
            lambda agent: agent.run("go", history=[{"role": "user", "content": "my name is Ann"}]),
            r"one of safepoint\.messages, such as UserMessage\(text=…\), not {'role'",
        ),
        (lambda agent: agent.run(["go"]), r"UserMessage\(text=…\), not 'go'"),
        (lambda agent: Agent(agent.model, max_steps=0), "max_steps must be 1 or more"),
        (lambda agent: Agent("gpt-5"), r'model must be a model such as OpenAIModel\("…"\), not \'gpt-5\''),  # type: ignore[arg-type]
        (lambda agent: Agent(type(agent.model)), "not the class ScriptedModel: make one with ScriptedModel"),  # type: ignore[arg-type]
        (lambda agent: agent.run("go").stop("too slow"), "to say why, use reason='too slow'"),
        (lambda agent: Agent(agent.model, tools=[search, search]), "two tools named 'search'"),
        (lambda agent: Agent(agent.model, tools=search), r"tools must be a list of tools, not .*: put it into \[ \]"),  # type: ignore[arg-type]
        (
            lambda agent: Agent(agent.model, tools=[3]),  # type: ignore[list-item]
            "must be a function or Work",
        ),
    ],
)
def test_a_mistake_is_told_at_the_call(make: Any, told: str):
    with pytest.raises(UsageError, match=told):
        make(Agent(ScriptedModel("x")))


async def test_a_resumed_run_brings_its_own_history():
    partial = (await Agent(ScriptedModel("x")).run("go")).unwrap()
    with pytest.raises(UsageError, match="leave history= out"):
        Agent(ScriptedModel()).run(resume=partial, history=[UserMessage(text="a")])
    with pytest.raises(UsageError, match="one of the two"):
        Agent(ScriptedModel()).run("go", resume=partial)


async def test_at_most_so_many_requests():
    model = ScriptedModel(*[[Call("search", query=str(number))] for number in range(3)])
    outcome = await Agent(model, tools=[search], max_steps=3, name="eager").run("go")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LimitExceeded)
    assert "'eager' has made 3 requests; max_steps=3" in str(outcome.error)
    assert contents(outcome) == ["about 0", "about 1", "about 2"], "everything that was done is there"
    validate(so_far(outcome).messages)


async def test_at_most_so_many_tokens_with_those_of_sub_agents():
    spends = Agent(ChunkModel([UsageReported(Usage(1, 600, 300)), *said("a long story")]), name="spends")
    model = ChunkModel([called(0, "a", "spends", '{"prompt": "x"}'), UsageReported(Usage(1, 60, 40)), AnswerEnded()])
    outcome = await Agent(model, tools=[spends], token_budget=1000).run("go")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LimitExceeded)
    assert "has used 1000 tokens; token_budget=1000" in str(outcome.error)
    assert so_far(outcome).usage == Usage(2, 660, 340)
    assert contents(outcome) == ["a long story"]
    assert len(model.requests) == 1


async def test_usage_is_exact_when_reported_and_estimated_when_cut_off():
    exact = (await Agent(ChunkModel([UsageReported(Usage(1, 5, 7)), *said("hi")])).run("go")).unwrap()
    assert exact.usage == Usage(1, 5, 7)
    run = Agent(ChunkModel([TextDelta("x" * 400), TextDelta("y")], said("never"))).run("z" * 40)
    await read(run, lambda event: run.abort() if isinstance(event, TextStreamed) else None)
    outcome = await run
    usage = stopped(outcome).usage
    assert usage.estimated
    assert (usage.requests, usage.input_tokens) == (1, 10)
    assert usage.output_tokens >= 100
    assert not isinstance(outcome, Completed)
    assert outcome.receipt.usage == usage
    assert "about" in str(outcome.receipt)


async def test_the_usage_of_a_stopped_sub_agent_counts_once():
    inner = Agent(
        ChunkModel(
            [called(0, "a", "search", '{"query": "x"}'), UsageReported(Usage(1, 5, 5)), AnswerEnded()], [TextDelta("b")]
        ),
        tools=[search],
        name="inner",
    )
    run = Agent(
        ChunkModel([called(0, "c", "inner", '{"prompt": "x"}'), UsageReported(Usage(1, 1, 1)), AnswerEnded()]),
        tools=[inner],
    )
    going = run.run("go")
    await read(going, lambda event: going.abort() if isinstance(event, TextStreamed) else None)
    outcome = await going
    usage = stopped(outcome).usage
    assert not isinstance(outcome, Completed)
    assert usage == outcome.receipt.usage
    assert usage.requests == 3
    assert usage.estimated


async def test_a_request_that_may_succeed_later_is_repeated_visibly(clock: FakeClock):
    model = ScriptedModel(
        Error("overloaded", status=529, retryable=True),
        ["Once upon", Error("reset", retryable=True)],
        "Once more, and whole",
    )
    run = Agent(model, retry=Retry(4, delay=1, jitter=0, on=lambda error: getattr(error, "retryable", False))).run("go")
    task = asyncio.ensure_future(read(run))
    await clock.elapse(10)
    events = await task
    outcome = await run
    assert outcome.unwrap().text == "Once more, and whole"
    told = of_kind(events, RetryScheduled)
    assert [(event.attempt, event.delay) for event in told] == [(2, 1.0), (3, 2.0)]
    assert "overloaded" in told[0].error
    wanted = ("answer_started", "text_streamed", "retry_scheduled", "answer_restarted", "answer_finished")
    shown = [kind for kind in kinds(events, *wanted) if kind != "text_streamed"]
    assert shown == [
        "answer_started",
        "answer_finished",
        "retry_scheduled",
        "answer_started",
        "answer_finished",
        "retry_scheduled",
        "answer_restarted",
        "answer_started",
        "answer_finished",
    ]
    assert [event.interrupted for event in of_kind(events, AnswerFinished)] == [True, True, False]
    assert [event.step for event in of_kind(events, AnswerStarted)] == [1, 1, 1]
    assert outcome.unwrap().usage.requests == 3


async def test_an_answer_is_not_restarted_on_the_screen_if_nothing_was_shown(clock: FakeClock):
    run = Agent(ScriptedModel(Error("x", retryable=True), "fine")).run("go")
    task = asyncio.ensure_future(read(run))
    await clock.elapse(5)
    assert not of_kind(await task, AnswerRestarted)


@pytest.mark.parametrize(
    "error",
    [
        ModelError("bad key", status=401),
        ValueError("a bug in the adapter"),
        TimeoutError(),
    ],
)
async def test_a_request_that_cannot_succeed_fails_the_run_at_once_with_what_there_is(error: Exception):
    model = ScriptedModel([Call("search", query="a")], ["The answer", Error(error)])
    outcome = await Agent(model, tools=[search]).run("go")
    assert isinstance(outcome, Failed)
    assert outcome.error is error
    partial = so_far(outcome)
    validate(partial.messages)
    assert partial.text == "The answer"
    assert contents(outcome) == ["about a"]
    assert len(model.requests) == 2


async def test_attempts_are_bounded_and_the_last_error_is_the_outcome():
    model = ScriptedModel(*[Error(f"down {number}", retryable=True) for number in range(3)])
    outcome = await Agent(model, retry=Retry(3, delay=0)).run("go")
    model.done()
    assert isinstance(outcome, Failed)
    assert "down 2" in str(outcome.error)
    assert so_far(outcome).usage == Usage(3)


@pytest.mark.parametrize(
    "answer",
    [[Finish(None)], ["half", Finish(None)], [Call("search", query="x"), Finish(None)], "  \n", []],
    ids=["silence", "half a text", "half a call", "white space", "nothing"],
)
async def test_an_answer_that_breaks_off_or_says_nothing_is_asked_for_again(answer: Any):
    model = ScriptedModel(answer, "whole")
    outcome = await Agent(model, tools=[search], retry=Retry(2, delay=0)).run("go")
    assert outcome.unwrap().text == "whole"
    assert [message.kind for message in outcome.unwrap().messages] == ["user", "assistant"]


async def test_a_client_that_lets_its_own_cancellation_escape_is_a_failed_request_and_not_a_stop():
    run = Agent(
        ChunkModel([TextDelta("a"), asyncio.CancelledError("inside")], said("fine")), retry=Retry(2, delay=0)
    ).run("go")
    assert (await run).unwrap().text == "fine"
    outcome = await Agent(ChunkModel([asyncio.CancelledError("inside")]), retry=ONCE).run("go")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ModelError)
    assert isinstance(outcome.error.__cause__, asyncio.CancelledError)


async def test_a_model_whose_stream_raises_at_once_is_a_failed_request_like_any_other():
    class Broken(ScriptedModel):
        calls = 0

        def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
            Broken.calls += 1
            if Broken.calls == 1:
                raise ModelError("no connection", retryable=True)
            return super().stream(request, signal=signal)

    run = Agent(Broken("fine"), retry=Retry(2, delay=0)).run("go")
    events = await read(run)
    assert (await run).unwrap().text == "fine"
    assert kinds(events, "answer_started", "answer_finished") == ["answer_started", "answer_finished"] * 2


async def test_what_a_model_says_after_the_end_of_its_answer_is_not_read_and_not_waited_for():
    closed: list[bool] = []

    class Chatty:
        name = "chatty"

        async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
            try:
                yield TextDelta("the answer")
                yield AnswerEnded()
                yield TextDelta(" and more")
                await asyncio.Event().wait()
            finally:
                closed.append(True)

    outcome = await Agent(Chatty()).run("go")
    assert outcome.unwrap().text == "the answer"
    assert closed == [True]


async def test_ids_that_the_model_repeats_or_leaves_out_do_not_mix_up_results():
    model = ChunkModel(
        [
            called(0, "same", "search", '{"query": "1"}'),
            called(1, "same", "search", '{"query": "2"}'),
            AnswerEnded("tool_calls"),
        ],
        [called(0, "same", "search", '{"query": "3"}'), AnswerEnded("tool_calls")],
        [called(0, "", "search", '{"query": "4"}'), AnswerEnded("tool_calls")],
        [called(0, "", "search", '{"query": "5"}'), AnswerEnded("tool_calls")],
        said("done"),
    )
    outcome = await Agent(model, tools=[search]).run("go")
    assert contents(outcome) == [f"about {number}" for number in range(1, 6)]
    validate(so_far(outcome).messages)


async def test_a_tool_with_an_impossible_name_is_told_and_the_conversation_stays_valid():
    model = ChunkModel([called(0, "a", "search the web!"), AnswerEnded("tool_calls")], said("well"))
    outcome = await Agent(model, tools=[search]).run("go")
    assert statuses(outcome) == ["failed"]
    validate(so_far(outcome).messages)


async def test_deltas_of_several_calls_may_come_interleaved():
    model = ChunkModel(
        [
            TextDelta("a"),
            called(1, "b", "search", '{"query"'),
            called(0, "a", "search", '{"que'),
            CallDelta(index=1, arguments=': "two"}'),
            TextDelta("b"),
            CallDelta(index=0, arguments='ry": "one"}'),
            AnswerEnded("tool_calls"),
        ],
        said("done"),
    )
    assert contents(await Agent(model, tools=[search]).run("go")) == ["about one", "about two"]


async def test_a_model_that_stalls_ends_by_the_limit_of_its_policy(clock: FakeClock):
    model = ScriptedModel(["Well", Stall()])
    agent = Agent(model, retry=ONCE, model_policy=Policy(timeout=30))
    run = agent.run("go")
    async with run:
        await clock.elapse(30)
        outcome = await run
    assert isinstance(outcome, Failed)
    assert "30 s" in str(outcome.error)
    assert so_far(outcome).text == "Well"


async def test_a_sub_agent_runs_inside_answers_as_a_tool_and_its_events_have_its_path():
    inner = Agent(ScriptedModel([Call("search", query="deep")], "deep indeed"), tools=[search], name="inner")
    run = Agent(ScriptedModel([Call("inner", prompt="dig")], "done"), tools=[inner.as_tool()], name="outer").run("go")
    events = await read(run)
    assert contents(await run) == ["deep indeed"]
    paths = {event.path for event in events}
    assert ("outer", "inner") in paths
    assert ("outer", "inner", "search") in paths
    assert ("outer", "inner", "model") in paths
    assert len({event.run_id for event in events}) == 1
    assert kinds(events).count("run_started") == 1, "it is a run inside this one, not one of its own"


async def test_an_agent_given_as_it_is_becomes_a_tool():
    inner = Agent(ScriptedModel("yes"), name="inner", instructions="Say yes.")
    model = ScriptedModel([Call("inner", prompt="dig")], "done")
    assert contents(await Agent(model, tools=[inner]).run("go")) == ["yes"]
    assert model.requests[0].tools[0].description == "Ask inner. Say yes."
    model = ScriptedModel([Call("other", prompt="dig")], "done")
    inner = Agent(ScriptedModel("yes"), name="inner")
    assert contents(await Agent(model, tools=[tool(inner, name="other")]).run("go")) == ["yes"]


async def test_a_sub_agent_that_fails_is_told_to_the_model_above():
    inner = Agent(ScriptedModel(Error("no key", status=401)), name="inner")
    outcome = await Agent(ScriptedModel([Call("inner", prompt="x")], "I see"), tools=[inner]).run("go")
    assert isinstance(outcome, Completed)
    assert statuses(outcome) == ["failed"]
    assert "no key" in contents(outcome)[0]


async def test_a_sub_agent_without_a_prompt_is_told_to_the_model_above():
    outcome = await Agent(
        ScriptedModel([Call("inner", prompt=" ")], "I see"), tools=[Agent(ScriptedModel(), name="inner")]
    ).run("go")
    assert "the prompt is empty" in contents(outcome)[0]


async def test_agents_may_be_nested_deeply():
    depth = 30
    agent = Agent(ScriptedModel("the bottom"), name="level0")
    for level in range(1, depth):
        model = ScriptedModel([Call(f"level{level - 1}", prompt="go")], f"level {level}")
        agent = Agent(model, tools=[agent], name=f"level{level}")
    outcome = await agent.run("go")
    assert outcome.unwrap().text == f"level {depth - 1}"
    assert outcome.unwrap().usage.requests == 2 * depth - 1


async def test_agents_may_be_nested_deeply_and_stopped_at_the_bottom():
    depth = 30
    agent = Agent(ScriptedModel(["the bottom", Stall()]), name="level0")
    for level in range(1, depth):
        agent = Agent(ScriptedModel([Call(f"level{level - 1}", prompt="go")]), tools=[agent], name=f"level{level}")
    run = agent.run("go")
    await read(run, lambda event: run.abort("enough") if isinstance(event, TextStreamed) else None)
    outcome = await run
    assert statuses(stopped(outcome)) == ["interrupted"]
    assert set(fates(outcome).values()) == {"finished", "stopped"}
    assert len(fates(outcome)) == 2 * depth - 1


async def test_an_agent_is_work_of_whoever_settles_it():
    outcome = await settle_run(Context("mine"), Agent(ScriptedModel("yes"), name="inner"), "go")
    assert isinstance(outcome, Completed)
    assert outcome.value.text == "yes"
    failed = await settle_run(Context(), Agent(ScriptedModel(["half", Error("broken")])), "go")
    assert isinstance(failed, Failed)
    assert failed.partial is not None
    assert failed.partial.text == "half"


async def test_an_error_that_cannot_be_written_to_still_comes_out_of_work_as_it_is():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    failed = await settle_run(Context(), Agent(ScriptedModel(["half", Error(Frozen(7))])), "go")
    assert isinstance(failed, Failed)
    assert failed.error == Frozen(7)


async def test_an_error_with_a_partial_of_its_own_comes_out_of_work_as_it_is():
    class Incomplete(Exception):
        @property
        def partial(self) -> bytes:
            return b"abc"

    failed = await settle_run(Context(), Agent(ScriptedModel(["half", Error(Incomplete())])), "go")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Incomplete)
    assert failed.partial is not None
    assert failed.partial.text == "half", "what the agent had, and not what its error says"


async def test_each_run_of_an_agent_begins_anew():
    agent = Agent(ScriptedModel("one", "two"))
    assert [(await agent.run("go")).unwrap().text for _ in range(2)] == ["one", "two"]


async def test_nothing_is_asked_after_a_stop_between_rounds():
    model = ScriptedModel([Call("search", query="a")], "never")
    run = Agent(model, tools=[search]).run("go")
    await read(run, lambda event: run.stop(StopAt.AFTER_TOOLS) if event.kind == "answer_started" else None)
    assert statuses(stopped(await run)) == ["completed"]
    assert len(model.requests) == 1


async def test_the_context_of_a_tool_is_its_own(clock: FakeClock):
    seen: list[ToolContext] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        seen.append(ctx)
        return "seen"

    run = Agent(ScriptedModel([Delay(0), Call("look"), Call("look")], "done"), tools=[look], name="me").run("go")
    await run
    assert [ctx.call_id for ctx in seen] == ["call-1", "call-2"]
    assert [ctx.path for ctx in seen] == [("me", "look")] * 2
    assert seen[0].run_id == run.id
    assert seen[0].signal is not seen[1].signal, "each follows the run's, and can be left behind by itself"
    assert seen[0].kept is None
