"""Owns talking to Anthropic's Messages API, and to servers that speak it, by the official `anthropic` SDK.

Makes one attempt per request. Knows nothing of retries, tools and the agent's loop.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..abort import AbortSignal
from ..agent.model import (
    AnswerEnded,
    CallDelta,
    Chunk,
    FinishReason,
    ModelError,
    ModelRequest,
    TextDelta,
    ToolSpec,
    UsageReported,
)
from ..errors import MissingExtra, SafepointError, UsageError
from ..run.messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from ..run.receipt import Usage
from .failure import MALFORMED, broke_off, failed_within, malformed, refused, transport_errors, unreachable
from .handshake import close_interrupted_handshakes
from .sdk_events import SdkEvents
from .wording import arguments_of, assistant_text, result_text

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["AnthropicModel"]

RESERVED = {"messages", "tools", "system", "max_retries"}
REASONS: dict[str, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class AnthropicModel:
    """`AnthropicModel("claude-…")`, or with `base_url=` a compatible server. Belongs to one event loop, as its client.

    client      an `AsyncAnthropic` of yours, which stays yours to close; its own retries are switched off here
    stream      False for servers that do not stream: the answer comes in one piece
    max_tokens  the limit of answers for which the request has none: this API wants one
    options     go with every request: `timeout=30`, `tool_choice={"type": "any"}`, …
    """

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncAnthropic | None" = None,
        base_url: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        max_tokens: int = 4096,
        **options: Any,
    ) -> None:
        if reserved := RESERVED & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request, or to `Retry`")
        if client is not None and (base_url, api_key) != (None, None):
            raise UsageError("base_url and api_key belong to the client: give either a client or these")
        self.name = model
        self._own = client is None
        self._client = _connect(base_url, api_key) if client is None else client.with_options(max_retries=0)
        self._stream = stream
        self._max_tokens = max_tokens
        self._options = options

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Ask once. Closing the iterator closes the connection. Raises: ModelError; AbortError."""
        signal.raise_if_aborted()
        answer = _AnthropicAnswer(self.name)
        try:
            response = await signal.run(self._client.messages.create(**self._body(request)))
            if self._stream:
                async with signal.stream(SdkEvents[Any](response)) as events:
                    async for event in events:
                        for chunk in answer.read(event):
                            yield chunk
            else:
                for chunk in answer.read_whole(response):
                    yield chunk
            if answer.reason is None:
                raise broke_off(self.name)
        except SafepointError:
            raise
        except _failures() as error:
            if answer.reason is None:  # else the answer is whole: what breaks after its end is only the line
                raise _model_error(self.name, error) from error
        yield AnswerEnded(REASONS.get(answer.reason, "stop"))

    async def aclose(self) -> None:
        """Close the connections, unless the client was given."""
        if self._own:
            await self._client.close()

    async def __aenter__(self) -> "AnthropicModel":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": _messages(request.messages),
            "max_tokens": request.max_tokens or self._max_tokens,
            "stream": self._stream,
        }
        if system := "\n\n".join(m.text for m in request.messages if isinstance(m, SystemMessage) and m.text):
            body["system"] = system
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        return body | self._options


