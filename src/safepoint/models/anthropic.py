"""Owns requests to Anthropic's Messages API, and to compatible servers, through the official `anthropic` SDK.

Makes one attempt per request. Knows nothing of retries, tools and the agent's loop.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

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
from ..messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from ..receipt import Usage
from .failure import MALFORMED, cut_off, failed_mid_answer, malformed, refused, transport_errors, unreachable
from .handshake import close_interrupted_handshakes
from .sdk_events import SdkEvents
from .wording import arguments_of, assistant_text, result_text

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, types

# One part of a message, such as a text or the result of a call, as this API wants it.
Block: TypeAlias = dict[str, object]

__all__ = ["AnthropicModel"]

RESERVED = {"messages", "tools", "system", "max_retries"}
REASONS: dict[str, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class AnthropicModel:
    """A model of Anthropic, or of a compatible server: `AnthropicModel("claude-…")`.

    It belongs to one event loop, as its client does.
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
        if reserved := RESERVED & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request, or to `Retry`")
        if client is not None and (base_url, api_key) != (None, None):
            raise UsageError("base_url and api_key belong to the client: give either a client or these")
        self.name = model
        self._owns_client = client is None
        self._client = _connect(base_url, api_key) if client is None else client.with_options(max_retries=0)
        self._stream = stream
        self._max_tokens = max_tokens
        self._options = options

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Send one request and yield the answer. Closing the iterator closes the connection.

        Raises:
            ModelError: The request failed, or the answer was cut off.
            AbortError: The signal was aborted.
        """
        signal.raise_if_aborted()
        answer = _AnthropicAnswer(self.name)
        try:
            response = await signal.run(self._client.messages.create(**self._body(request)))
            if self._stream:
                async with signal.stream(SdkEvents["types.RawMessageStreamEvent"](response)) as events:
                    async for event in events:
                        for chunk in answer.read(event):
                            yield chunk
            else:
                for chunk in answer.read_whole(response):
                    yield chunk
            if answer.reason is None:
                raise cut_off(self.name)
        except SafepointError:
            raise
        except _failures() as error:
            if answer.reason is None:  # otherwise the answer is complete, and only the connection broke after it
                raise _model_error(self.name, error) from error
        yield AnswerEnded(REASONS.get(answer.reason, "stop"))

    async def aclose(self) -> None:
        """Close the connections, unless the client was given by the caller."""
        if self._owns_client:
            await self._client.close()

    async def __aenter__(self) -> "AnthropicModel":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, object] = {
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
    """Translates the events of one answer into chunks."""

    def __init__(self, model: str) -> None:
        self.reason: str | None = None
        self._model = model
        self._input_tokens = 0
        self._calls: dict[int, int] = {}  # the number of a call by the number of its block: not all blocks are calls
        self._without_arguments: set[int] = set()  # the blocks of calls whose arguments have not come yet

    def read(self, event: "types.RawMessageStreamEvent") -> Iterator[Chunk]:
        """Yield the chunks in one event of a stream.

        The SDK does not validate what it passes on: attributes may be missing, whatever the types say.
        """
        try:
            match event.type:
                case "message_start":
                    yield self._usage(event.message.usage)
                case "content_block_start":
                    yield from self._block(event.index, event.content_block)
                case "content_block_delta":
                    yield from self._delta(event.index, event.delta)
                case "content_block_stop" if event.index in self._without_arguments:
                    yield CallDelta(index=self._calls[event.index], arguments="{}")
                case "message_delta":
                    self.reason = event.delta.stop_reason or self.reason
                    yield self._usage(event.usage)
                case _:
                    pass
        except (AttributeError, TypeError, KeyError) as error:
            raise malformed(self._model, f"{event!r}"[:200]) from error

    def read_whole(self, message: "types.Message") -> Iterator[Chunk]:
        """Yield the chunks of an answer that was not streamed."""
        try:
            for index, block in enumerate(message.content):
                yield from self._block(index, block)
                if index in self._without_arguments:
                    yield CallDelta(index=self._calls[index], arguments="{}")
            self.reason = message.stop_reason
            yield self._usage(message.usage)
        except (AttributeError, TypeError) as error:
            raise malformed(self._model, f"{message!r}"[:200]) from error

    def _block(self, index: int, block: "types.ContentBlock") -> Iterator[Chunk]:
        if block.type == "text" and block.text:
            yield TextDelta(block.text)
        elif block.type == "tool_use":
            call = self._calls[index] = len(self._calls)
            arguments = json.dumps(block.input, ensure_ascii=False) if block.input else ""
            if not arguments:
                self._without_arguments.add(index)
            yield CallDelta(index=call, call_id=block.id, name=block.name, arguments=arguments)

    def _delta(self, index: int, delta: "types.RawContentBlockDelta") -> Iterator[Chunk]:
        if delta.type == "text_delta" and delta.text:
            yield TextDelta(delta.text)
        elif delta.type == "input_json_delta" and delta.partial_json and index in self._calls:
            self._without_arguments.discard(index)
            yield CallDelta(index=self._calls[index], arguments=delta.partial_json)

    def _usage(self, usage: "types.Usage | types.MessageDeltaUsage") -> UsageReported:
        counts = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
        self._input_tokens = sum(count or 0 for count in counts) or self._input_tokens  # the last report may omit these
        return UsageReported(Usage(1, self._input_tokens, usage.output_tokens or 0))


def _connect(base_url: str | None, api_key: str | None) -> "AsyncAnthropic":
    try:
        from anthropic import AsyncAnthropic
    except ImportError as error:
        raise MissingExtra("AnthropicModel", "anthropic", error) from error
    client = AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0)
    close_interrupted_handshakes(client)
    return client


def _messages(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    """Return the conversation as this API wants it: user and assistant in turns.

    Consecutive messages of one side become one message. The results of calls belong to the user's side.
    """
    turns: list[tuple[str, list[Block]]] = []
    for message in messages:
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
                {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments_of(call)}
                for call in message.calls
            )
            return "assistant", blocks


def _tool(spec: ToolSpec) -> dict[str, object]:
    return {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)}


def _failures() -> tuple[type[Exception], ...]:
    import anthropic

    return (anthropic.AnthropicError, *MALFORMED, *transport_errors())


def _model_error(model: str, error: Exception) -> ModelError:
    """Return the ModelError for an exception of the SDK."""
    import anthropic

    match error:
        case anthropic.APIStatusError():
            body = error.body.get("error") if isinstance(error.body, Mapping) else None
            details = body if isinstance(body, Mapping) else {}
            message = str(details.get("message") or error.message)
            if error.status_code < 400:  # an error event inside the stream
                return failed_mid_answer(model, message, details.get("type"))
            return refused(model, message, error.status_code, error.response.headers)
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
