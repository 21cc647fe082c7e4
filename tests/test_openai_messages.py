"""Conversations in the form of OpenAI's Chat Completions API: what is read, and what is refused by name."""

from typing import Any

import pytest

from safepoint import Agent, Completed
from safepoint.agent import validate
from safepoint.errors import UsageError
from safepoint.messages import (
    AssistantMessage,
    SystemMessage,
    ToolCall,
    ToolResult,
    UserMessage,
    from_openai,
)
from safepoint.models.scripted import ScriptedModel

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "owls"}'}}
DICTS: list[object] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "are owls?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "birds"},
    {"role": "assistant", "content": "Birds.", "refusal": None, "annotations": [], "audio": None},
]


def test_each_dict_becomes_the_message_that_it_says():
    messages = from_openai(DICTS)
    assert messages == [
        SystemMessage(text="Be brief."),
        UserMessage(text="What are owls?"),
        AssistantMessage(calls=(ToolCall(call_id="c1", name="search", arguments='{"query": "owls"}'),)),
        ToolResult(call_id="c1", name="search", content="birds"),
        AssistantMessage(text="Birds."),
    ]
    validate(messages)


def test_a_refusal_is_the_text_of_the_answer_and_why_it_ended():
    [answer] = from_openai([{"role": "assistant", "content": None, "refusal": "I cannot help with that."}])
    assert isinstance(answer, AssistantMessage)
    assert (answer.text, answer.finish_reason) == ("I cannot help with that.", "refusal")


def test_the_message_objects_of_the_openai_package_are_read_like_dicts():
    chat = pytest.importorskip("openai.types.chat")
    answer = chat.ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [CALL]})
    assert from_openai([answer]) == from_openai([DICTS[2]])


def test_arguments_that_are_an_object_already_become_json_text():
    call = {"id": "c1", "function": {"name": "search", "arguments": {"query": "Käuze"}}}
    [answer] = from_openai([{"role": "assistant", "tool_calls": [call]}])
    assert isinstance(answer, AssistantMessage)
    assert answer.calls[0].arguments == '{"query": "Käuze"}'


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ("hi", "message 1 must be a dict with role and content, not 'hi'"),
        ({"content": "hi"}, "message 1 has the role None: the roles are system, developer"),
        ({"role": "model", "content": "hi"}, "message 1 has the role 'model'"),
        ({"role": "function", "name": "f", "content": "1"}, 'message 1 has the role "function"'),
        ({"role": "user", "content": None}, "message 1: content must be a text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "part 0 has the type 'image_url'"),
        ({"role": "user", "content": [{"type": "text"}]}, "message 1, part 0: text must be a text"),
        ({"role": "tool", "content": "1"}, "message 1: tool_call_id must be a text"),
        ({"role": "assistant", "audio": {"id": "a"}}, "message 1 has audio"),
        ({"role": "assistant", "function_call": {"name": "f"}}, 'message 1 has a "function_call"'),
        ({"role": "assistant", "tool_calls": "c1"}, "message 1: tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "message 1, call 0 has no function"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, "call 0 has the type 'custom'"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, "message 1, call 0: id must be a text"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": [1]}}]},
            "message 1, call 0: arguments must be JSON text",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_number_of_its_message(item: object, told: str):
    with pytest.raises(UsageError) as refused:
        from_openai([{"role": "user", "content": "hi"}, item])
    assert told in str(refused.value)


@pytest.mark.parametrize("messages", [{"role": "user", "content": "hi"}, "hi", None, 3])
def test_what_is_no_list_at_all_is_refused(messages: Any):
    with pytest.raises(UsageError, match="messages must be a list of dicts"):
        from_openai(messages)


async def test_an_agent_goes_on_from_what_was_read():
    outcome = await Agent(ScriptedModel("Because they hunt.")).run("Why?", history=from_openai(DICTS))
    assert isinstance(outcome, Completed)
    assert len(outcome.value.messages) == 7


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ([{"role": "user", "content": "hi"}], "from_openai"),
        ({"role": "user", "content": "hi"}, "from_openai"),
        ("hi", "history must be a list of messages, not 'hi'"),
        (None, "history must be a list of messages, not None"),
        ([("user", "hi")], "must be one of safepoint.messages"),
    ],
)
def test_a_history_of_another_kind_is_refused_and_the_error_says_how_to_read_it(history: Any, told: str):
    with pytest.raises(UsageError) as refused:
        Agent(ScriptedModel("x")).run("Go on", history=history)
    assert told in str(refused.value)


@pytest.mark.parametrize("prompt", [{"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]])
def test_a_prompt_of_dicts_is_refused_and_the_error_says_how_to_read_it(prompt: Any):
    with pytest.raises(UsageError, match="from_openai"):
        Agent(ScriptedModel("x")).run(prompt)
