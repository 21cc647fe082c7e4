"""A conversation in work: answers that come in piece by piece, open calls, sealing, going on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.agent import AgentResult, CallDelta, ModelRequest, validate
from safepoint.agent.conversation import Conversation, PartialAnswer
from safepoint.agent.model_text import INTERRUPTED, NOT_RUN, UNKNOWN
from safepoint.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from safepoint.run import Usage
from tests.kit.agents import called

HI = UserMessage(text="hi there")
REQUEST = ModelRequest(messages=(HI,))


def answer_of(*pieces: str | CallDelta) -> PartialAnswer:
    answer = PartialAnswer()
    for piece in pieces:
        answer.add_text(piece) if isinstance(piece, str) else answer.add_call(piece)
    return answer


def test_the_pieces_of_calls_may_come_interleaved():
    answer = answer_of(
        "Let ",
        called(1, "b", "read", '{"page"'),
        "me see",
        called(0, "a", "search", '{"q": '),
        CallDelta(index=1, arguments=": 2}"),
        CallDelta(index=0, arguments='"x"}'),
    )
    assert answer.message() == AssistantMessage(
        text="Let me see",
        calls=(
            ToolCall(call_id="a", name="search", arguments='{"q": "x"}'),
            ToolCall(call_id="b", name="read", arguments='{"page": 2}'),
        ),
    )


def test_a_call_that_has_no_name_yet_is_not_there_yet():
    assert answer_of(CallDelta(index=0, call_id="a", arguments="{")).calls() == ()
    assert answer_of(CallDelta(index=0, call_id="a")).cut_off() == []


def test_ids_that_are_missing_or_used_before_get_ones_of_their_own():
    answer = answer_of(called(0, "a", "x"), called(1, "", "x"), called(2, "a", "x"), called(3, "b", "x"))
    ids = [call.call_id for call in answer.calls(["b"])]
    assert ids[0] == "a"
    assert len(set(ids)) == 4
    assert "" not in ids
    assert "b" not in ids


def test_a_cut_off_answer_keeps_its_words_and_says_that_no_call_ran():
    answer = answer_of("I will look", called(0, "a", "search", '{"query": "saf'))
    message, result = answer.cut_off()
    assert isinstance(message, AssistantMessage)
    assert message.interrupted
    assert message.text == "I will look"
    assert isinstance(result, ToolResult)
    assert result.status == "not_started"
    validate([HI, message, result])


def test_of_white_space_nothing_is_kept():
    assert answer_of("  ", "\n").cut_off() == []


def test_what_the_provider_said_counts_once_the_answer_is_whole():
    answer = answer_of("word " * 100)
    answer.usage, answer.finish_reason = Usage(0, 12, 34), "stop"
    assert answer.cost(REQUEST) == Usage(1, 12, 34)


def test_a_report_in_the_middle_of_an_answer_that_was_cut_off_is_an_estimate():
    """Some providers say at the beginning what they read, and that they have written one token."""
    answer = answer_of("x" * 400)
    answer.usage = Usage(1, 12, 1)
    assert answer.cost(REQUEST) == Usage(1, 12, 100, estimated=True)


def test_without_a_report_the_cost_is_estimated_from_what_was_read_and_written():
    answer = answer_of("x" * 40, called(0, "a", "search", "y" * 40))
    assert answer.cost(ModelRequest(messages=(UserMessage(text="z" * 80),))) == Usage(1, 20, 20, estimated=True)


def test_a_request_that_was_refused_cost_nothing_and_one_that_was_stopped_may_have_been_read():
    assert PartialAnswer().cost(REQUEST) == Usage(1)
    assert PartialAnswer().cost(REQUEST, stopped=True) == Usage(1, 2, 0, estimated=True)


def talk_in_round() -> Conversation:
    conversation = Conversation([HI])
    conversation.add(answer_of(called(0, "a", "x"), called(1, "b", "x"), called(2, "c", "x")))
    return conversation


def test_results_are_put_in_the_order_of_the_calls():
    conversation = talk_in_round()
    for call in reversed(conversation.open_calls):
        conversation.results[call.call_id] = ToolResult(call_id=call.call_id, name="x", content=call.call_id)
    assert conversation.open_calls == ()
    conversation.close_tool_round()
    assert [one.content for one in conversation.messages[-3:] if isinstance(one, ToolResult)] == ["a", "b", "c"]
    assert not conversation.in_tool_round


def test_sealed_in_the_middle_of_a_round_every_call_has_a_result_that_is_true():
    conversation = talk_in_round()
    conversation.results["b"] = ToolResult(call_id="b", name="x", content="done")
    sealed = conversation.sealed()
    validate(sealed.messages)
    assert [one.status for one in sealed.messages if isinstance(one, ToolResult)] == [
        "not_started",
        "completed",
        "not_started",
    ]
    assert conversation.in_tool_round, "sealing changes nothing"


def test_going_on_opens_only_the_calls_that_may_run_again():
    conversation = talk_in_round()
    for call, verdict in zip(conversation.open_calls, (INTERRUPTED, UNKNOWN, NOT_RUN), strict=True):
        conversation.results[call.call_id] = verdict.result(call)
    conversation.close_tool_round()
    conversation.id = "first"
    again = Conversation(
        resume=conversation.sealed(), run_again=lambda result: "no" if result.status == "unknown" else "yes"
    )
    assert [call.call_id for call in again.open_calls] == ["a", "c"]
    assert again.results["b"].status == "unknown"
    assert again.id == "first"


def test_going_on_asks_again_for_an_answer_that_was_cut_off_and_not_for_a_whole_one():
    conversation = Conversation([HI])
    conversation.answer = answer_of("half of", called(0, "a", "x", '{"q'))
    assert Conversation(resume=conversation.sealed()).messages == [HI]
    conversation = Conversation([HI])
    conversation.add(answer_of("all of it"))
    assert conversation.answered
    assert Conversation(resume=conversation.sealed()).answered


def test_going_on_after_a_closed_round_keeps_its_results():
    conversation = talk_in_round()
    for call in conversation.open_calls:
        conversation.results[call.call_id] = ToolResult(call_id=call.call_id, name="x", content="done")
    conversation.close_tool_round()
    again = Conversation(resume=conversation.sealed())
    assert again.open_calls == ()
    assert again.in_tool_round
    again.close_tool_round()
    assert again.messages == conversation.messages


def test_a_call_that_is_asked_about_is_open_and_keeps_its_result_until_then():
    conversation = talk_in_round()
    for call in conversation.open_calls:
        conversation.results[call.call_id] = UNKNOWN.result(call)
    conversation.close_tool_round()
    again = Conversation(
        resume=conversation.sealed(), run_again=lambda result: "ask" if result.call_id == "b" else "no"
    )
    assert [call.call_id for call in again.open_calls] == ["b"]
    assert [one.status for one in again.sealed().messages if isinstance(one, ToolResult)] == ["unknown"] * 3


def test_a_result_says_the_last_words():
    conversation = Conversation([HI, AssistantMessage(text="first"), UserMessage(text="and?")])
    assert conversation.sealed().text == "first"
    assert Conversation().sealed() == AgentResult("")


pieces = st.one_of(
    st.sampled_from(["", " ", "word ", "größe"]),
    st.builds(
        CallDelta,
        index=st.integers(0, 2),
        call_id=st.sampled_from(["", "a", "b"]),
        name=st.sampled_from(["", "search", "no such!"]),
        arguments=st.sampled_from(["", "{", '"q": 1}', "}", "[", "null"]),
    ),
)
said: st.SearchStrategy[list[Message]] = st.sampled_from(
    [
        [HI],
        [
            HI,
            AssistantMessage(calls=(ToolCall(call_id="a", name="x", arguments="{}"),)),
            ToolResult(call_id="a", name="x", content="y"),
        ],
    ]
)


@settings(max_examples=300, deadline=None)
@given(said, st.lists(pieces, max_size=8), st.booleans())
def test_cut_off_after_any_piece_the_conversation_is_valid(
    before: list[Message], parts: list[str | CallDelta], whole: bool
):
    conversation = Conversation(before)
    answer = answer_of(*parts)
    if whole and (answer.text.strip() or answer.calls()):
        conversation.add(answer)
    else:
        conversation.answer = answer
    sealed = conversation.sealed()
    validate(sealed.messages)
    validate(Conversation(resume=sealed).sealed().messages)
