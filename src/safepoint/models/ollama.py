"""Owns talking to an Ollama server by the official `ollama` SDK.

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
from ..run.messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from ..run.receipt import Usage
from .failure import MALFORMED, broke_off, failed_within, malformed, refused, transport_errors, unreachable
from .handshake import close_interrupted_handshakes
from .wording import arguments_of, assistant_text, result_text

if TYPE_CHECKING:
    from ollama import AsyncClient, ChatResponse, ResponseError

__all__ = ["OllamaModel"]

RESERVED = {"messages", "tools"}
KEPT = {"type", "items", "enum"}
NOT_MISSED = {"description", "title", "default"}


class OllamaModel:
    """`OllamaModel("qwen3")`, at `host=`, `OLLAMA_HOST` or this machine. Belongs to one event loop, as its client does.

    client     an `ollama.AsyncClient` of yours, which stays yours to close
    stream     False: the answer comes in one piece
    options    go with every request: `options={"temperature": 0}`, `think=False`, `keep_alive="5m"`, …
    """

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncClient | None" = None,
        host: str | None = None,
        stream: bool = True,
        **options: Any,
    ) -> None:
        if reserved := RESERVED & options.keys():
            raise UsageError(f"{sorted(reserved)} cannot be options: they belong to the request")
        if client is not None and host is not None:
            raise UsageError("host belongs to the client: give either a client or a host")
        self.name = model
        self._own = client is None
        self._client = client or _connect(host)
        self._stream = stream
        self._options = options

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Ask once. Closing the iterator closes the connection. Raises: ModelError; AbortError."""
        signal.raise_if_aborted()
        answer = _OllamaAnswer()
        try:
            async with signal.stream(self._parts(request)) as parts:
                async for part in parts:
                    for chunk in answer.read(part):
                        yield chunk
            if answer.reason is None:
                raise broke_off(self.name)
        except SafepointError:
            raise
        except _failures() as error:
            if answer.reason is None:  # else the answer is whole: what breaks after its end is only the line
                raise _model_error(self.name, error) from error
        yield AnswerEnded(answer.ended())

    async def aclose(self) -> None:
        """Close the connections, unless the client was given."""
        if self._own:
            await self._client.close()  # type: ignore[no-untyped-call]  # the SDK's

    async def __aenter__(self) -> "OllamaModel":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _parts(self, request: ModelRequest) -> "AsyncGenerator[ChatResponse, None]":
        """The parts of an answer; of one that is not streamed, the only one. Asks when it is first read."""
        asking = self._client.chat(**self._body(request))
        if not self._stream:
            with _no_answer(self.name):
                yield await asking
            return
        parts: AsyncIterator[ChatResponse] = await asking
        assert isinstance(parts, AsyncGenerator), "the SDK's stream is a generator: closing it hangs up"
        try:
            with _no_answer(self.name):
                async for part in parts:
                    yield part
        finally:
            await parts.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": _messages(request.messages), "stream": self._stream}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        body |= self._options
        if request.max_tokens is not None:
            body["options"] = {**(body.get("options") or {}), "num_predict": request.max_tokens}
        return body


@contextmanager
def _no_answer(model: str) -> Iterator[None]:
    """What the SDK raises when a line is JSON but no part of an answer: it does not look before it takes it apart."""
    try:
        yield
    except (ValidationError, AttributeError, TypeError) as error:
        raise malformed(model, error) from error


class _OllamaAnswer:
    """Reads one answer: parts in, chunks out. Calls come whole and without ids, so they are given some."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._calls = 0

    def read(self, part: "ChatResponse") -> Iterator[Chunk]:
        """The chunks in one part."""
        if part.message.content:
            yield TextDelta(part.message.content)
        for call in part.message.tool_calls or ():
            arguments = json.dumps(dict(call.function.arguments), ensure_ascii=False)
            index, self._calls = self._calls, self._calls + 1
            yield CallDelta(index=index, call_id=f"call_{uuid4().hex}", name=call.function.name, arguments=arguments)
        if part.done:
            self.reason = part.done_reason or "stop"
            yield UsageReported(Usage(1, part.prompt_eval_count or 0, part.eval_count or 0))

    def ended(self) -> FinishReason:
        """Why the answer ended, in our words."""
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


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [converted for message in messages if (converted := _message(message)) is not None]


def _message(message: Message) -> dict[str, Any] | None:
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
            return {"role": "assistant", "content": text} if text else None  # nothing was said


def _tool(spec: ToolSpec) -> dict[str, Any]:
    parameters = dict(spec.parameters)
    parameters["properties"] = {name: _property(schema) for name, schema in parameters.get("properties", {}).items()}
    function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _property(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The SDK drops all of a parameter's schema but a few keys: what it would lose is put into the description."""
    if schema.keys() <= KEPT | NOT_MISSED:
        return dict(schema)
    whole = json.dumps({key: schema[key] for key in schema if key not in NOT_MISSED}, ensure_ascii=False)
    return {**schema, "description": f"{schema.get('description', '')} JSON schema: {whole}".strip()}


def _failures() -> tuple[type[Exception], ...]:
    from ollama import RequestError, ResponseError

    return (ResponseError, RequestError, *MALFORMED, *transport_errors())


def _model_error(model: str, error: Exception) -> ModelError:
    """Whatever the SDK raises, as what it means to the caller."""
    from ollama import RequestError, ResponseError

    match error:
        case ResponseError() if error.status_code < 0:  # inside of the answer: the request was good, the server broke
            return failed_within(model, error.error, "server_error")
        case ResponseError():
            return refused(model, error.error, error.status_code, _headers(error))
        case RequestError():
            return ModelError(f"{model}: {error}")
        case _ if isinstance(error, MALFORMED):
            return malformed(model, error)
        case _:
            return unreachable(model, error)


def _headers(error: "ResponseError") -> Mapping[str, str]:
    """The headers of the answer: the SDK drops them, but raises while it handles the error that has them."""
    response = getattr(error.__context__, "response", None)
    headers: Mapping[str, str] = getattr(response, "headers", {})
    return headers
