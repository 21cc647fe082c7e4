"""Owns the tests that look inside, beside those of `tests/run/test_messages.py`.

Messages: a closed union of frozen values; a result says truthfully what became of its call.
"""

from typing import get_args

from safepoint.messages import Message
from safepoint.run import messages


def test_the_union_holds_every_message_of_the_module():
    members = {kind.__name__ for kind in get_args(Message)}
    assert members == set(messages.__all__) - {"Message", "CallStatus", "ToolCall"}
