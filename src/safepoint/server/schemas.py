"""The data of the API: request bodies, each validated before anything happens, responses, and their description.

The description for machines (OpenAPI 3.1) is generated from what the API validates and answers. Knows nothing of HTTP.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from ..agent.conversation import AgentResult
from ..run.stop import AckLevel, AckStatus, StopAck
from ..session.host import ChangeAck, SessionView, TurnView
from ..session.turn import TurnStatus
from ..wire import outcome_to_json

__all__ = [
    "AnswerBody",
    "EditBody",
    "NewMessageBody",
    "NewSessionBody",
    "StopBody",
    "ack_data",
    "change_data",
    "document",
    "session_data",
    "turn_data",
]

Schema: TypeAlias = Mapping[str, object]
Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:~-]*$")]
# At least one visible character. The set is written out, because Python, JavaScript and Rust disagree on what is white
# space.
Text = Annotated[str, Field(min_length=1, max_length=200_000, pattern=r"[^\x00-\x20\x7f-\xa0]")]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

# 0 means not to wait at all.
SecondsOrZero = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class Body(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewSessionBody(Body):
    """Open a session, new or stored."""

    id: Id | None = None
    agent: str | None = None


class NewMessageBody(Body):
    """Send a message. The turn may take `timeout` seconds, including the time in the queue."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["timeout", "deadline"]}})

    text: Text
    turn_id: Id | None = None
    when_busy: Literal["queue", "steer", "interrupt", "reject"] = "queue"
    timeout: Seconds | None = None
    deadline: Seconds | None = Field(default=None, deprecated="It is called timeout now.")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if {"timeout", "deadline"} <= self.model_fields_set:
            raise ValueError("timeout and deadline are the same limit: give timeout alone")
        return self

    @property
    def uses_old_name(self) -> bool:
        """True if the limit was given as `deadline`, which is accepted until version 0.3."""
        return "deadline" in self.model_fields_set

    @property
    def seconds(self) -> float | None:
        """The time limit, by whichever name it was given."""
        values = self.__dict__  # not the attribute, which would warn
        limit: float | None = values["deadline"] if self.uses_old_name else values["timeout"]
        return limit


class StopBody(Body):
    """Stop a turn, at once or at a safe point. What has not ended `abandon` seconds after that is abandoned.

    `scope` applies to a safe point: with "root", sub-agents go on until the turn reaches its own safe point; with
    "tree", each of them stops at its own.
    """

    at: Literal["NOW", "SAFE_POINT", "AFTER_MODEL", "AFTER_TOOLS"] | None = None
    scope: Literal["root", "tree"] | None = None
    within: Seconds | None = None
    abandon: SecondsOrZero | None = None
    reason: Annotated[str, Field(max_length=2_000)] | None = None


class AnswerBody(Body):
    """Answer a question."""

    question_id: Id
    text: Annotated[str, Field(max_length=200_000)]


class EditBody(Body):
    """Replace the message of a turn that waits."""

    text: Text


def turn_data(turn: TurnView) -> dict[str, object]:
    """The data of a turn."""
    outcome = None if turn.outcome is None else json.loads(outcome_to_json(turn.outcome, AgentResult))
    optional = {"said": turn.text, "continued_by": turn.continued_by}
    given = {key: value for key, value in optional.items() if value}
    return {"id": turn.id, "status": turn.status, "outcome": outcome, **given}


def session_data(session: SessionView) -> dict[str, object]:
    """The data of a session."""
    return {
        "id": session.id,
        "agent": session.agent,
        "last_seq": session.last_seq,
        "live": session.live,
        "turns": [turn_data(turn) for turn in session.turns],
    }


def change_data(ack: ChangeAck) -> dict[str, object]:
    """The data of the acknowledgement of a change."""
    return {"accepted": ack.accepted, "level": ack.level, "message": ack.message}


