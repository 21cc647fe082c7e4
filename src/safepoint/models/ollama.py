"""Owns requests to an Ollama server through the official `ollama` SDK.

Knows nothing of tools and the agent's loop; `sdk.py` owns what happens around the request.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import ValidationError

from ..agent.arguments import arguments_object
from ..agent.history import repair
from ..agent.model import CallDelta, Chunk, ModelError, ModelRequest, TextDelta, ToolSpec, UsageReported
from ..agent.model_text import assistant_text, result_text
from ..errors import MissingExtra
from ..messages import AssistantMessage, FinishReason, Message, SystemMessage, ToolResult, UserMessage
from ..receipt import Usage
from .failure import failed_mid_answer, malformed, refused
from .sdk import SdkModel

if TYPE_CHECKING:
    from ollama import AsyncClient, ChatResponse, ResponseError

__all__ = ["OllamaModel"]

# Of the JSON schema of a parameter the SDK sends only these keys and the description. Losing the other ones matters,
# except for these.
SENT_KEYS = {"type", "items", "enum"}
DISPENSABLE_KEYS = {"description", "title", "default"}


class OllamaModel(SdkModel["AsyncClient", "ChatResponse"]):
    """A model of an Ollama server: `OllamaModel("qwen3")`."""

    reserved = frozenset({"messages", "tools"})

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncClient | None" = None,
        host: str | None = None,
        timeout: float | None = None,
        stream: bool = True,
        **options: object,
    ) -> None:
        """Make a model.

        Args:
            model: The name of the model.
            client: An `ollama.AsyncClient` to use, which the caller closes.
            host: The URL of the server; by default `OLLAMA_HOST`, or this machine.
            timeout: How many seconds the server may be silent; by default there is no limit.
            stream: False to get the answer in one piece.
            **options: Sent with every request: `options={"temperature": 0}`, `think=False`, `keep_alive="5m"`, …

        Raises:
            UsageError: An option belongs to the request, or to a client that was given.
            MissingExtra: The `ollama` package is not installed.
        """
        settings = {"host": host, "timeout": timeout}
        super().__init__(model, client, settings=settings, stream=stream, options=options)

    def _connect(self, settings: Mapping[str, Any]) -> "AsyncClient":
        try:
            from ollama import AsyncClient
        except ImportError as error:
            raise MissingExtra("OllamaModel", "ollama", error) from error
        return AsyncClient(**settings)

    def _without_retries(self, client: "AsyncClient") -> "AsyncClient":
        return client  # this SDK has none

    async def _close(self, client: "AsyncClient") -> None:
        await client.close()  # type: ignore[no-untyped-call]  # the SDK does not annotate it

    async def _events(self, client: "AsyncClient", body: dict[str, Any]) -> "AsyncGenerator[ChatResponse, None]":
        response = client.chat(**body)
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

    def _body(self, request: ModelRequest) -> dict[str, object]:
        body: dict[str, object] = {"model": self.name, "messages": _messages(request.messages), "stream": self._stream}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        body |= self._options
        if request.max_tokens is not None:
            options = body.get("options")
            given = options if isinstance(options, Mapping) else {}
            body["options"] = {**given, "num_predict": request.max_tokens}
        return body

    def _reader(self) -> "_OllamaAnswer":
        return _OllamaAnswer()

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from ollama import RequestError, ResponseError

        return (ResponseError, RequestError)

    def _explained(self, error: Exception) -> ModelError:
        from ollama import ResponseError

        match error:
            case ResponseError() if error.status_code < 0:  # inside the answer: the server failed after it had accepted
                return failed_mid_answer(self.name, error.error, "server_error")
            case ResponseError():
                return refused(self.name, error.error, error.status_code, _headers(error))
            case _:
                return ModelError(f"{self.name}: {error}")


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
        self._reason: str | None = None
        self._calls = 0

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended."""
        if self._reason is None or self._reason == "length":
            return "length" if self._reason else None
        return "tool_calls" if self._calls else "stop"

    def read(self, event: "ChatResponse") -> Iterator[Chunk]:
        """Yield the chunks in one part of the answer."""
        if event.message.content:
            yield TextDelta(event.message.content)
        for call in event.message.tool_calls or ():
            arguments = json.dumps(dict(call.function.arguments), ensure_ascii=False)
            index, self._calls = self._calls, self._calls + 1
            yield CallDelta(index=index, call_id=f"call_{uuid4().hex}", name=call.function.name, arguments=arguments)
        if event.done:
            self._reason = event.done_reason or "stop"
            yield UsageReported(Usage(1, event.prompt_eval_count or 0, event.eval_count or 0))


def _messages(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    return [converted for message in repair(messages, "ollama") if (converted := _message(message)) is not None]


def _message(message: Message) -> dict[str, object] | None:
    match message:
        case SystemMessage():
            return {"role": "system", "content": message.text}
        case UserMessage():
            return {"role": "user", "content": message.text}
        case ToolResult():
            return {"role": "tool", "tool_name": message.name, "content": result_text(message)}
        case AssistantMessage():
            calls = [{"function": {"name": call.name, "arguments": arguments_object(call)}} for call in message.calls]
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


def _headers(error: "ResponseError") -> Mapping[str, str]:
    """Return the headers of the response. The SDK drops them, but the exception that it handled has them."""
    response = getattr(error.__context__, "response", None)
    headers: Mapping[str, str] = getattr(response, "headers", {})
    return headers
