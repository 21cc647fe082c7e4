"""Owns the description of the API for machines (OpenAPI 3.1), from the same bodies that the API checks."""

from typing import Any

from . import requests

__all__ = ["document"]

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
ID = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9][A-Za-z0-9._:~-]*$"}
STATUSES = ["queued", "running", "stopping", "completed", "aborted", "timed_out", "failed"]
TURN = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "status": {"type": "string", "enum": STATUSES},
        "outcome": {"type": ["object", "null"]},
        "continued_by": {
            "type": "string",
            "description": "the turn that goes on with this one, if there is one: status and outcome are those of it",
        },
        "said": {"type": "string", "description": "the message of a turn that no worker has seen yet"},
    },
    "required": ["id", "status", "outcome"],
}
SESSION = {
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
ACK = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["accepted", "already_stopping", "already_finished", "unknown"]},
        "level": {"type": "string", "enum": ["accepted", "recorded", "delivered", "settled"]},
        "message": {"type": "string"},
        "id": {"type": "string"},
    },
    "required": ["status", "level", "message", "id"],
}
ACCEPTED = {"type": "object", "properties": {"accepted": {"const": True}}, "required": ["accepted"]}
CHANGED = {
    "type": "object",
    "properties": {
        "accepted": {"const": True},
        "level": {"type": "string", "enum": ["accepted", "recorded"]},
        "message": {"type": "string"},
    },
    "required": ["accepted", "level", "message"],
}


def document() -> dict[str, Any]:
    """The whole API."""
    session, turn = "/api/sessions/{session}", "/api/sessions/{session}/turns/{turn}"
    paths: dict[str, dict[str, Any]] = {
        "/api/agents": {"get": _call("The agents, the default one first", 200, _list({"type": "string"}))},
        "/api/sessions": {
            "get": _call("All sessions, the newest last", 200, _list(SESSION)),
            "post": _call("Open a session, new or stored", 201, SESSION, requests.NewSessionBody),
        },
        session: {
            "get": _call("One session", 200, SESSION),
            "delete": _call("Stop what runs there and let it go; it stays in the store", 204),
        },
        f"{session}/messages": {"post": _call("Say something", 202, TURN, requests.NewMessageBody)},
        f"{session}/answers": {"post": _call("Answer a question or an approval", 200, ACCEPTED, requests.AnswerBody)},
        f"{session}/events": {"get": _stream()},
        turn: {
            "get": _call("One turn, with its outcome if it has ended", 200, TURN),
            "patch": _call("Replace the message of a turn that waits", 200, CHANGED, requests.EditBody),
            "delete": _removal(),
        },
        f"{turn}/stop": {"post": _call("Stop this turn; answered at once", 202, ACK, requests.StopBody)},
        f"{turn}/continue": {"post": _call("Go on with the last turn, which was stopped", 202, TURN)},
        f"{turn}/forget": {"post": _call("Take the conversation back to before the last turn", 204)},
        f"{turn}/receipt": {"get": _call("What the stop did", 200, {"type": "object"})},
        "/healthz": {"get": _call("Whether the server lives", 200, {"type": "object"})},
        "/metrics": {"get": _text("What the server has counted, for Prometheus", "text/plain")},
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


def _call(summary: str, status: int, schema: Any = None, body: type[requests.Body] | None = None) -> dict[str, Any]:
    done: dict[str, Any] = {"description": summary}
    if schema is not None:
        done["content"] = {"application/json": {"schema": schema}}
    refused = {"description": "refused; nothing has changed", "content": {"application/json": {"schema": ERROR}}}
    codes = ("400", "401", "403", "404", "405", "409", "413", "421", "422", "429", "503")
    call: dict[str, Any] = {"summary": summary, "responses": {str(status): done, **dict.fromkeys(codes, refused)}}
    if body is not None:
        content = {"application/json": {"schema": body.model_json_schema(ref_template="#/{model}")}}
        call["requestBody"] = {"required": True, "content": content}
    return call


def _removal() -> dict[str, Any]:
    call = _call("Take a turn that waits out of the queue", 204)
    call["responses"]["202"] = {
        "description": "it is out of the queue, which is not recorded yet",
        "content": {"application/json": {"schema": CHANGED}},
    }
    return call


def _text(summary: str, kind: str) -> dict[str, Any]:
    call = _call(summary, 200)
    call["responses"]["200"]["content"] = {kind: {}}
    return call


def _stream() -> dict[str, Any]:
    call = _text("Everything after a number, then what comes, as server-sent events", "text/event-stream")
    number = {"type": "integer", "minimum": 0}
    call["parameters"] = [
        {"name": "after", "in": "query", "required": False, "schema": number},
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": number},
    ]
    return call


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}
