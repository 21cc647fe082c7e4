"""What a provider is told of things that did not end as planned."""

import json
from typing import get_args

import pytest

from safepoint.agent.arguments import arguments_object, arguments_text
from safepoint.agent.model_text import STATUS_SENTENCES, assistant_text, result_text
from safepoint.messages import AssistantMessage, CallStatus, ToolCall, ToolResult


def call(arguments: str) -> ToolCall:
    return ToolCall(call_id="c1", name="search", arguments=arguments)


def test_whole_text_is_said_as_it_is():
    assert assistant_text(AssistantMessage(text="Hello. ")) == "Hello. "


def test_interrupted_text_is_marked_where_it_was_cut():
    assert assistant_text(AssistantMessage(text="Once upon a", interrupted=True)) == "Once upon a [interrupted]"
    assert assistant_text(AssistantMessage(interrupted=True)) == "[interrupted]"


def test_every_status_but_completed_has_words():
    assert STATUS_SENTENCES.keys() | {"completed"} == set(get_args(CallStatus))


@pytest.mark.parametrize("status", STATUS_SENTENCES)
def test_a_call_that_did_not_complete_says_so_before_its_content(status: CallStatus):
    told = result_text(ToolResult(call_id="c1", name="search", content="3 of 7 rows", status=status))
    assert told == f"{STATUS_SENTENCES[status]}\n3 of 7 rows"


def test_a_completed_call_says_its_content_and_never_nothing():
    assert result_text(ToolResult(call_id="c1", name="search", content="7 rows")) == "7 rows"
    assert result_text(ToolResult(call_id="c1", name="search", content="")) == "(no output)"


@pytest.mark.parametrize("text", ['{"query": "x",\n "n": 1}', "{}"])
def test_good_arguments_stay_as_the_model_wrote_them(text: str):
    assert arguments_text(call(text)) == text
    assert arguments_object(call(text)) == json.loads(text)


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_arguments_are_an_empty_object(text: str):
    assert arguments_text(call(text)) == "{}"
    assert arguments_object(call(text)) == {}


@pytest.mark.parametrize("text", ['{"query": "sa', "[1]", "null", '"x"'])
def test_arguments_that_are_no_object_are_kept_inside_of_one(text: str):
    assert arguments_object(call(text)) == {"unreadable": text}
    assert json.loads(arguments_text(call(text))) == {"unreadable": text}
