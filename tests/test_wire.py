"""The wire: versioned JSON both ways. What a newer version has written is understood as far as possible, or refused."""

import contextlib
import dataclasses
import functools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BeforeValidator

from safepoint.abort import AbortReason
from safepoint.errors import RemoteError
from safepoint.events import (
    AbortIgnored,
    Event,
    LeafEnded,
    QuestionAsked,
    RunEnded,
    ToolEnded,
    TurnEnded,
    UnknownEvent,
    event_from_json,
    event_to_json,
)
from safepoint.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolResult,
    UserMessage,
    message_from_json,
    message_to_json,
)
from safepoint.run import Aborted, Completed, Entry, Failed, Outcome, Receipt, TimedOut, Usage
from safepoint.wire import WireError, outcome_from_json, outcome_to_json

PLACE: Any = {"run_id": "r1", "path": ("run", "search"), "at": 12.5}
RECEIPT = Receipt(AbortReason("user", "stop"), 1.0, 2.0, (Entry("a", "thread", "stopped", 0.5),), Usage(1, 2, 3))


@dataclass(frozen=True)
class Answer:
    text: str
    steps: int


def test_every_event_and_message_has_its_own_kind():
    for union in (Event, Message):
        kinds = [member.__dataclass_fields__["kind"].default for member in get_args(union)]
        assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    "kind", [kind for kind in get_args(Event) if kind is not UnknownEvent], ids=lambda kind: kind.__name__
)
def test_every_event_comes_back_as_it_was(kind: type[Any]):
    samples: dict[str, Any] = {
        **PLACE,
        "status": "aborted",
        "leaf": "thread",
        "fate": "stopped",
        "seconds": 0.5,
        "where": "a.py:1 in f",
        "message": "halfway",
        "attempt": 2,
        "delay": 1.5,
        "error": "E: x",
        "question_id": "q1",
        "text": "Which one?",
        "model": "m1",
        "step": 3,
        "interrupted": True,
        "usage": Usage(1, 20, 3, estimated=True),
        "call_id": "c1",
        "name": "search",
        "arguments": "{}",
        "content": "found",
        "output": "empty",
        "target": None,
        "turn_id": "t1",
        "items": 2,
        "at_point": "NOW",
        "agent": "a1",
        "reason": "enough",
        "reason_kind": "user",
        "messages": (UserMessage(text="hi"), ToolResult(call_id="c", name="n", content="x", status="unknown")),
        "cause": "deploy",
        "flow": "report",
        "checkpoint": '{"cursor": "b"}',
        "effects": "irreversible",
        "idempotency_key": "t1:agent:c1",
        "scope": "t1:agent:c1",
        "key": "charge",
        "value": '"paid"',
        "outcome": Aborted(AbortReason("user", "stop"), RECEIPT, {"text": "half"}, started_at=1.0, finished_at=2.0),
        **({"status": "not_started"} if kind is ToolEnded else {}),
    }
    fields = {field.name: samples[field.name] for field in dataclasses.fields(kind) if field.name in samples}
    event = kind(**fields)
    assert event_from_json(event_to_json(event)) == event


@given(
    st.builds(UserMessage, text=st.text())
    | st.builds(SystemMessage, text=st.text())
    | st.builds(
        ToolResult,
        call_id=st.text(),
        name=st.text(),
        content=st.text(),
        status=st.sampled_from(["completed", "unknown"]),
    )
    | st.builds(
        AssistantMessage,
        text=st.text(),
        calls=st.lists(st.builds(ToolCall, call_id=st.text(), name=st.text(), arguments=st.text())).map(tuple),
        interrupted=st.booleans(),
    )
)
def test_every_message_comes_back_as_it_was(message: Message):
    assert message_from_json(message_to_json(message)) == message


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(Answer("yes", 3), started_at=1.0, finished_at=2.0),
        Completed(None),
        Aborted(AbortReason("user", "stop"), RECEIPT, Answer("ye", 1), started_at=1.0, finished_at=2.0),
        TimedOut(AbortReason("deadline", "5 s passed"), RECEIPT),
    ],
    ids=lambda outcome: outcome.status,
)
def test_an_outcome_comes_back_with_its_typed_value(outcome: Outcome[Any]):
    assert outcome_from_json(outcome_to_json(outcome, Answer), Answer) == outcome


