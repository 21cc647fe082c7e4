"""Owns the tests of a stopped loop on paper: what is written is read back, and nothing else is believed."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint import UsageError
from safepoint.agent import AgentResult
from safepoint.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from safepoint.run import Usage
from safepoint.turns import InterruptedTurn
from safepoint.turns.loop_checkpoint import SavedLoop, adapter
from safepoint.turns.loop_checkpoint import read as read_with
from safepoint.turns.loop_checkpoint import write as write_with

SAID = AgentResult(
    "half an ans",
    (
        UserMessage(text="go"),
        AssistantMessage(text="", calls=(ToolCall(call_id="1", name="dig", arguments="{}"),)),
        ToolResult(call_id="1", name="dig", content="dug", status="interrupted"),
        AssistantMessage(text="half an ans"),
    ),
    Usage(3, 5),
    steps=2,
    kept={"1": AgentResult("inside")},
)


def write(saved: SavedLoop[Any], item_type: Any, partial_type: Any) -> str:
    return write_with(saved, adapter("item_type", list[item_type]), adapter("partial_type", partial_type))


def read(text: str, item_type: Any, partial_type: Any) -> SavedLoop[Any]:
    return read_with(text, adapter("item_type", list[item_type]), adapter("partial_type", partial_type))


@dataclass
class Order:
    number: int
    text: str = ""


def test_what_is_written_is_read_back() -> None:
    saved = SavedLoop(("b", "c"), InterruptedTurn(("a",), SAID), "deploy")
    assert read(write(saved, str, AgentResult), str, AgentResult) == saved


def test_items_of_a_type_come_back_as_that_type() -> None:
    saved: SavedLoop[Order] = SavedLoop((Order(2, "later"),), InterruptedTurn((Order(1),), None))
    assert read(write(saved, Order, Any), Order, Any) == saved


def test_it_is_json_with_a_version_and_a_kind() -> None:
    data = json.loads(write(SavedLoop(("a",), None, "deploy"), str, Any))
    assert data == {"version": 1, "kind": "turn-loop", "cause": "deploy", "unhandled": ["a"], "stopped": None}


@given(st.lists(st.text()), st.lists(st.text()), st.text())
def test_any_text_survives(waiting: list[str], stopped: list[str], cause: str) -> None:
    saved = SavedLoop(tuple(waiting), InterruptedTurn(tuple(stopped), None) if stopped else None, cause)
    assert read(write(saved, str, Any), str, Any) == saved


def test_half_a_surrogate_pair_survives_as_models_say_it() -> None:
    saved = SavedLoop(("\ud800",), InterruptedTurn(("\udfff",), AgentResult("\ud800")))
    assert read(write(saved, str, AgentResult), str, AgentResult) == saved


def test_nothing_to_go_on_with_is_empty() -> None:
    assert SavedLoop().empty
    assert SavedLoop(cause="deploy").empty
    assert not SavedLoop(("a",)).empty
    assert not SavedLoop((), InterruptedTurn(("a",))).empty


def test_items_that_json_cannot_hold_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="item_type="):
        write(SavedLoop((object(),)), Any, Any)


GOOD: dict[str, Any] = {"version": 1, "kind": "turn-loop", "cause": "", "unhandled": ["a"], "stopped": None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{ half",
        "[]",
        "null",
        json.dumps(GOOD | {"version": 2}),
        json.dumps(GOOD | {"kind": "flow"}),
        json.dumps(GOOD | {"unhandled": "a"}),
        json.dumps(GOOD | {"unhandled": [["not text"]]}),
        json.dumps({name: value for name, value in GOOD.items() if name != "unhandled"}),
        json.dumps(GOOD | {"stopped": []}),
        json.dumps(GOOD | {"stopped": "a"}),
        json.dumps(GOOD | {"stopped": {}}),
        json.dumps(GOOD | {"stopped": {"items": None}}),
        json.dumps(GOOD | {"stopped": {"items": ["a"], "partial": "text"}}),
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_what_is_no_such_checkpoint_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        read(text, str, AgentResult)
