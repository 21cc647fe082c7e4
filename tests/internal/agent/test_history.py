"""Owns the tests that look inside, beside those of `tests/agent/test_history.py`.

Histories: what each provider's rules refuse, and how a conversation from elsewhere is mended.
"""

import json

import pytest
from hypothesis import given, settings

from safepoint.agent import HistoryError, repair, validate
from safepoint.agent.arguments import invalid_arguments, valid_arguments
from safepoint.agent.history import problems, unique_id, valid_name
from safepoint.agent.model_text import INTERRUPTED, NOT_RUN, UNKNOWN
from safepoint.agent.provider_rules import Provider
from safepoint.messages import AssistantMessage, Message, SystemMessage, UserMessage
from tests.agent.test_history import (
    HI,
    call,
    calling,
    conversations,
    result,
)

RULES: tuple[Provider, ...] = ("openai", "openai-responses", "anthropic")


GOOD: list[Message] = [
    SystemMessage(text="Be brief."),
    HI,
    calling(call("a"), call("b"), text="Let me see"),
    result("b"),
    result("a"),
    AssistantMessage(text="Here"),
    UserMessage(text="more"),
    AssistantMessage(text="It was cut", interrupted=True),
]


@pytest.mark.parametrize("rules", RULES)
def test_a_good_conversation_is_accepted_and_left_alone(rules: Provider):
    validate(GOOD, rules)
    assert repair(GOOD) == GOOD


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([HI, calling(call())], "no result"),
        ([HI, calling(call()), HI], "no result"),
        ([HI, calling(call()), AssistantMessage(text="so"), result()], "no result"),
        ([HI, result()], "answers no open call"),
        ([result(), HI], "answers no open call"),
        ([HI, calling(call()), result(), result()], "answers no open call"),
        ([HI, calling(call()), SystemMessage(text="x"), result()], "no result"),
        ([HI, calling(call("a"), call("a")), result(), result()], "used before"),
        ([HI, calling(call()), result(), HI, calling(call()), result()], "used before"),
        ([HI, AssistantMessage()], "neither text nor calls"),
        ([HI, calling(call("")), result("")], "without id or name"),
        ([HI, calling(call(name="")), result()], "without id or name"),
        ([HI, calling(call(arguments='{"q": ')), result()], "not a JSON object"),
        ([HI, calling(call(arguments="[1]")), result()], "not a JSON object"),
        ([HI, calling(call(arguments="[" * 100_000)), result()], "not a JSON object"),
        ([HI, calling(call(name="search web")), result()], "not a tool name"),
        ([HI, calling(call(name="s" * 65)), result()], "not a tool name"),
        ([HI, calling(call(name="größe")), result()], "not a tool name"),
        ([UserMessage(text=" ")], "empty user message"),
        ([SystemMessage(text=""), HI], "empty system message"),
        ([HI, calling(call()), result(content="")], "empty tool result"),
        ([HI, calling(call()), result(content=" \n")], "empty tool result"),
    ],
)
def test_every_provider_refuses(rules: Provider, messages: list[Message], told: str):
    with pytest.raises(HistoryError, match=told):
        validate(messages, rules)
    validate(repair(messages))


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([AssistantMessage(text="Hello"), HI], "begins with a user message"),
        ([SystemMessage(text="x"), AssistantMessage(text="Hello"), HI], "message 1: .* begins with a user"),
        ([HI, AssistantMessage(text="a"), AssistantMessage(text="b")], "two answers in a row"),
        ([HI, AssistantMessage(text="a"), SystemMessage(text="x"), AssistantMessage(text="b")], "two answers in a row"),
        ([HI, AssistantMessage(text=" \n")], "white space"),
    ],
)
def test_only_anthropic_refuses(messages: list[Message], told: str):
    with pytest.raises(HistoryError, match=told):
        validate(messages, "anthropic")
    with pytest.raises(HistoryError, match="anthropic"):
        validate(messages)
    for rules in RULES[:2]:
        validate(messages, rules)
    validate(repair(messages))


def test_half_written_arguments_are_kept_inside_an_object():
    (_, answer, _) = repair([HI, calling(call(arguments='{"query": "saf')), result()])
    assert isinstance(answer, AssistantMessage)
    assert json.loads(answer.calls[0].arguments) == {"unreadable": '{"query": "saf'}
    assert invalid_arguments(answer.calls[0].arguments) == '{"query": "saf'
    assert invalid_arguments('{"unreadable": "x", "and": "more"}') is None
    assert invalid_arguments('{"query": "x"}') is None
    assert valid_arguments('{"query": "x"}') == '{"query": "x"}'


def test_names_and_ids_that_no_provider_accepts_are_changed_as_little_as_possible():
    assert valid_name("search") == "search"
    assert valid_name("functions.search web!") == "functions_search_web_"
    assert len(valid_name("x" * 100)) == 64
    assert unique_id("a", {"b"}) == "a"
    assert unique_id("a", {"a", "a-0"}) == "a-1"
    assert unique_id("", {"call-0"}) == "call-1"


def test_the_verdicts_say_what_became_of_a_call():
    for verdict, status in ((NOT_RUN, "not_started"), (INTERRUPTED, "interrupted"), (UNKNOWN, "unknown")):
        told = verdict.result(call("x", "pay"), "Because.")
        assert (told.call_id, told.name, told.status) == ("x", "pay", status)
        assert told.content.endswith("Because.")


@settings(max_examples=400, deadline=None)
@given(conversations)
def test_any_list_of_messages_is_mended_for_all_providers_and_mending_twice_changes_nothing(messages: list[Message]):
    mended = repair(messages)
    for rules in RULES:
        assert list(problems(mended, rules)) == []
    assert repair(mended) == mended
