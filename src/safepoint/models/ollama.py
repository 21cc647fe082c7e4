"""Owns requests to an Ollama server through the official `ollama` SDK.

Makes one attempt per request. Knows nothing of retries, tools and the agent's loop.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import ValidationError

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
from .wording import arguments_of, assistant_text, result_text

if TYPE_CHECKING:
    from ollama import AsyncClient, ChatResponse, ResponseError

__all__ = ["OllamaModel"]

RESERVED = {"messages", "tools"}
# Of the JSON schema of a parameter the SDK sends only these keys and the description. Losing the other ones matters,
# except for these.
SENT_KEYS = {"type", "items", "enum"}
DISPENSABLE_KEYS = {"description", "title", "default"}


class OllamaModel:
    """A model of an Ollama server: `OllamaModel("qwen3")`.

    It belongs to one event loop, as its client does.
    """

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncClient | None" = None,
        host: str | None = None,
        stream: bool = True,
        **options: object,
    ) -> None:
        """Make a model.

        Args:
            model: The name of the model.
            client: An `ollama.AsyncClient` to use, which the caller closes.
            host: The URL of the server; by default `OLLAMA_HOST`, or this machine.
            stream: False to get the answer in one piece.
            **options: Sent with every request: `options={"temperature": 0}`, `think=False`, `keep_alive="5m"`, …

        Raises:
            UsageError: An option belongs to the request, or to a client that was given.
            MissingExtra: The `ollama` package is not installed.
        """
        if reserved := RESERVED & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request")
        if client is not None and host is not None:
            raise UsageError("host belongs to the client: give either a client or a host")
        self.name = model
        self._owns_client = client is None
        self._client = client or _connect(host)
        self._stream = stream
        self._options = options

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Send one request and yield the answer. Closing the iterator closes the connection.

        Raises:
            ModelError: The request failed, or the answer was cut off.
            AbortError: The signal was aborted.
        """
        signal.raise_if_aborted()
        answer = _OllamaAnswer()
        try:
            async with signal.stream(self._parts(request)) as parts:
                async for part in parts:
                    for chunk in answer.read(part):
                        yield chunk
            if answer.reason is None:
                raise cut_off(self.name)
        except SafepointError:
            raise
        except _failures() as error:
            if answer.reason is None:  # otherwise the answer is complete, and only the connection broke after it
                raise _model_error(self.name, error) from error
        yield AnswerEnded(answer.finish_reason())

    async def aclose(self) -> None:
        """Close the connections, unless the client was given by the caller."""
        if self._owns_client:
            await self._client.close()  # type: ignore[no-untyped-call]  # the SDK does not annotate it

    async def __aenter__(self) -> "OllamaModel":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _parts(self, request: ModelRequest) -> "AsyncGenerator[ChatResponse, None]":
        """Send the request when first read, and yield the parts of the answer: one, if it is not streamed."""
        response = self._client.chat(**self._body(request))
        if not self._stream:
            with _malformed_parts(self.name):
                yield await response
            return
        parts: AsyncIterator[ChatResponse] = await response
        assert isinstance(parts, AsyncGenerator), "the SDK's stream is a generator: closing it closes the connection"
        try:
            with _malformed_parts(self.name):
                async for part in parts:
                    yield part
        finally:
            await parts.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, object] = {"model": self.name, "messages": _messages(request.messages), "stream": self._stream}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        body |= self._options
        if request.max_tokens is not None:
            options = body.get("options")
            given = options if isinstance(options, Mapping) else {}
            body["options"] = {**given, "num_predict": request.max_tokens}
        return body


@contextmanager
def _malformed_parts(model: str) -> Iterator[None]:
    """Translate what the SDK raises for a line that is JSON but no part of an answer: it does not check it first."""
    try:
        yield
    except (ValidationError, AttributeError, TypeError) as error:
        raise malformed(model, error) from error


class _OllamaAnswer:
    """Translates the parts of one answer into chunks. Calls come whole and without ids, so they get new ones."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._calls = 0

    def read(self, part: "ChatResponse") -> Iterator[Chunk]:
        """Yield the chunks in one part."""
        if part.message.content:
            yield TextDelta(part.message.content)
        for call in part.message.tool_calls or ():
            arguments = json.dumps(dict(call.function.arguments), ensure_ascii=False)
            index, self._calls = self._calls, self._calls + 1
            yield CallDelta(index=index, call_id=f"call_{uuid4().hex}", name=call.function.name, arguments=arguments)
        if part.done:
            self.reason = part.done_reason or "stop"
            yield UsageReported(Usage(1, part.prompt_eval_count or 0, part.eval_count or 0))

    def finish_reason(self) -> FinishReason:
        """Return why the answer ended."""
        if self.reason == "length":
            return "length"
        return "tool_calls" if self._calls else "stop"


def _connect(host: str | None) -> "AsyncClient":
    try:
        from ollama import AsyncClient
    except ImportError as error:
        raise MissingExtra("OllamaModel", "ollama", error) from error
    client = AsyncClient(host)
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
            return {"role": "tool", "tool_name": message.name, "content": result_text(message)}
        case AssistantMessage():
            calls = [{"function": {"name": call.name, "arguments": arguments_of(call)}} for call in message.calls]
            text = assistant_text(message)
            if calls:
                return {"role": "assistant", "content": text, "tool_calls": calls}
            return {"role": "assistant", "content": text} if text else None  # an empty answer is left out


def _tool(spec: ToolSpec) -> dict[str, object]:
    parameters = dict(spec.parameters)
    properties = parameters.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    parameters["properties"] = {name: _property(schema) for name, schema in properties.items()}
    function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _property(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema of a parameter; if the SDK would drop a part of it, the description repeats the schema."""
    if schema.keys() <= SENT_KEYS | DISPENSABLE_KEYS:
        return dict(schema)
    text = json.dumps({key: schema[key] for key in schema if key not in DISPENSABLE_KEYS}, ensure_ascii=False)
    return {**schema, "description": f"{schema.get('description', '')} JSON schema: {text}".strip()}


def _failures() -> tuple[type[Exception], ...]:
    from ollama import RequestError, ResponseError

    return (ResponseError, RequestError, *MALFORMED, *transport_errors())


def _model_error(model: str, error: Exception) -> ModelError:
    """Return the ModelError for an exception of the SDK."""
    from ollama import RequestError, ResponseError

    match error:
        case ResponseError() if (
            error.status_code < 0
        ):  # inside the answer: the request was accepted, then the server failed
            return failed_mid_answer(model, error.error, "server_error")
        case ResponseError():
            return refused(model, error.error, error.status_code, _headers(error))
        case RequestError():
            return ModelError(f"{model}: {error}")
        case _ if isinstance(error, MALFORMED):
            return malformed(model, error)
        case _:
            return unreachable(model, error)


def _headers(error: "ResponseError") -> Mapping[str, str]:
    """Return the headers of the response. The SDK drops them, but the exception that it handled has them."""
    response = getattr(error.__context__, "response", None)
    headers: Mapping[str, str] = getattr(response, "headers", {})
    return headers
