"""Owns a small fake of Ollama's HTTP API: `/api/chat`, answers as lines of JSON. Scripted like `provider.py`."""

import json
from typing import Any

from tests.kit.providers.encoding import encoding_fault
from tests.kit.providers.script import End, Fails, ScriptedServer, ToolCall
from tests.kit.providers.template_rules import alternation_fault

__all__ = ["Ollama"]


class Ollama(ScriptedServer):
    """The server; `url` is what a client is given as its host."""

    path = "/api/chat"

    def format(self, body: dict[str, Any]) -> "Lines":
        return Lines(body)

    def fault(self, body: dict[str, Any]) -> str | None:
        """Roughly what the server's own decoding refuses."""
        if not body.get("model"):
            return "model is required"
        if found := encoding_fault(body) or alternation_fault(body.get("messages") or []):
            return found
        for message in body.get("messages") or ():
            if message.get("role") not in ("system", "user", "assistant", "tool"):
                return f"invalid role: {message.get('role')}"
            for call in message.get("tool_calls") or ():
                if not isinstance(call["function"]["arguments"], dict):
                    return "json: cannot unmarshal string into Go struct field .arguments"
        return None

    def error(self, message: str) -> dict[str, Any]:
        return {"error": message}


class Lines:
    """One answer, line by line. Calls come whole and have no ids."""

    content_type = "application/x-ndjson"

    def __init__(self, body: dict[str, Any]) -> None:
        self._head = {"model": body["model"], "created_at": "2026-01-01T00:00:00Z"}
        self._read = 10 * len(body.get("messages") or ())
        self._written = 0

    def opening(self) -> list[bytes]:
        return []

    def text(self, word: str) -> list[bytes]:
        self._written += 1
        return self._message({"content": word})

    def call(self, call: ToolCall) -> list[bytes]:
        self._written += 1
        return self._message({"content": "", "tool_calls": [_call(call)]})

    def failure(self, fails: Fails) -> list[bytes]:
        return [_line({"error": fails.message})]

    def ending(self, end: End) -> list[bytes]:
        if end.reason is None:
            return []
        return [_line({**self._head, "message": {"role": "assistant", "content": ""}, **self._end(end)})]

    def whole(self, text: str, calls: list[ToolCall], end: End) -> dict[str, Any]:
        self._written = len(text.split()) + len(calls)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return {**self._head, "message": message, **({"done": False} if end.reason is None else self._end(end))}

    def _end(self, end: End) -> dict[str, Any]:
        counts = {"prompt_eval_count": self._read, "eval_count": self._written}
        return {"done": True, "done_reason": end.reason or "stop", **counts}

    def _message(self, message: dict[str, Any]) -> list[bytes]:
        return [_line({**self._head, "message": {"role": "assistant", **message}, "done": False})]


def _call(call: ToolCall) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": json.loads(call.text)}}


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"
