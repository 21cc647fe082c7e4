"""Owns a small, strict fake of Anthropic's Messages API: `/v1/messages` over SSE. Scripted like `provider.py`."""

import json
import re
from typing import Any

from tests.kit.providers.encoding import encoding_fault
from tests.kit.providers.script import End, Fails, ScriptedServer, ToolCall, new_id

__all__ = ["Anthropic"]

ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RESULTS = "`tool_use` ids were found without `tool_result` blocks immediately after"
UNEXPECTED = "unexpected `tool_use_id` found in `tool_result` blocks"


class Anthropic(ScriptedServer):
    """The server; `url` is what a client is given as its base address."""

    path = "/v1/messages"

    def format(self, body: dict[str, Any]) -> "Blocks":
        return Blocks(body)

    def fault(self, body: dict[str, Any]) -> str | None:
        if not isinstance(body.get("max_tokens"), int):
            return "max_tokens: Field required"
        if found := encoding_fault(body):
            return found
        messages = body.get("messages") or []
        if not messages:
            return "messages: at least one message is required"
        waiting: set[str] = set()
        for number, message in enumerate(messages):
            if message["role"] not in ("user", "assistant"):
                return f'messages: Unexpected role "{message["role"]}".'
            if number and messages[number - 1]["role"] == message["role"]:
                return "messages: roles must alternate between user and assistant"
            if found := _blocks_fault(number, message, waiting):
                return found
            waiting = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
        return f"messages.{len(messages)}: {RESULTS}: {sorted(waiting)}" if waiting else None

    def error(self, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _blocks_fault(number: int, message: dict[str, Any], waiting: set[str]) -> str | None:
    """Results come first, one for each call of the message before, and none for anything else."""
    left, others = set(waiting), False
    for block in message["content"]:
        if block["type"] == "tool_result":
            if block["tool_use_id"] not in left:
                return f"messages.{number}: {UNEXPECTED}: {block['tool_use_id']}"
            if others:
                return f"messages.{number}: {RESULTS}: {sorted(left)}"
            left.remove(block["tool_use_id"])
        else:
            others = True
        if block["type"] == "text" and not block["text"].strip():
            return "messages: text content blocks must contain non-whitespace text"
        if block["type"] == "tool_use" and not ID.fullmatch(block["id"]):
            return f"messages.{number}.content.tool_use.id: String should match pattern '{ID.pattern}'"
    return f"messages.{number}: {RESULTS}: {sorted(left)}" if left else None


class Blocks:
    """One answer as blocks: a text block for all words in a row, a block for each call."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body
        self._blocks = 0
        self._in_text = False
        self._calls = 0
        self._written = 0
        self._message = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": body["model"]}

    def opening(self) -> list[bytes]:
        message = {**self._message, "content": [], "stop_reason": None, "usage": self._usage()}
        return [_event("message_start", message=message), _event("ping")]

    def text(self, word: str) -> list[bytes]:
        events = []
        if not self._in_text:
            self._in_text = True
            events += self._start({"type": "text", "text": ""})
        self._written += 1
        return [*events, self._delta({"type": "text_delta", "text": word})]

    def call(self, call: ToolCall) -> list[bytes]:
        events = self._stop()
        block = {"type": "tool_use", "id": call.id or new_id("toolu"), "name": call.name, "input": {}}
        events += self._start(block)
        self._calls += 1
        if call.text != "{}":  # the API sends nothing for an empty object
            self._written += 1
            events += [self._delta({"type": "input_json_delta", "partial_json": piece}) for piece in call.pieces()]
        self._in_text = True
        return events + self._stop()

    def failure(self, fails: Fails) -> list[bytes]:
        return [_event("error", error={"type": fails.type, "message": fails.message})]

    def ending(self, end: End) -> list[bytes]:
        if end.reason is None:
            return self._stop()
        delta = {"stop_reason": end.reason or self._reason(), "stop_sequence": None}
        events = [*self._stop(), _event("message_delta", delta=delta, usage={"output_tokens": self._written})]
        return [*events, _event("message_stop")] if end.done else events

    def whole(self, text: str, calls: list[ToolCall], end: End) -> dict[str, Any]:
        self._calls, self._written = len(calls), len(text.split()) + len(calls)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += (
            {"type": "tool_use", "id": call.id or new_id("toolu"), "name": call.name, "input": json.loads(call.text)}
            for call in calls
        )
        reason = None if end.reason is None else end.reason or self._reason()
        return {**self._message, "content": content, "stop_reason": reason, "usage": self._usage()}

    def _reason(self) -> str:
        return "tool_use" if self._calls else "end_turn"

    def _usage(self) -> dict[str, int]:
        return {"input_tokens": 10 * len(self._body["messages"]), "output_tokens": self._written}

    def _start(self, block: dict[str, Any]) -> list[bytes]:
        return [_event("content_block_start", index=self._blocks, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _stop(self) -> list[bytes]:
        if not self._in_text:
            return []
        self._in_text = False
        self._blocks += 1
        return [_event("content_block_stop", index=self._blocks - 1)]


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