def test_a_failure_arrives_as_a_remote_error_and_stays_the_same_on_a_second_journey():
    sent = outcome_to_json(Failed(LookupError("gone"), RECEIPT, started_at=1.0, finished_at=2.0))
    assert json.loads(sent)["error"] == {"type": "LookupError", "message": "gone"}
    arrived = outcome_from_json(sent)
    assert isinstance(arrived, Failed)
    assert isinstance(arrived.error, RemoteError)
    assert str(arrived.error) == "LookupError: gone"
    assert outcome_to_json(arrived) == sent


def test_fields_that_a_newer_writer_added_are_ignored():
    for written, read in (
        (event_to_json(RunEnded(**PLACE, status="completed")), event_from_json),
        (message_to_json(UserMessage(text="hi")), message_from_json),
        (outcome_to_json(Completed(1)), outcome_from_json),
    ):
        data = {**json.loads(written), "new_field": {"deep": 1}}
        assert read(json.dumps(data)) == read(written)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"v": 1, "kind": "moon_landed"}', "cannot be read"),
        ('{"v": 1, "kind": "moon_landed", "run_id": "r", "path": 7, "at": 1.0}', "cannot be read"),
        ('{"v": 1}', "unknown event None"),
        ('{"v": 99, "kind": "run_ended"}', "version 99; this reader knows up to 1"),
        ('{"kind": "run_ended"}', "version None"),
        ('{"v": 1, "kind": "run_ended"}', "cannot be read"),
        ("[]", "not a JSON object but list"),
        ("{", "is not JSON"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_what_and_why(text: str, told: str):
    with pytest.raises(WireError) as caught:
        event_from_json(text)
    assert told in str(caught.value)


def test_an_event_of_a_newer_version_keeps_its_place_and_its_text():
    text = '{"v": 1, "kind": "moon_landed", "run_id": "r1", "path": ["run"], "at": 12.5, "calls": ["c1"], "crew": [2]}'
    event = event_from_json(text)
    assert event == UnknownEvent(run_id="r1", path=("run",), at=12.5, calls=("c1",), name="moon_landed", document=text)
    assert event.kind == "unknown_event"
    assert event_to_json(event) == text
    assert event_from_json(event_to_json(event)) == event


def test_a_message_of_a_newer_version_is_refused_because_a_conversation_with_a_gap_would_be_wrong():
    with pytest.raises(WireError, match="unknown message 'hologram'; known are assistant"):
        message_from_json('{"v": 1, "kind": "hologram"}')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"v": 1, "status": "vanished", "started_at": 0, "finished_at": 0}', "unknown outcome 'vanished'"),
        ('{"v": 1, "status": "completed"}', "cannot be read"),
        ('{"v": 1, "status": "aborted", "started_at": 0, "finished_at": 0}', "cannot be read"),
        ('{"v": 1, "status": "completed", "started_at": 0, "finished_at": 0, "value": {"text": 7}}', "cannot be read"),
    ],
)
def test_an_outcome_that_cannot_be_understood_is_refused(text: str, told: str):
    with pytest.raises(WireError) as caught:
        outcome_from_json(text, Answer)
    assert told in str(caught.value)