def ack_data(ack: StopAck) -> dict[str, object]:
    """The data of the acknowledgement of a stop."""
    return {"status": ack.status, "level": ack.level, "message": ack.message, "id": ack.id}


ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
ID: Schema = TypeAdapter(Id).json_schema()
TURN: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "status": {"type": "string", "enum": list(get_args(TurnStatus))},
        "outcome": {"type": ["object", "null"]},
        "continued_by": {
            "type": "string",
            "description": "the turn that continues this one, if any; status and outcome are those of that turn",
        },
        "said": {"type": "string", "description": "the message of a turn that no worker has seen yet"},
    },
    "required": ["id", "status", "outcome"],
}
SESSION: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "agent": {"type": "string"},
        "last_seq": {"type": "integer"},
        "live": {"type": "boolean"},
        "turns": {"type": "array", "items": TURN},
    },
    "required": ["id", "agent", "last_seq", "live", "turns"],
}
ACK: Schema = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": list(get_args(AckStatus))},
        "level": {"type": "string", "enum": list(get_args(AckLevel))},
        "message": {"type": "string"},
        "id": {"type": "string"},
    },
    "required": ["status", "level", "message", "id"],
}
ACCEPTED: Schema = {"type": "object", "properties": {"accepted": {"const": True}}, "required": ["accepted"]}
CHANGED: Schema = {
    "type": "object",
    "properties": {
        "accepted": {"const": True},
        "level": {"type": "string", "enum": ["accepted", "recorded"]},
        "message": {"type": "string"},
    },
    "required": ["accepted", "level", "message"],
}
REFUSALS = ("400", "401", "403", "404", "405", "409", "413", "421", "422", "429", "503")


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    session, turn = "/api/sessions/{session}", "/api/sessions/{session}/turns/{turn}"
    paths: dict[str, dict[str, object]] = {
        "/api/agents": {"get": _call("The agents, the default one first", 200, _list({"type": "string"}))},
        "/api/sessions": {
            "get": _call("All sessions, the newest last", 200, _list(SESSION)),
            "post": _call("Open a session, new or stored", 201, SESSION, NewSessionBody),
        },
        session: {
            "get": _call("One session", 200, SESSION),
            "delete": _call("Stop what runs in the session and close it; it stays in the store", 204),
        },
        f"{session}/messages": {"post": _call("Send a message", 202, TURN, NewMessageBody)},
        f"{session}/answers": {"post": _call("Answer a question or an approval", 200, ACCEPTED, AnswerBody)},
        f"{session}/events": {"get": _stream()},
        turn: {
            "get": _call("One turn, with its outcome if it has ended", 200, TURN),
            "patch": _call("Replace the message of a turn that waits", 200, CHANGED, EditBody),
            "delete": _removal(),
        },
        f"{turn}/stop": {"post": _call("Stop this turn; answered at once", 202, ACK, StopBody)},
        f"{turn}/continue": {"post": _call("Continue the last turn, which was stopped", 202, TURN)},
        f"{turn}/forget": {"post": _call("Restore the conversation to what it was before the last turn", 204)},
        f"{turn}/receipt": {"get": _call("The receipt of the turn: what the stop did", 200, {"type": "object"})},
        "/healthz": {"get": _call("Whether the server lives", 200, {"type": "object"})},
        "/metrics": {"get": _call("The counters of the server, for Prometheus", 200, media={"text/plain": {}})},
    }
    for path, calls in paths.items():
        names = [name for name in ("session", "turn") if f"{{{name}}}" in path]
        if names:
            calls["parameters"] = [{"name": name, "in": "path", "required": True, "schema": ID} for name in names]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Safepoint", "version": "1", "description": "Sessions whose turns can always be stopped."},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _call(
    summary: str,
    status: int,
    schema: Schema | None = None,
    body: type[Body] | None = None,
    *,
    media: Schema | None = None,
    also: Schema | None = None,
) -> Schema:
    """Describe a call.

    Args:
        summary: What it does.
        status: The status of its success.
        schema: The schema of the JSON that it answers with, if any.
        body: The body that it takes, if any.
        media: What it answers with, if that is not JSON.
        also: Further responses, by status.
    """
    done: dict[str, object] = {"description": summary}
    content = media if schema is None else _json(schema)
    if content is not None:
        done["content"] = content
    refused = {"description": "refused; nothing has changed", "content": _json(ERROR)}
    responses = {str(status): done, **dict.fromkeys(REFUSALS, refused), **(also or {})}
    call: dict[str, object] = {"summary": summary, "responses": responses}
    if body is not None:
        call["requestBody"] = {
            "required": True,
            "content": _json(body.model_json_schema(ref_template="#/{model}")),
        }
    return call


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _removal() -> Schema:
    unrecorded = {"description": "it was removed from the queue, which is not recorded yet", "content": _json(CHANGED)}
    return _call("Remove a turn that waits from the queue", 204, also={"202": unrecorded})


def _stream() -> Schema:
    summary = "The events after a number, then new ones as they come, as server-sent events"
    number = {"type": "integer", "minimum": 0}
    parameters = [
        {"name": "after", "in": "query", "required": False, "schema": number},
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": number},
    ]
    return {**_call(summary, 200, media={"text/event-stream": {}}), "parameters": parameters}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}
