"""The description of the API for machines (OpenAPI 3.1), generated from the same bodies that the API validates."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from . import requests

__all__ = ["document"]

Schema: TypeAlias = Mapping[str, object]

ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
ID: Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9][A-Za-z0-9._:~-]*$"}
STATUSES = ["queued", "running", "stopping", "completed", "aborted", "timed_out", "failed"]
TURN: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "status": {"type": "string", "enum": STATUSES},
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
        "status": {"type": "string", "enum": ["accepted", "already_stopping", "already_finished", "unknown"]},
        "level": {"type": "string", "enum": ["accepted", "recorded", "delivered", "settled"]},
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
            "post": _call("Open a session, new or stored", 201, SESSION, requests.NewSessionBody),
        },
        session: {
            "get": _call("One session", 200, SESSION),
            "delete": _call("Stop what runs in the session and close it; it stays in the store", 204),
        },
        f"{session}/messages": {"post": _call("Send a message", 202, TURN, requests.NewMessageBody)},
        f"{session}/answers": {"post": _call("Answer a question or an approval", 200, ACCEPTED, requests.AnswerBody)},
        f"{session}/events": {"get": _stream()},
        turn: {
            "get": _call("One turn, with its outcome if it has ended", 200, TURN),
            "patch": _call("Replace the message of a turn that waits", 200, CHANGED, requests.EditBody),
            "delete": _removal(),
        },
        f"{turn}/stop": {"post": _call("Stop this turn; answered at once", 202, ACK, requests.StopBody)},
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
    body: type[requests.Body] | None = None,
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