DOCUMENTS: list[tuple[str, Callable[[str], object]]] = [
    (event_to_json(LeafEnded(**PLACE, leaf="await", fate="stopped", seconds=0.25)), event_from_json),
    (message_to_json(UserMessage(text="hi")), message_from_json),
    (
        message_to_json(AssistantMessage(text="x", calls=(ToolCall(call_id="c", name="n", arguments="{}"),))),
        message_from_json,
    ),
    (outcome_to_json(Completed(1, started_at=1.0)), outcome_from_json),
    (outcome_to_json(Aborted(AbortReason("error", "x", "a:1", ValueError("x")), RECEIPT, "half")), outcome_from_json),
    (outcome_to_json(Failed(LookupError("gone"), RECEIPT, "half")), outcome_from_json),
    (
        event_to_json(TurnEnded(**PLACE, turn_id="t", outcome=TimedOut(AbortReason("deadline"), RECEIPT))),
        event_from_json,
    ),
    (RECEIPT.to_json(), Receipt.from_json),
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([10**400, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a document something stands: each field and each item."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((*path, key), *places_in(value[key], (*path, key)))]


@given(st.data())
def test_a_document_with_any_field_replaced_or_missing_is_read_or_refused_as_a_wire_error(data: st.DataObject):
    text, read = data.draw(st.sampled_from(DOCUMENTS))
    document = json.loads(text)
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from(places_in(document)))
        around = functools.reduce(lambda inside, key: inside[key], way, document)
        if data.draw(st.booleans()):
            around[last] = data.draw(JSON_VALUES)
        else:
            del around[last]
    with contextlib.suppress(WireError):  # whatever else comes out fails the test
        read(json.dumps(document))


@pytest.mark.parametrize(("text", "read"), DOCUMENTS)
def test_brackets_nested_deeper_than_python_can_follow_are_refused(text: str, read: Callable[[str], object]):
    with pytest.raises(WireError, match="is not JSON: RecursionError"):
        read(f'{text[:-1]}, "new": {"[" * 100_000}{"]" * 100_000}}}')


@pytest.mark.parametrize("version", ["true", "-1", "0", "2", "1.0", "null", '"1"', "[]", "NaN"])
def test_a_version_that_was_never_written_is_refused(version: str):
    for text, read in DOCUMENTS:
        if '"v": 1,' in text:
            with pytest.raises(WireError, match="is of version"):
                read(text.replace('"v": 1,', f'"v": {version},', 1))


def test_an_outcome_can_be_written_whatever_exception_is_in_it():
    class Unlike(Exception):
        def __init__(self, *, code: int) -> None:
            self.lock = threading.Lock()

        def __str__(self) -> str:
            raise LookupError("no words")

    error = Unlike(code=7)
    reason = AbortReason("error", "x", None, error)
    for outcome in (Aborted(reason, Receipt(reason, 1.0, 2.0)), Failed(error, Receipt(reason, 1.0, 2.0))):
        back: Any = outcome_from_json(outcome_to_json(outcome))
        assert isinstance(back.receipt.reason.cause, RemoteError)
        assert back.receipt.reason.cause.message == "(its text cannot be read: LookupError)"
        assert outcome_to_json(back) == outcome_to_json(outcome)


def test_a_failure_of_twenty_megabytes_travels_in_short():
    text = outcome_to_json(Failed(LookupError("x" * 20_000_000), RECEIPT))
    assert len(text) < 10_000
    assert outcome_to_json(outcome_from_json(text)) == text


def test_a_type_of_the_users_that_raises_while_it_reads_is_a_wire_error():
    def explode(value: object) -> object:
        raise RuntimeError("at home")

    with pytest.raises(WireError, match="this outcome cannot be read: at home"):
        outcome_from_json(outcome_to_json(Completed(1)), Annotated[int, BeforeValidator(explode)])


def test_the_wire_form_is_plain_json_with_its_version():
    event = LeafEnded(**PLACE, leaf="await", fate="stopped", seconds=0.25)
    assert json.loads(event_to_json(event)) == {
        "v": 1,
        "kind": "leaf_ended",
        "run_id": "r1",
        "path": ["run", "search"],
        "at": 12.5,
        "calls": [],
        "leaf": "await",
        "fate": "stopped",
        "seconds": 0.25,
    }
    assert AbortIgnored(**PLACE, seconds=3, where=None).note == ""
    assert QuestionAsked(**PLACE, question_id="q", text="?").options == ()