class _AnthropicAnswer:
    """Reads one answer: events of the provider in, chunks out."""

    def __init__(self, model: str) -> None:
        self.reason: str | None = None
        self._model = model
        self._input = 0
        self._calls: dict[int, int] = {}  # the provider counts blocks, of which some are calls
        self._empty: set[int] = set()

    def read(self, event: Any) -> Iterator[Chunk]:
        """The chunks in one event of a stream. The SDK does not check what it hands on."""
        try:
            match event.type:
                case "message_start":
                    yield self._usage(event.message.usage)
                case "content_block_start":
                    yield from self._block(event.index, event.content_block)
                case "content_block_delta":
                    yield from self._delta(event.index, event.delta)
                case "content_block_stop" if event.index in self._empty:
                    yield CallDelta(index=self._calls[event.index], arguments="{}")
                case "message_delta":
                    self.reason = event.delta.stop_reason or self.reason
                    yield self._usage(event.usage)
                case _:
                    pass
        except (AttributeError, TypeError, KeyError) as error:
            raise malformed(self._model, f"{event!r}"[:200]) from error

    def read_whole(self, message: Any) -> Iterator[Chunk]:
        """The chunks of an answer that was not streamed."""
        try:
            for index, block in enumerate(message.content):
                yield from self._block(index, block)
                if index in self._empty:
                    yield CallDelta(index=self._calls[index], arguments="{}")
            self.reason = message.stop_reason
            yield self._usage(message.usage)
        except (AttributeError, TypeError) as error:
            raise malformed(self._model, f"{message!r}"[:200]) from error

    def _block(self, index: int, block: Any) -> Iterator[Chunk]:
        if block.type == "text" and block.text:
            yield TextDelta(block.text)
        elif block.type == "tool_use":
            call = self._calls[index] = len(self._calls)
            arguments = json.dumps(block.input, ensure_ascii=False) if block.input else ""
            if not arguments:
                self._empty.add(index)
            yield CallDelta(index=call, call_id=block.id, name=block.name, arguments=arguments)

    def _delta(self, index: int, delta: Any) -> Iterator[Chunk]:
        if delta.type == "text_delta" and delta.text:
            yield TextDelta(delta.text)
        elif delta.type == "input_json_delta" and delta.partial_json and index in self._calls:
            self._empty.discard(index)
            yield CallDelta(index=self._calls[index], arguments=delta.partial_json)

    def _usage(self, usage: Any) -> UsageReported:
        read = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
        self._input = sum(count or 0 for count in read) or self._input  # the last report may leave these out
        return UsageReported(Usage(1, self._input, usage.output_tokens or 0))


def _connect(base_url: str | None, api_key: str | None) -> "AsyncAnthropic":
    try:
        from anthropic import AsyncAnthropic
    except ImportError as error:
        raise MissingExtra("AnthropicModel", "anthropic", error) from error
    client = AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0)
    close_interrupted_handshakes(client)
    return client


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Turn by turn, as this API wants it: what one side says in a row, results of calls too, is one message."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> tuple[str, list[dict[str, Any]]]:
    match message:
        case SystemMessage():  # stands beside the messages
            return "user", []
        case UserMessage():
            return "user", [{"type": "text", "text": message.text}] if message.text else []
        case ToolResult():
            result = {"type": "tool_result", "tool_use_id": message.call_id, "content": result_text(message)}
            return "user", [result if message.status == "completed" else {**result, "is_error": True}]
        case AssistantMessage():
            text = assistant_text(message)
            blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
            blocks += (
                {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments_of(call)}
                for call in message.calls
            )
            return "assistant", blocks


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)}


def _failures() -> tuple[type[Exception], ...]:
    import anthropic

    return (anthropic.AnthropicError, *MALFORMED, *transport_errors())


def _model_error(model: str, error: Exception) -> ModelError:
    """Whatever the SDK raises, as what it means to the caller."""
    import anthropic

    match error:
        case anthropic.APIStatusError():
            body = error.body.get("error") if isinstance(error.body, Mapping) else None
            told = body if isinstance(body, Mapping) else {}
            said = str(told.get("message") or error.message)
            if error.status_code < 400:  # an error event inside of the stream
                return failed_within(model, said, told.get("type"))
            return refused(model, said, error.status_code, error.response.headers)
        case anthropic.APIConnectionError():
            return unreachable(model, error)
        case anthropic.APIResponseValidationError():
            return malformed(model, error)
        case anthropic.AnthropicError():
            return ModelError(f"{model}: {error}")
        case _ if isinstance(error, MALFORMED):
            return malformed(model, error)
        case _:
            return unreachable(model, error)
