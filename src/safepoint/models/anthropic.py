"""Owns requests to Anthropic's Messages API, and to compatible servers, through the official `anthropic` SDK.

Knows nothing of tools and the agent's loop; `sdk.py` owns what happens around the request.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ..agent.arguments import arguments_object
from ..agent.clean_text import clean_text
from ..agent.history import repair
from ..agent.model import CallDelta, Chunk, ModelError, ModelRequest, TextDelta, ToolSpec, UsageReported
from ..agent.model_text import CUT_OFF_CALL, assistant_text, result_text
from ..errors import MissingExtra
from ..messages import AssistantMessage, FinishReason, Message, SystemMessage, ToolResult, UserMessage
from ..receipt import Usage
from .connection import HttpResponse, ResponseEvents
from .failure import error_details, failed_mid_answer, malformed, refused, unreachable
from .sdk import SdkModel

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

# One part of a message, such as a text or the result of a call, as this API wants it.
Block: TypeAlias = dict[str, object]
# A part of an event, as it came: fields may be missing, and of other types than documented.
Json: TypeAlias = dict[str, Any]

__all__ = ["AnthropicModel"]

REASONS: dict[str, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "paused",
}


class AnthropicModel(SdkModel["AsyncAnthropic", object]):
    """A model of Anthropic, or of a compatible server: `AnthropicModel("claude-…")`."""

    reserved = frozenset({"messages", "tools", "system", "max_retries"})

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncAnthropic | None" = None,
        base_url: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        max_tokens: int = 4096,
        **options: object,
    ) -> None:
        """Make a model.

        Args:
            model: The name of the model.
            client: An `AsyncAnthropic` to use, which the caller closes. Its own retries are switched off.
            base_url: The URL of a compatible server.
            api_key: The key; by default the SDK reads it from the environment.
            stream: False for servers that do not stream: the answer then comes in one piece.
            max_tokens: The limit of an answer if the request has none. This API demands one.
            **options: Sent with every request: `timeout=30`, `tool_choice={"type": "any"}`, …

        Raises:
            UsageError: An option belongs to the request or to `Retry`, or to a client that was given.
            MissingExtra: The `anthropic` package is not installed.
        """
        settings = {"base_url": base_url, "api_key": api_key}
        super().__init__(model, client, settings=settings, stream=stream, options=options)
        self._max_tokens = max_tokens

    def _connect(self, settings: Mapping[str, Any]) -> "AsyncAnthropic":
        try:
            from anthropic import AsyncAnthropic
        except ImportError as error:
            raise MissingExtra("AnthropicModel", "anthropic", error) from error
        return AsyncAnthropic(**settings, max_retries=0)

    def _without_retries(self, client: "AsyncAnthropic") -> "AsyncAnthropic":
        return client.with_options(max_retries=0)

    async def _close(self, client: "AsyncAnthropic") -> None:
        await client.close()

    def _body(self, request: ModelRequest) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self.name,
            "messages": _messages(request.messages),
            "max_tokens": request.max_tokens or self._max_tokens,
            "stream": self._stream,
        }
        system = (message.text for message in request.messages if isinstance(message, SystemMessage))
        if text := clean_text("\n\n".join(filter(str.strip, system))):
            body["system"] = text
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        return body | self._options

    def _events(self, client: "AsyncAnthropic", body: dict[str, Any]) -> ResponseEvents:
        async def send() -> HttpResponse:
            response: HttpResponse = (await client.messages.with_raw_response.create(**body)).http_response
            return response

        return ResponseEvents(send, whole=not self._stream)

    def _reader(self) -> "_AnthropicAnswer":
        return _AnthropicAnswer(self.name)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        import anthropic

        return (anthropic.AnthropicError,)

    def _explained(self, error: Exception) -> ModelError:
        import anthropic

        match error:
            case anthropic.APIStatusError():
                body = error.body.get("error") if isinstance(error.body, Mapping) else None
                details = body if isinstance(body, Mapping) else {}
                message = str(details.get("message") or error.message)
                return refused(self.name, message, error.status_code, error.response.headers)
            case anthropic.APIConnectionError():
                return unreachable(self.name, error)
            case anthropic.APIResponseValidationError():
                return malformed(self.name, error)
            case _:
                return ModelError(f"{self.name}: {error}")


class _AnthropicAnswer:
    """Translates the events of one answer into chunks."""

    def __init__(self, model: str) -> None:
        self._reason: str | None = None
        self._model = model
        self._input_tokens = 0
        self._calls: dict[int, int] = {}  # the number of a call by the number of its block: not all blocks are calls
        self._without_arguments: set[int] = set()  # the blocks of calls whose arguments have not come yet

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended."""
        return None if self._reason is None else REASONS.get(self._reason, "stop")

    def read(self, event: object) -> Iterator[Chunk]:
        """Yield the chunks in one event of a stream, or in a whole answer."""
        if not isinstance(event, dict):
            raise malformed(self._model, f"{event!r}"[:200])
        if event.get("type") == "error":
            raise failed_mid_answer(self._model, *error_details(event.get("error")))
        try:
            yield from self._event(event)
        except (AttributeError, TypeError, KeyError) as error:
            raise malformed(self._model, f"{event!r}"[:200]) from error

    def _event(self, event: Json) -> Iterator[Chunk]:
        match event["type"]:
            case "message_start":
                yield self._usage(event["message"]["usage"])
            case "content_block_start":
                yield from self._block(event["index"], event["content_block"])
            case "content_block_delta":
                yield from self._delta(event["index"], event["delta"])
            case "message_delta":
                yield from self._ended(event["delta"].get("stop_reason"))
                yield self._usage(event["usage"])
            case "message":  # an answer that was not streamed
                for index, block in enumerate(event["content"]):
                    yield from self._block(index, block)
                yield from self._ended(event["stop_reason"])
                yield self._usage(event["usage"])
            case _:
                pass

    def _ended(self, reason: str | None) -> Iterator[Chunk]:
        """Yield the arguments of calls without any. They are an empty object, unless the answer was cut off."""
        self._reason = reason or self._reason
        if self.finish_reason is None:
            return
        if self.finish_reason not in CUT_OFF_CALL:
            yield from (CallDelta(index=self._calls[block], arguments="{}") for block in self._without_arguments)
        self._without_arguments.clear()

    def _block(self, index: int, block: Json) -> Iterator[Chunk]:
        if block["type"] == "text" and block["text"]:
            yield TextDelta(block["text"])
        elif block["type"] == "tool_use":
            call = self._calls[index] = len(self._calls)
            arguments = json.dumps(block["input"], ensure_ascii=False) if block.get("input") else ""
            if not arguments:
                self._without_arguments.add(index)
            yield CallDelta(index=call, call_id=block["id"], name=block["name"], arguments=arguments)

    def _delta(self, index: int, delta: Json) -> Iterator[Chunk]:
        if delta["type"] == "text_delta" and delta["text"]:
            yield TextDelta(delta["text"])
        elif delta["type"] == "input_json_delta" and delta["partial_json"] and index in self._calls:
            self._without_arguments.discard(index)
            yield CallDelta(index=self._calls[index], arguments=delta["partial_json"])

    def _usage(self, usage: Json) -> UsageReported:
        counts = (usage.get(f"{kind}input_tokens") for kind in ("", "cache_creation_", "cache_read_"))
        self._input_tokens = sum(count or 0 for count in counts) or self._input_tokens  # the last report may omit these
        return UsageReported(Usage(1, self._input_tokens, usage.get("output_tokens") or 0))


def _messages(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    """Return the conversation as this API wants it: user and assistant in turns.

    Consecutive messages of one side become one message. The results of calls belong to the user's side.
    """
    turns: list[tuple[str, list[Block]]] = []
    for message in repair(messages, "anthropic"):
        role, blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _blocks(message: Message) -> tuple[str, list[Block]]:
    match message:
        case SystemMessage():  # has a field of its own in the request
            return "user", []
        case UserMessage():
            return "user", [{"type": "text", "text": message.text}] if message.text else []
        case ToolResult():
            result: Block = {"type": "tool_result", "tool_use_id": message.call_id, "content": result_text(message)}
            return "user", [result if message.status == "completed" else {**result, "is_error": True}]
        case AssistantMessage():
            text = assistant_text(message)
            blocks: list[Block] = [{"type": "text", "text": text}] if text else []
            blocks += (
                {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments_object(call)}
                for call in message.calls
            )
            return "assistant", blocks


def _tool(spec: ToolSpec) -> dict[str, object]:
    return {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)}
