"""Histories: what each provider's rules refuse, and how a conversation from elsewhere is mended."""

import json
from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.agent import HistoryError, repair, validate
from safepoint.errors import UsageError
from safepoint.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolResult, UserMessage

HI = UserMessage(text="hi")


def call(call_id: str = "a", name: str = "search", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id=call_id, name=name, arguments=arguments)


def calling(*calls: ToolCall, text: str = "") -> AssistantMessage:
    return AssistantMessage(text=text, calls=calls)


def result(call_id: str = "a", content: str = "found") -> ToolResult:
    return ToolResult(call_id=call_id, name="search", content=content)


def test_a_refusal_lists_every_problem_with_its_place():
    with pytest.raises(HistoryError) as refused:
        validate([HI, calling(call()), UserMessage(text="")], "openai")
    assert str(refused.value).count("\n") == 2
    assert "message 1: the call 'a' has no result before message 2" in str(refused.value)
    assert "message 2: an empty user message" in str(refused.value)


def test_unknown_rules_are_a_mistake_of_the_caller():
    with pytest.raises(UsageError, match="openai, openai-responses, anthropic, gemini, mistral, ollama"):
        validate([HI], "bard")  # type: ignore[arg-type]


def test_an_open_call_is_closed_as_unknown_and_never_as_a_success():
    mended = repair([HI, calling(call("a"), call("b")), result("b"), HI])
    assert [(one.call_id, one.status) for one in mended if isinstance(one, ToolResult)] == [
        ("a", "unknown"),
        ("b", "completed"),
    ]


def test_calls_with_one_id_keep_their_own_results():
    mended = repair([HI, calling(call("a"), call("a")), result("a", "first"), result("a", "second")])
    answer = mended[1]
    assert isinstance(answer, AssistantMessage)
    ids = [one.call_id for one in answer.calls]
    assert len(set(ids)) == 2
    assert [(one.call_id, one.content) for one in mended if isinstance(one, ToolResult)] == [
        (ids[0], "first"),
        (ids[1], "second"),
    ]


def test_two_answers_in_a_row_become_one_and_lose_no_word():
    mended = repair([HI, AssistantMessage(text="One.", interrupted=True), calling(call(), text="Two."), result()])
    assert [type(message).__name__ for message in mended] == ["UserMessage", "AssistantMessage", "ToolResult"]
    answer = mended[1]
    assert isinstance(answer, AssistantMessage)
    assert answer.text == "One. [interrupted]\n\nTwo."
    assert not answer.interrupted


def test_a_conversation_that_begins_with_an_answer_gets_a_beginning_that_says_so():
    mended = repair([SystemMessage(text="x"), AssistantMessage(text="Hello, how can I help?")])
    assert [message.kind for message in mended] == ["system", "user", "assistant"]
    assert "missing" in mended[1].text  # type: ignore[union-attr]


texts = st.sampled_from(["", " ", "\n\t", "hello", "größe 😀", "x" * 200])


ids = st.sampled_from(["", "a", "b", "c", "call-0"])


names = st.sampled_from(["", "search", "no such tool", "é", "n" * 80])


arguments = st.sampled_from(["", "{}", '{"q": 1}', '{"q": ', "[1]", "null", '"text"', '{"unreadable": "x"}'])


calls = st.builds(ToolCall, call_id=ids, name=names, arguments=arguments)


one_message: st.SearchStrategy[Message] = st.one_of(
    st.builds(SystemMessage, text=texts),
    st.builds(UserMessage, text=texts),
    st.builds(AssistantMessage, text=texts, calls=st.lists(calls, max_size=3).map(tuple), interrupted=st.booleans()),
    st.builds(
        ToolResult,
        call_id=ids,
        name=names,
        content=texts,
        status=st.sampled_from(["completed", "failed", "interrupted", "not_started", "unknown"]),
    ),
)


conversations = st.lists(one_message, max_size=12)


