"""Owns requests to OpenAI, and to every server with the same Chat Completions API, through the official `openai` SDK.

Makes one attempt per request. Knows nothing of retries, tools and the agent's loop.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

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
from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from ..receipt import Usage
from .failure import MALFORMED, cut_off, failed_mid_answer, malformed, refused, transport_errors, unreachable
from .handshake import close_interrupted_handshakes
from .sdk_events import SdkEvents
from .wording import arguments_text, assistant_text, result_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice

__all__ = ["OpenAIModel"]

OFFICIAL_HOST = "api.openai.com"
RESERVED = {"messages", "tools", "n", "max_retries"}
REASONS: dict[str, FinishReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


class OpenAIModel:
    """A model of OpenAI, or of any compatible server: `OpenAIModel("gpt-…")`.

    It belongs to one event loop, as its client does.
    """

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncOpenAI | None" = None,
        base_url: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        **options: object,
    ) -> None:
        """Make a model.

        Args:
            model: The name of the model.
            client: An `AsyncOpenAI` to use, which the caller closes. Its own retries are switched off.
            base_url: The URL of a compatible server.
            api_key: The key; by default the SDK reads it from the environment.
            stream: False for servers that do not stream: the answer then comes in one piece.
            **options: Sent with every request: `temperature=0`, `timeout=30`, `tool_choice="required"`, …

        Raises:
            UsageError: An option belongs to the request or to `Retry`, or to a client that was given.
            MissingExtra: The `openai` package is not installed.
        """
        if reserved := RESERVED & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request, or to `Retry`")
        if client is not None and (base_url, api_key) != (None, None):
            raise UsageError("base_url and api_key belong to the client: give either a client or these")
        self.name = model
        self._owns_client = client is None
        self._client = _connect(base_url, api_key) if client is None else client.with_options(max_retries=0)
        self._completions = (
            self._client.chat.completions
        )  # looked up now: it imports modules, which would block the loop
        self._stream = stream
        self._options = options

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Send one request and yield the answer. Closing the iterator closes the connection.

        Raises:
            ModelError: The request failed, or the answer was cut off.
            AbortError: The signal was aborted.
        """
        signal.raise_if_aborted()
        answer = _OpenAIAnswer(self.name)
        try:
            response = await signal.run(self._completions.create(**self._body(request)))
            if self._stream:
                async with signal.stream(SdkEvents["ChatCompletionChunk"](response)) as events:
                    async for event in events:
                        for chunk in answer.read(event):
                            yield chunk
            else:
                for chunk in answer.read(response):
                    yield chunk
            if answer.reason is None:
                raise cut_off(self.name, _not_a_stream(response.response.headers) if self._stream else "")
        except SafepointError:
            raise
        except _failures() as error:
            # After the finish reason the answer is complete: what breaks then is only the connection.
            if answer.reason is None:
                raise _model_error(self.name, error) from error
        yield AnswerEnded(answer.finish_reason())

    async def aclose(self) -> None:
        """Close the connections, unless the client was given by the caller."""
        if self._owns_client:
            await self._client.close()

    async def __aenter__(self) -> "OpenAIModel":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, object] = {"model": self.name, "messages": _messages(request.messages), "stream": self._stream}
        if self._stream:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        if request.max_tokens is not None:
            # OpenAI's newer models refuse the old name; compatible servers may know only the old one.
            official = self._client.base_url.host == OFFICIAL_HOST
            body["max_completion_tokens" if official else "max_tokens"] = request.max_tokens
        return body | self._options


class _CalledFunction(Protocol):
    """The function in a piece of a call. Some servers send the arguments as an object instead of its text."""

    @property
    def name(self) -> str | None: ...
    @property
    def arguments(self) -> object: ...


class _CallPiece(Protocol):
    """A piece of a tool call, in a stream or in a whole answer."""

    @property
    def id(self) -> str | None: ...
    @property
    def function(self) -> _CalledFunction: ...


