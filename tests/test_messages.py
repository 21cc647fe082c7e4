"""Messages: a closed union of frozen values; a result says truthfully what became of its call."""

from typing import get_args

from safepoint import messages
from safepoint.messages import AssistantMessage, CallStatus, Message, ToolResult


def test_the_union_holds_every_message_of_the_module():
    members = {kind.__name__ for kind in get_args(Message)}
    json = {"message_from_json", "message_to_json"}
    others = {"Message", "CallStatus", "FinishReason", "ToolCall", "from_openai", *json}
    assert members == {*messages.__all__} - others


def test_a_result_can_say_everything_that_may_become_of_a_call():
    assert set(get_args(CallStatus)) == {"completed", "failed", "interrupted", "not_started", "unknown"}
    assert ToolResult(call_id="1", name="search", content="found").status == "completed"


def test_an_answer_is_whole_unless_it_says_so():
    assert not AssistantMessage(text="hi").interrupted