@settings(max_examples=400, deadline=None)
@given(conversations, st.randoms(use_true_random=False))
def test_what_all_accept_stays_as_it_is_whatever_the_order_of_results(messages: list[Message], random: Random):
    valid: list[Message] = []
    for _, group in groupby(repair(messages), key=lambda message: isinstance(message, ToolResult)):
        together = list(group)
        if isinstance(together[0], ToolResult):
            random.shuffle(together)
        valid += together
    validate(valid)
    assert repair(valid) == valid


@settings(max_examples=200, deadline=None)
@given(conversations)
def test_mending_invents_no_success(messages: list[Message]):
    told = [(one.name, one.content) for one in messages if isinstance(one, ToolResult) and one.status == "completed"]
    for one in repair(messages):
        if isinstance(one, ToolResult) and one.status == "completed":
            assert (one.name, one.content) in told or one.content == "(no output)"


def test_a_true_result_that_came_late_is_put_in_its_place():
    paid = result("a", "paid, receipt 77")
    mended = repair([HI, calling(call("a")), UserMessage(text="still there?"), paid])
    assert mended == [HI, calling(call("a")), paid, UserMessage(text="still there?")]
    again: list[Message] = [HI, calling(call("a")), HI, calling(call("a")), result("a", "of the second")]
    contents = [one.content for one in repair(again) if isinstance(one, ToolResult)]
    assert contents[1] == "of the second"
    assert "not known" in contents[0]


def test_ids_that_a_provider_refuses_are_replaced_always_in_the_same_way():
    history: list[Message] = [HI, calling(call("functions.look:0")), result("functions.look:0"), HI]
    assert repair(history) == history, "the ids of the record do not change"
    with pytest.raises(HistoryError, match="call id"):
        validate(history, "anthropic")
    mended = repair(history, "anthropic")
    validate(mended, "anthropic")
    assert mended == repair([*history, HI], "anthropic")[:4]
    with pytest.raises(HistoryError, match="call id"):
        validate([HI, calling(call("x" * 60)), result("x" * 60)], "openai")
    validate([HI, calling(call("x" * 60)), result("x" * 60)], "anthropic")


def test_white_space_before_a_call_is_refused_by_anthropic_and_left_out():
    history: list[Message] = [HI, calling(call(), text="\n\n"), result()]
    with pytest.raises(HistoryError, match="white space"):
        validate(history, "anthropic")
    validate(repair(history), "anthropic")


@pytest.mark.parametrize("text", ["caf\udce9", "ok \ud83d"])
def test_half_of_a_character_is_replaced(text: str):
    with pytest.raises(HistoryError, match="half of a character"):
        validate([UserMessage(text=text)])
    repaired = repair([UserMessage(text=text)])
    validate(repaired)
    repaired[0].text.encode()  # type: ignore[union-attr]
    assert repair([UserMessage(text="\ud83d\ude00")]) == [UserMessage(text="😀")]


@pytest.mark.parametrize(
    "text", ['{"x": NaN}', '{"x": Infinity}', '{"x": 1e999}', '{"x": ' + "[" * 200 + "]" * 200 + "}"]
)
def test_what_only_python_calls_json_is_kept_as_text(text: str):
    history: list[Message] = [HI, calling(call(arguments=text)), result()]
    with pytest.raises(HistoryError, match="not a JSON object"):
        validate(history)
    mended = repair(history)
    validate(mended)
    assert json.loads(mended[1].calls[0].arguments) == {"unreadable": text}  # type: ignore[union-attr]


def test_something_that_is_no_message_is_refused():
    with pytest.raises(UsageError, match="UserMessage"):
        repair([{"role": "user", "content": "hi"}])  # type: ignore[list-item]


def test_templates_of_open_models_get_users_and_assistants_in_turns():
    history: list[Message] = [
        HI,
        SystemMessage(text="Be brief."),
        HI,
        calling(call("123456789")),
        result("123456789"),
        HI,
        HI,
    ]
    assert repair(history) == history, "the record keeps what was said"
    told = repair(history, "strict-alternation")
    assert [message.kind for message in told] == ["system", "user", "assistant", "tool_result", "assistant", "user"]
    assert told[1] == UserMessage(text="hi\n\nhi")
    assert told[4] == AssistantMessage(text="[interrupted]")
