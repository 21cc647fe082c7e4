"""Owns a provider with the Chat Completions API over real HTTP and SSE, scripted per request, strict about histories.

    with Provider("Hello there", [ToolCall("search", {"query": "x"})], Refusal(429, retry_after="2")) as provider:
        model = OpenAIModel("any", base_url=provider.base_url, api_key="any")
        ...
        provider.exchanges[0].body          # what was asked, and when: .came_at
        provider.exchanges[0].hung_up       # the client closed the connection before the answer was whole: .closed_at

One argument per request, more with `will()`; `always()` answers whatever is not scripted. An answer is a text, a list
of the pieces in `script.py`, or a function of the request's body that returns one. A request with `"stream": false`
gets the same answer as one JSON document. A request whose history the real API would refuse gets its 400 and uses up
no answer. It is served by a thread of its own; `exchange.closed.wait(5)` waits for what the client does.
"""

import json
from typing import Any

from tests.kit.providers import openai_rules as history
from tests.kit.providers.script import End, Fails, ScriptedServer, ToolCall, new_id

__all__ = ["Provider"]


class Provider(ScriptedServer):
    """The provider; see the module."""

    path = "/v1/chat/completions"

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"{self.url}/v1"

    def format(self, body: dict[str, Any]) -> "ChatCompletions":
        return ChatCompletions(body)

    def fault(self, body: dict[str, Any]) -> str | None:
        return history.fault(body)

    def error(self, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


class ChatCompletions:
    """One answer as server-sent events, or as a document."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body
        self._head = {"id": new_id("chatcmpl"), "created": 1, "model": body["model"]}
        self._written = 0
        self._calls = 0

    def opening(self) -> list[bytes]:
        return self._delta({"role": "assistant", "content": ""})

    def text(self, word: str) -> list[bytes]:
        self._written += 1
        return self._delta({"content": word})

    def call(self, call: ToolCall) -> list[bytes]:
        index, self._calls = self._calls, self._calls + 1
        first = {"index": index, "id": call.id or new_id("call"), "type": "function"}
        events = self._delta({"tool_calls": [{**first, "function": {"name": call.name, "arguments": ""}}]})
        for piece in call.pieces():
            self._written += 1
            events += self._delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        return events

    def failure(self, fails: Fails) -> list[bytes]:
        return [_sse({"error": {"message": fails.message, "type": fails.type, "param": None, "code": fails.code}})]

    def ending(self, end: End) -> list[bytes]:
        events = [] if end.reason is None else self._delta({}, end.reason or self._reason())
        if (self._body.get("stream_options") or {}).get("include_usage"):
            events.append(self._event({"choices": [], "usage": self._usage()}))
        return [*events, b"data: [DONE]\n\n"] if end.done else events

    def whole(self, text: str, calls: list[ToolCall], end: End) -> dict[str, Any]:
        self._calls, self._written = len(calls), len(text.split()) + len(calls)
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id or new_id("call"),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for call in calls
            ]
        reason = None if end.reason is None else end.reason or self._reason()
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def _reason(self) -> str:
        return "tool_calls" if self._calls else "stop"

    def _usage(self) -> dict[str, int]:
        read = 10 * len(self._body["messages"])
        return {"prompt_tokens": read, "completion_tokens": self._written, "total_tokens": read + self._written}

    def _delta(self, delta: dict[str, Any], reason: str | None = None) -> list[bytes]:
        return [self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})]

    def _event(self, data: dict[str, Any]) -> bytes:
        return _sse({**self._head, "object": "chat.completion.chunk", **data})


def _sse(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