class _OpenAIAnswer:
    """Translates the events of one answer into chunks.

    Many servers are "compatible", and few are exactly so: the differences are handled here.
    """

    def __init__(self, model: str) -> None:
        self.reason: str | None = None
        self._model = model
        self._call_ids: list[str] = []
        self._indexes: dict[int | None, int] = {}  # our number of a call by the number that the server gave it
        self._without_arguments: dict[int, None] = {}  # calls whose arguments have not come yet, in order

    def read(self, event: "ChatCompletionChunk | ChatCompletion") -> Iterator[Chunk]:
        """Yield the chunks in one event of a stream, or in a whole answer.

        The SDK does not validate what it passes on: attributes may be missing, whatever the types say.
        """
        try:
            for choice in event.choices:
                yield from self._choice(choice)
            usage = event.usage
            if usage:
                yield UsageReported(Usage(1, usage.prompt_tokens or 0, usage.completion_tokens or 0))
        except (AttributeError, TypeError) as error:
            raise malformed(self._model, f"{event!r}"[:200]) from error

    def finish_reason(self) -> FinishReason:
        """Return why the answer ended. Some servers send "stop" after calls, some send words of their own."""
        return REASONS.get(self.reason or "", "tool_calls" if self._call_ids else "stop")

    def _choice(self, choice: "ChunkChoice | Choice") -> Iterator[Chunk]:
        part = getattr(choice, "delta", None) or getattr(choice, "message", None)
        if part is not None:
            if text := (part.content or "") + (getattr(part, "refusal", None) or ""):
                yield TextDelta(text)
            for piece in part.tool_calls or ():
                yield self._call(piece)
        if choice.finish_reason:
            self.reason = choice.finish_reason
            # A call without arguments is an empty object; some servers write it as nothing.
            yield from (CallDelta(index=index, arguments="{}") for index in self._without_arguments)
            self._without_arguments.clear()
        if self.reason == "error":
            raise ModelError(f"{self._model}: the provider ended the answer with an error", retryable=True)

    def _call(self, piece: "_CallPiece") -> CallDelta:
        """Return one piece of a call, with the id and the name only in the first piece of each call.

        Some servers repeat the id and the name, some leave them out, and some number all calls 0.
        """
        position: int | None = getattr(piece, "index", None)
        arguments = piece.function.arguments or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        index = self._indexes.get(position)
        if index is not None:
            is_next_call = piece.id and piece.id != self._call_ids[index]
            if not is_next_call and not (position is None and piece.function.name):
                if arguments:
                    self._without_arguments.pop(index, None)
                return CallDelta(index=index, arguments=arguments)
        index = self._indexes[position] = len(self._call_ids)
        if not arguments:
            self._without_arguments[index] = None
        call_id = piece.id if piece.id and piece.id not in self._call_ids else f"call_{uuid4().hex}"
        self._call_ids.append(call_id)
        return CallDelta(index=index, call_id=call_id, name=piece.function.name or "", arguments=arguments)


def _connect(base_url: str | None, api_key: str | None) -> "AsyncOpenAI":
    try:
        from openai import AsyncOpenAI, OpenAIError
    except ImportError as error:
        raise MissingExtra("OpenAIModel", "openai", error) from error
    try:
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    except OpenAIError as error:
        raise UsageError(f"{error} (a server that needs no key takes any text as api_key)") from error
    close_interrupted_handshakes(client)
    return client


def _messages(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    return [converted for message in messages if (converted := _message(message)) is not None]


def _message(message: Message) -> dict[str, object] | None:
    match message:
        case SystemMessage():
            return {"role": "system", "content": message.text}
        case UserMessage():
            return {"role": "user", "content": message.text}
        case ToolResult():
            return {"role": "tool", "tool_call_id": message.call_id, "content": result_text(message)}
        case AssistantMessage():
            text = assistant_text(message)
            if message.calls:
                return {"role": "assistant", "content": text or None, "tool_calls": [_call(c) for c in message.calls]}
            return {"role": "assistant", "content": text} if text else None  # an empty answer is left out


def _call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(spec: ToolSpec) -> dict[str, object]:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def _not_a_stream(headers: Mapping[str, str]) -> str:
    kind = headers.get("content-type", "")
    return "" if kind.startswith("text/event-stream") else f" (it is {kind!r}, no event stream; see stream=False)"


def _failures() -> tuple[type[Exception], ...]:
    import openai

    return (openai.OpenAIError, *MALFORMED, *transport_errors())


def _model_error(model: str, error: Exception) -> ModelError:
    """Return the ModelError for an exception of the SDK."""
    import openai

    match error:
        case openai.APIStatusError():
            body = error.body
            detail = body.get("message") if isinstance(body, dict) else None
            message, headers = str(detail or error.message), error.response.headers
            return refused(model, message, error.status_code, headers, error.type, error.code)
        case openai.APIConnectionError():
            return unreachable(model, error)
        case openai.APIResponseValidationError():
            return malformed(model, error)
        case openai.APIError():  # an error event inside the stream
            return failed_mid_answer(model, error.message, error.code, error.type)
        case openai.OpenAIError():
            return ModelError(f"{model}: {error}")
        case _ if isinstance(error, MALFORMED):
            return malformed(model, error)
        case _:
            return unreachable(model, error)
