"""Outcomes, events and messages as versioned JSON. Other modules transport the text.

An older reader understands a newer writer: unknown fields are ignored, and an event of an unknown kind becomes an
UnknownEvent, which keeps its place in the log and its text. An unknown kind of message or outcome is refused, because a
conversation or a result with a gap would be wrong; the error names the kind. Errors are written as `ErrorInfo` and read
as RemoteErrors.
"""

import functools
import json
import operator
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, overload

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from .abort import AbortReason
from .errors import RemoteError, WireError, name_of, shorten, text_of
from .events import Event, EventBase, TurnEnded, UnknownEvent
from .json_fields import Fields, parse
from .messages import Message
from .outcome import EMPTY_RECEIPT, Aborted, Completed, Failed, Outcome, TimedOut
from .receipt import Receipt

__all__ = [
    "VERSION",
    "ErrorInfo",
    "WireError",
    "event_from_json",
    "event_to_json",
    "message_from_json",
    "message_to_json",
    "outcome_from_json",
    "outcome_to_json",
]

T = TypeVar("T")
VERSION = 1


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error on the wire: the name of its type, and its text."""

    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEndedFields(EventBase):
    """The fields of a TurnEnded without its outcome, for which Pydantic has no schema because it may hold an error."""

    turn_id: str


# Pydantic's adapters take any type and return a value of it, so it is the callers who annotate the results.
@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _union_adapter(union: object) -> TypeAdapter[Any]:
    """The reader of all members of a union, without the two events that are read by other code."""
    members = tuple(member for member in get_args(union) if member not in (TurnEnded, UnknownEvent))
    choice: Any = Annotated[functools.reduce(operator.or_, members), Field(discriminator="kind")]
    return TypeAdapter(choice)


@cache
def _kinds(union: object) -> frozenset[str]:
    """The values of `kind` that this reader knows."""
    members = (member for member in get_args(union) if member is not UnknownEvent)
    return frozenset(get_args(member.__dataclass_fields__["kind"].type)[0] for member in members)


def event_to_json(event: Event, value_type: object = object) -> str:
    """Write an event as JSON text.

    Args:
        event: The event. An UnknownEvent is written as it was read, with its present run, path, date and calls.
        value_type: The type of the value inside the outcome of a `TurnEnded`; sessions use `AgentResult`.
    """
    if isinstance(event, UnknownEvent):
        place = {"run_id": event.run_id, "path": event.path, "at": event.at, "calls": event.calls}
        return json.dumps({**json.loads(event.document), **place}, ensure_ascii=False)
    if isinstance(event, TurnEnded):
        data = {field.name: getattr(event, field.name) for field in fields(event)}
        data["outcome"] = json.loads(outcome_to_json(event.outcome, value_type))
        return json.dumps({"v": VERSION, **data}, ensure_ascii=False)
    return _dump(event)


def event_from_json(text: str, value_type: object = object) -> Event:
    """Read an event that `event_to_json()` has written.

    Args:
        text: The JSON text.
        value_type: The type of the value inside the outcome of a `TurnEnded`; sessions use `AgentResult`.

    Returns:
        The event; an UnknownEvent if only a newer version of Safepoint knows its kind.

    Raises:
        WireError: The text is not an event.
    """
    data = _object("event", text)
    kind = data.get("kind")
    if isinstance(kind, str) and kind not in _kinds(Event):
        base: EventBase = _validate("event", _adapter(EventBase), data)
        return UnknownEvent(run_id=base.run_id, path=base.path, at=base.at, calls=base.calls, name=kind, document=text)
    if kind != "turn_ended":
        event: Event = _read("event", Event, data)
        return event
    outcome = _read_outcome(_versioned("outcome", data.get("outcome")), value_type)
    ended: TurnEndedFields = _validate("event", _adapter(TurnEndedFields), data)
    return TurnEnded(
        run_id=ended.run_id,
        path=ended.path,
        at=ended.at,
        calls=ended.calls,
        turn_id=ended.turn_id,
        outcome=outcome,
        resumable=data.get("resumable") is True,
    )


def message_to_json(message: Message) -> str:
    """Write a message as JSON text."""
    return _dump(message)


def message_from_json(text: str) -> Message:
    """Read a message that `message_to_json()` has written.

    Raises:
        WireError: The text is not a message, or one of a kind that this version does not know.
    """
    message: Message = _read("message", Message, _object("message", text))
    return message


def _dump(item: Event | Message) -> str:
    kind: Any = type(item)
    adapter = _adapter(kind)
    try:
        text: str | None = adapter.dump_json(item).decode()  # several times as fast as json.dumps
    except PydanticSerializationError:  # half of a surrogate pair, which only json.dumps can write
        text = None
    # json.dumps is slow, so it writes only what pydantic may have written wrongly:
    # - Pydantic writes an infinite number as `null`, which loses it. This looks the same as None, or as the word "null"
    #   in a text, so each text that contains the word is written again.
    # - A tool may emit a value that is not an event and whose JSON is not an object. Below it raises a TypeError; it
    #   must not become a record that nothing can read.
    if text is None or text[0] != "{" or "null" in text:
        return json.dumps({"v": VERSION, **adapter.dump_python(item, mode="json")}, ensure_ascii=False)
    return f'{{"v": {VERSION}, {text[1:]}'


def outcome_to_json(outcome: Outcome[T], value_type: object = object) -> str:
    """Write an outcome as JSON text.

    Args:
        outcome: The outcome.
        value_type: The type of its value, such as `AgentResult`.
    """
    values = _adapter(value_type)

    def dump(value: T | None) -> object:
        return None if value is None else values.dump_python(value, mode="json")

    data: dict[str, object] = {
        "v": VERSION,
        "status": outcome.status,
        "started_at": outcome.started_at,
        "finished_at": outcome.finished_at,
    }
    match outcome:
        case Completed(value):
            data["value"] = dump(value)
            if outcome.receipt.entries:  # something goes on
                data["receipt"] = outcome.receipt.to_dict()
        case Aborted(reason, receipt, partial) | TimedOut(reason, receipt, partial):
            data |= {"reason": reason.to_dict(), "receipt": receipt.to_dict(), "partial": dump(partial)}
        case Failed(error, receipt, partial):
            info = ErrorInfo(name_of(error), shorten(text_of(error)))
            data |= {"error": asdict(info), "receipt": receipt.to_dict(), "partial": dump(partial)}
    return json.dumps(data, ensure_ascii=False)


@overload
def outcome_from_json(text: str, value_type: type[T]) -> Outcome[T]: ...


@overload
def outcome_from_json(text: str, value_type: object = ...) -> Outcome[Any]: ...


def outcome_from_json(text: str, value_type: object = object) -> Outcome[Any]:
    """Read an outcome that `outcome_to_json()` has written.

    Args:
        text: The JSON text.
        value_type: The type of its value, such as `AgentResult`.

    Raises:
        WireError: The text is not an outcome, or one of a kind that this version does not know.
    """
    return _read_outcome(_object("outcome", text), value_type)


def _read_outcome(data: dict[str, object], value_type: object) -> Outcome[Any]:
    values, fields = _adapter(value_type), Fields("outcome", data)

    def load(name: str) -> object:
        try:
            return None if data.get(name) is None else values.validate_python(data[name])
        except Exception as problem:  # a type of the user's may raise anything while it reads
            raise _unreadable("outcome", problem) from problem

    def receipt() -> Receipt:
        return Receipt.from_dict(fields.object("receipt"))

    times = {"started_at": fields.number("started_at"), "finished_at": fields.number("finished_at")}
    match data.get("status"):
        case "completed":
            remaining = EMPTY_RECEIPT if data.get("receipt") is None else receipt()
            return Completed(load("value"), receipt=remaining, **times)
        case "aborted" | "timed_out" as status:
            ended = Aborted if status == "aborted" else TimedOut
            return ended(AbortReason.from_dict(fields.object("reason")), receipt(), load("partial"), **times)
        case "failed":
            error = Fields("error", fields.object("error"))
            failure = RemoteError(error.text("type"), error.text("message"))
            return Failed(failure, receipt(), load("partial"), **times)
        case unknown:
            raise WireError(f"unknown outcome {shorten(repr(unknown))}: this reader knows version {VERSION}")


def _read(what: str, union: object, data: dict[str, object]) -> Any:
    known, kind = _kinds(union), data.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise WireError(f"unknown {what} {shorten(repr(kind))}; known are {', '.join(sorted(known))}")
    return _validate(what, _union_adapter(union), data)


def _validate(what: str, adapter: TypeAdapter[T], data: dict[str, object]) -> T:
    try:
        return adapter.validate_python({name: value for name, value in data.items() if name != "v"})
    except (ValidationError, RecursionError) as problem:
        raise _unreadable(what, problem) from problem


def _object(what: str, text: str) -> dict[str, object]:
    return _versioned(what, parse(what, text))


def _versioned(what: str, data: object) -> dict[str, object]:
    """Check that the data is a JSON object of a version that this reader knows."""
    if not isinstance(data, dict):
        raise WireError(f"this {what} is not a JSON object but {type(data).__name__}")
    version = data.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise WireError(f"this {what} is of version {shorten(repr(version))}; this reader knows up to {VERSION}")
    return data


def _unreadable(what: str, problem: Exception) -> WireError:
    return WireError(f"this {what} cannot be read: {shorten(text_of(problem))}")
