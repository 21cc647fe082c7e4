"""How an answer ended: it is on the event, the message and the result, and a call that was cut off never runs."""

import json

import pytest

from safepoint import Agent, Completed, Failed, Retry, StopAt
from safepoint.agent import AgentResult, ModelError, tool, validate
from safepoint.events import AnswerFinished, TextStreamed, event_from_json, event_to_json
from safepoint.messages import (
    AssistantMessage,
    FinishReason,
    ToolResult,
    UserMessage,
    message_from_json,
    message_to_json,
)
from safepoint.models.scripted import Call, Error, Finish, ScriptedModel
from safepoint.wire import outcome_from_json, outcome_to_json

AT_ONCE = Retry(attempts=4, delay=0, on=lambda error: isinstance(error, ModelError) and error.retryable)
CUT: list[FinishReason] = ["length", "content_filter", "refusal"]


@pytest.mark.parametrize("reason", ["stop", "paused", *CUT])
async def test_the_reason_is_on_the_event_the_message_and_the_result(reason: FinishReason):
    async with Agent(ScriptedModel(["The answer is forty-", Finish(reason)])).run("How many?") as run:
        events = [event async for event in run if isinstance(event, AnswerFinished)]
        outcome = await run
    assert isinstance(outcome, Completed)
    last = outcome.value.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert [events[0].finish_reason, last.finish_reason, outcome.value.finish_reason] == [reason] * 3
    back = event_from_json(event_to_json(events[0]))
    assert isinstance(back, AnswerFinished)
    assert back.finish_reason == reason
    kept = message_from_json(message_to_json(last))
    assert isinstance(kept, AssistantMessage)
    assert kept.finish_reason == reason
    assert outcome_from_json(outcome_to_json(outcome, AgentResult), AgentResult).unwrap().finish_reason == reason


async def test_an_answer_that_was_stopped_has_no_reason():
    async with Agent(ScriptedModel("one two three")).run("go") as run:
        async for event in run:
            if isinstance(event, TextStreamed):
                run.stop()
            if isinstance(event, AnswerFinished):
                assert (event.finish_reason, event.interrupted) == (None, True)
        outcome = await run
    assert outcome.partial is not None
    assert outcome.partial.finish_reason is None


def test_records_of_earlier_versions_are_read():
    old = {"v": 1, "run_id": "r", "path": ["a"], "at": 1.0, "text": "x", "interrupted": False, "usage": {"requests": 1}}
    event = event_from_json(json.dumps({**old, "kind": "answer_finished"}))
    assert isinstance(event, AnswerFinished)
    assert event.finish_reason is None
    message = message_from_json('{"v": 1, "kind": "assistant", "text": "x", "calls": [], "interrupted": false}')
    assert message == AssistantMessage(text="x")


@pytest.mark.parametrize("reason", CUT)
async def test_an_answer_without_a_word_is_not_asked_for_again_when_the_provider_says_why(reason: FinishReason):
    model = ScriptedModel([Finish(reason)], "never")
    outcome = await Agent(model, retry=AT_ONCE).run("go")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.finish_reason == reason
    assert not outcome.error.retryable
    assert len(model.requests) == 1
    validate(outcome.partial.messages if outcome.partial else [])


async def test_only_an_empty_answer_that_just_ended_is_asked_for_again():
    model = ScriptedModel([Finish("stop")], [" \n", Finish("stop")], "words")
    assert (await Agent(model, retry=AT_ONCE).run("go")).unwrap().text == "words"
    assert len(model.requests) == 3


def deleting(*answer: Call | Finish | str) -> tuple[Agent, ScriptedModel, list[str]]:
    deleted: list[str] = []

    @tool
    def delete(folder: str = "/") -> str:
        deleted.append(folder)
        return "deleted"

    model = ScriptedModel(list(answer), "Sorry.")
    return Agent(model, tools=[delete]), model, deleted


def results(outcome: Completed[AgentResult]) -> list[ToolResult]:
    return [message for message in outcome.value.messages if isinstance(message, ToolResult)]


@pytest.mark.parametrize("reason", CUT)
@pytest.mark.parametrize("text", ["", "{}", '{"folder": "/tmp"}', '{"folder": "/'])
async def test_a_call_in_which_the_answer_was_cut_off_never_runs(reason: FinishReason, text: str):
    agent, model, deleted = deleting(Call.raw("delete", text), Finish(reason))
    outcome = await agent.run("Clean up")
    assert isinstance(outcome, Completed)
    assert deleted == []
    [result] = results(outcome)
    assert result.status == "not_started"
    assert {"length": "token limit", "content_filter": "filter", "refusal": "refusal"}[reason] in result.content
    assert model.requests[1].messages[-1] == result, "the model is told"
    validate(outcome.value.messages)


async def test_the_calls_before_it_are_complete_and_run():
    agent, _, deleted = deleting(Call("delete", folder="a"), Call.raw("delete", ""), Finish("length"))
    outcome = await agent.run("Clean up")
    assert isinstance(outcome, Completed)
    assert deleted == ["a"]
    assert [result.status for result in results(outcome)] == ["completed", "not_started"]


async def test_it_does_not_run_when_the_conversation_is_resumed_either():
    agent, _, deleted = deleting(Call.raw("delete", ""), Finish("length"))
    run = agent.run("Clean up")
    run.stop(StopAt.AFTER_MODEL)
    outcome = await run
    assert outcome.partial is not None
    stored = outcome_from_json(outcome_to_json(outcome, AgentResult), AgentResult)
    resumed = await agent.run(resume=stored.partial)
    assert isinstance(resumed, Completed)
    assert deleted == []
    assert [result.status for result in results(resumed)] == ["not_started"]


async def test_an_answer_that_fails_later_keeps_no_reason():
    model = ScriptedModel(["half", Error("broken", retryable=False)])
    outcome = await Agent(model).run("go")
    assert outcome.partial is not None
    assert outcome.partial.finish_reason is None
    assert outcome.partial.messages[0] == UserMessage(text="go")
