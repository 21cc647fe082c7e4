"""Owns talking to OpenAI, and to every server with the same Chat Completions API, by the official `openai` SDK.

Makes one attempt per request. Knows nothing of retries, tools and the agent's loop.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any
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
from ..run.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from ..run.receipt import Usage
from .failure import MALFORMED, broke_off, failed_within, malformed, refused, transport_errors, unreachable
from .handshake import close_interrupted_handshakes
from .sdk_events import SdkEvents
from .wording import arguments_text, assistant_text, result_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI

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
    """`OpenAIModel("gpt-…")`, or with `base_url=` any compatible server. Belongs to one event loop, as its client does.

    client     an `AsyncOpenAI` of yours, which stays yours to close; its own retries are switched off here
    stream     False for servers that do not stream: the answer comes in one piece
    options    go with every request: `temperature=0`, `timeout=30`, `tool_choice="required"`, …
    """

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncOpenAI | None" = None,
        base_url: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        **options: Any,
    ) -> None:
        if reserved := RESERVED & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request, or to `Retry`")
        if client is not None and (base_url, api_key) != (None, None):
            raise UsageError("base_url and api_key belong to the client: give either a client or these")
        self.name = model
        self._own = client is None
        self._client = _connect(base_url, api_key) if client is None else client.with_options(max_retries=0)
        self._completions = self._client.chat.completions  # imports what it needs: here, not in a loop that is running
        self._stream = stream
        self._options = options

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Ask once. Closing the iterator closes the connection. Raises: ModelError; AbortError."""
        signal.raise_if_aborted()
        answer = _OpenAIAnswer(self.name)
        try:
            response = await signal.run(self._completions.create(**self._body(request)))
            if self._stream:
                async with signal.stream(SdkEvents[Any](response)) as events:
                    async for event in events:
                        for chunk in answer.read(event):
                            yield chunk
            else:
                for chunk in answer.read(response):
                    yield chunk
            if answer.reason is None:
                raise broke_off(self.name, _not_a_stream(response.response.headers) if self._stream else "")
        except SafepointError:
            raise
        except _failures() as error:
            # Once the finish reason is here the answer is whole: what breaks after it is only the line.
            if answer.reason is None:
                raise _model_error(self.name, error) from error
        yield AnswerEnded(answer.ended())

    async def aclose(self) -> None:
        """Close the connections, unless the client was given."""
        if self._own:
            await self._client.close()

    async def __aenter__(self) -> "OpenAIModel":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": _messages(request.messages), "stream": self._stream}
        if self._stream:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        if request.max_tokens is not None:
            # OpenAI's newer models refuse the old name; compatible servers may know only that one.
            official = self._client.base_url.host == OFFICIAL_HOST
            body["max_completion_tokens" if official else "max_tokens"] = request.max_tokens
        return body | self._options


class _OpenAIAnswer:
    """Reads one answer: events of the provider in, chunks out. Many servers are "compatible", few are exactly so."""

    def __init__(self, model: str) -> None:
        self.reason: str | None = None
        self._model = model
        self._call_ids: list[str] = []
        self._places: dict[int | None, int] = {}
        self._empty: dict[int, None] = {}

    def read(self, event: Any) -> Iterator[Chunk]:
        """The chunks in one event of a stream, or in a whole answer. The SDK does not check what it hands on."""
        try:
            for choice in event.choices:
                yield from self._choice(choice)
            usage = event.usage
            if usage:
                yield UsageReported(Usage(1, usage.prompt_tokens or 0, usage.completion_tokens or 0))
        except (AttributeError, TypeError) as error:
            raise malformed(self._model, f"{event!r}"[:200]) from error

    def ended(self) -> FinishReason:
        """Why the answer ended, in our words: some servers say "stop" after calls, some have words of their own."""
        return REASONS.get(self.reason or "", "tool_calls" if self._call_ids else "stop")

    def _choice(self, choice: Any) -> Iterator[Chunk]:
        part = getattr(choice, "delta", None) or getattr(choice, "message", None)
        if part is not None:
            if text := (part.content or "") + (getattr(part, "refusal", None) or ""):
                yield TextDelta(text)
            for piece in part.tool_calls or ():
                yield self._call(piece)
        if choice.finish_reason:
            self.reason = choice.finish_reason
            # A call without arguments is an empty object; some servers write it as nothing.
            yield from (CallDelta(index=index, arguments="{}") for index in self._empty)
            self._empty.clear()
        if self.reason == "error":
            raise ModelError(f"{self._model}: the provider ended the answer with an error", retryable=True)

    def _call(self, piece: Any) -> CallDelta:
        """Id and name once per call, also from servers that repeat them, leave them out, or count all calls as 0."""
        position: int | None = getattr(piece, "index", None)
        arguments = piece.function.arguments or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        index = self._places.get(position)
        if index is not None:
            other = piece.id and piece.id != self._call_ids[index]
            if not other and not (position is None and piece.function.name):
                if arguments:
                    self._empty.pop(index, None)
                return CallDelta(index=index, arguments=arguments)
        index = self._places[position] = len(self._call_ids)
        if not arguments:
            self._empty[index] = None
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


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [converted for message in messages if (converted := _message(message)) is not None]


def _message(message: Message) -> dict[str, Any] | None:
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
            return {"role": "assistant", "content": text} if text else None  # nothing was said


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def _not_a_stream(headers: Mapping[str, str]) -> str:
    kind = headers.get("content-type", "")
    return "" if kind.startswith("text/event-stream") else f" (it is {kind!r}, no event stream; see stream=False)"


def _failures() -> tuple[type[Exception], ...]:
    import openai

    return (openai.OpenAIError, *MALFORMED, *transport_errors())


def _model_error(model: str, error: Exception) -> ModelError:
    """Whatever the SDK raises, as what it means to the caller."""
    import openai

    match error:
        case openai.APIStatusError():
            body = error.body
            said = body.get("message") if isinstance(body, dict) else None
            told, headers = str(said or error.message), error.response.headers
            return refused(model, told, error.status_code, headers, error.type, error.code)
        case openai.APIConnectionError():
            return unreachable(model, error)
        case openai.APIResponseValidationError():
            return malformed(model, error)
        case openai.APIError():  # an error event inside of the stream
            return failed_within(model, error.message, error.code, error.type)
        case openai.OpenAIError():
            return ModelError(f"{model}: {error}")
        case _ if isinstance(error, MALFORMED):
            return malformed(model, error)
        case _:
            return unreachable(model, error)
