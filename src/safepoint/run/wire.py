"""Owns how outcomes, events and messages travel: versioned JSON. Knows nothing of the transport.

Unknown fields are ignored, so that an older reader understands a newer writer; an unknown kind is refused with its
name, because a reader that guesses what happened would be wrong. Errors travel as `ErrorInfo` and arrive as
RemoteErrors.
"""

import functools
import json
import operator
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from ..abort import AbortReason
from ..errors import RemoteError, WireError, name_of, shorten, text_of
from .events import Event, TurnEnded
from .fields import Fields, parse
from .messages import Message
from .outcome import NOTHING, Aborted, Completed, Failed, Outcome, TimedOut
from .receipt import Receipt

__all__ = [
    "VERSION",
    "ErrorInfo",
    "WireError",
    "event_from_json",
    "message_from_json",
    "outcome_from_json",
    "outcome_to_json",
    "to_json",
]

T = TypeVar("T")
VERSION = 1


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error on the wire."""

    type: str
    message: str


@cache
def _plain(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    members = tuple(member for member in get_args(kind) if member is not TurnEnded)
    union: Any = Annotated[functools.reduce(operator.or_, members), Field(discriminator="kind")]
    return TypeAdapter(union)


def to_json(item: Event | Message, value_type: Any = Any) -> str:
    """An event or a message as JSON text; the value inside of an outcome is written as `value_type` says."""
    if isinstance(item, TurnEnded):
        data = {field.name: getattr(item, field.name) for field in fields(item)}
        data["outcome"] = json.loads(outcome_to_json(item.outcome, value_type))
    else:
        quick = _quickly(item)
        if quick is not None:
            return quick
        kind: Any = type(item)
        data = _plain(kind).dump_python(item, mode="json")
    return json.dumps({"v": VERSION, **data}, ensure_ascii=False)


def _quickly(item: Event | Message) -> str | None:
    """The same text, several times as fast; None for the few that pydantic's writer cannot write without loss."""
    kind: Any = type(item)
    try:
        text = _plain(kind).dump_json(item).decode()
    except PydanticSerializationError:  # half of a surrogate pair
        return None
    # A number without an end becomes null there; whether it was one or nothing at all is not looked at.
    return None if "null" in text or text[0] != "{" else f'{{"v": {VERSION}, {text[1:]}'


def event_from_json(text: str, value_type: Any = Any) -> Event:
    """Read `to_json()` back. Raises: WireError."""
    data = _object("event", text)
    event: Event
    if data.get("kind") != "turn_ended":
        event = _read("event", Event, data)
        return event
    outcome = _outcome(_versioned("outcome", data.get("outcome")), value_type)
    # Of an outcome pydantic has no schema: errors are in it. All that stands around it is read like any event's.
    around = _read("event", Event, {**data, "kind": "turn_started", "items": 0})
    return TurnEnded(
        run_id=around.run_id,
        path=around.path,
        at=around.at,
        calls=around.calls,
        turn_id=around.turn_id,
        outcome=outcome,
        resumable=data.get("resumable") is True,
    )


def message_from_json(text: str) -> Message:
    """Raises: WireError."""
    message: Message = _read("message", Message, _object("message", text))
    return message


def outcome_to_json(outcome: Outcome[T], value_type: Any = Any) -> str:
    """An outcome as JSON text; its value is written as `value_type` says."""
    values = _plain(value_type)

    def dump(value: T | None) -> Any:
        return None if value is None else values.dump_python(value, mode="json")

    data: dict[str, Any] = {
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


def outcome_from_json(text: str, value_type: Any = Any) -> Outcome[Any]:
    """Read `outcome_to_json()` back. Raises: WireError."""
    return _outcome(_object("outcome", text), value_type)


def _outcome(data: dict[str, Any], value_type: Any) -> Outcome[Any]:
    values, fields = _plain(value_type), Fields("outcome", data)

    def load(name: str) -> Any:
        try:
            return None if data.get(name) is None else values.validate_python(data[name])
        except Exception as problem:  # a type of the user's may raise anything while it reads
            raise _unreadable("outcome", problem) from problem

    def receipt() -> Receipt:
        return Receipt.from_dict(fields.object("receipt"))

    times = {"started_at": fields.number("started_at"), "finished_at": fields.number("finished_at")}
    match data.get("status"):
        case "completed":
            goes_on = NOTHING if data.get("receipt") is None else receipt()
            return Completed(load("value"), receipt=goes_on, **times)
        case "aborted" | "timed_out" as status:
            ended = Aborted if status == "aborted" else TimedOut
            return ended(AbortReason.from_dict(fields.object("reason")), receipt(), load("partial"), **times)
        case "failed":
            error = Fields("error", fields.object("error"))
            failure = RemoteError(error.text("type"), error.text("message"))
            return Failed(failure, receipt(), load("partial"), **times)
        case unknown:
            raise WireError(f"unknown outcome {shorten(repr(unknown))}: this reader knows version {VERSION}")


def _read(what: str, kind: Any, data: dict[str, Any]) -> Any:
    known = {get_args(member.__dataclass_fields__["kind"].type)[0] for member in get_args(kind)}
    given = data.get("kind")
    if not isinstance(given, str) or given not in known:
        raise WireError(f"unknown {what} {shorten(repr(given))}; known are {', '.join(sorted(known))}")
    try:
        return _adapter(kind).validate_python({name: value for name, value in data.items() if name != "v"})
    except (ValidationError, RecursionError) as problem:
        raise _unreadable(what, problem) from problem


def _object(what: str, text: str) -> dict[str, Any]:
    return _versioned(what, parse(what, text))


def _versioned(what: str, data: object) -> dict[str, Any]:
    """A JSON object of a version that this reader knows."""
    if not isinstance(data, dict):
        raise WireError(f"this {what} is not a JSON object but {type(data).__name__}")
    version = data.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise WireError(f"this {what} is of version {shorten(repr(version))}; this reader knows up to {VERSION}")
    return data


def _unreadable(what: str, problem: Exception) -> WireError:
    return WireError(f"this {what} cannot be read: {shorten(text_of(problem))}")
