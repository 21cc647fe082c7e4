"""Owns requests to OpenAI, and to every server with the same Chat Completions API, through the official `openai` SDK.

Knows nothing of tools and the agent's loop; `sdk.py` owns what happens around the request.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from ..agent.arguments import arguments_text
from ..agent.history import repair
from ..agent.model import CallDelta, Chunk, ModelError, ModelRequest, TextDelta, ToolSpec, UsageReported
from ..agent.model_text import CUT_OFF_CALL, assistant_text, result_text
from ..agent.provider_rules import Provider
from ..errors import MissingExtra, UsageError
from ..messages import AssistantMessage, FinishReason, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from ..receipt import Usage
from .connection import HttpResponse, ResponseEvents
from .failure import error_details, failed_mid_answer, malformed, refused, unreachable
from .sdk import SdkModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# A part of an event, as it came: fields may be missing, and of other types than documented.
Json: TypeAlias = dict[str, Any]

__all__ = ["OpenAIModel"]

OFFICIAL_HOST = "api.openai.com"
# The hosts of providers whose rules are known. All other servers may have any model with any chat template.
HOSTS: dict[str, Provider] = {OFFICIAL_HOST: "openai", "openai.azure.com": "openai", "api.mistral.ai": "mistral"}
REASONS: dict[str, FinishReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


class OpenAIModel(SdkModel["AsyncOpenAI", object]):
    """A model of OpenAI, or of any compatible server: `OpenAIModel("gpt-…")`."""

    reserved = frozenset({"messages", "tools", "n", "max_retries"})

    def __init__(
        self,
        model: str,
        *,
        client: "AsyncOpenAI | None" = None,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: Provider | None = None,
        stream: bool = True,
        **options: object,
    ) -> None:
        """Make a model.

        Args:
            model: The name of the model.
            client: An `AsyncOpenAI` to use, which the caller closes. Its own retries are switched off.
            base_url: The URL of a compatible server.
            api_key: The key; by default the SDK reads it from the environment.
            provider: Whose rules the conversation is made to fit, as in `repair`. By default `openai` and `mistral` at
                their own addresses, and `strict-alternation` everywhere else.
            stream: False for servers that do not stream: the answer then comes in one piece.
            **options: Sent with every request: `temperature=0`, `timeout=30`, `tool_choice="required"`, …

        Raises:
            UsageError: An option belongs to the request or to `Retry`, or to a client that was given.
            MissingExtra: The `openai` package is not installed.
        """
        settings = {"base_url": base_url, "api_key": api_key}
        super().__init__(model, client, settings=settings, stream=stream, options=options)
        self._provider: Provider | None = provider

    def _connect(self, settings: Mapping[str, Any]) -> "AsyncOpenAI":
        try:
            from openai import AsyncOpenAI, OpenAIError
        except ImportError as error:
            raise MissingExtra("OpenAIModel", "openai", error) from error
        try:
            client = AsyncOpenAI(**settings, max_retries=0)
        except OpenAIError as error:
            raise UsageError(f"{error} (a server that needs no key takes any text as api_key)") from error
        client.chat.completions  # noqa: B018  # imports modules, which would block the loop later
        return client

    def _without_retries(self, client: "AsyncOpenAI") -> "AsyncOpenAI":
        return client.with_options(max_retries=0)

    async def _close(self, client: "AsyncOpenAI") -> None:
        await client.close()

    def _body(self, request: ModelRequest) -> dict[str, object]:
        provider = self._provider or _provider_of(self._host)
        body: dict[str, object] = {
            "model": self.name,
            "messages": _messages(request.messages, provider),
            "stream": self._stream,
        }
        if self._stream and provider != "mistral":  # Mistral refuses the option, and reports the usage without it
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        if request.max_tokens is not None:
            # OpenAI's newer models refuse the old name; compatible servers may know only the old one.
            name = "max_completion_tokens" if self._host == OFFICIAL_HOST else "max_tokens"
            body[name] = request.max_tokens
        return body | self._options

    @property
    def _host(self) -> str:
        return self._client().base_url.host

    def _events(self, client: "AsyncOpenAI", body: dict[str, Any]) -> ResponseEvents:
        async def send() -> HttpResponse:
            response: HttpResponse = (await client.chat.completions.with_raw_response.create(**body)).http_response
            return response

        return ResponseEvents(send, whole=not self._stream)

    def _reader(self) -> "_OpenAIAnswer":
        return _OpenAIAnswer(self.name)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        import openai

        return (openai.OpenAIError,)

    def _explained(self, error: Exception) -> ModelError:
        import openai

        match error:
            case openai.APIStatusError():
                body = error.body
                detail = body.get("message") if isinstance(body, dict) else None
                message, headers = str(detail or error.message), error.response.headers
                return refused(self.name, message, error.status_code, headers, error.type, error.code)
            case openai.APIConnectionError():
                return unreachable(self.name, error)
            case openai.APIResponseValidationError():
                return malformed(self.name, error)
            case _:
                return ModelError(f"{self.name}: {error}")


class _OpenAIAnswer:
    """Translates the events of one answer into chunks.

    Many servers are "compatible", and few are exactly so: the differences are handled here.
    """

    def __init__(self, model: str) -> None:
        self._reason: str | None = None
        self._model = model
        self._refused = False
        self._call_ids: list[str] = []
        self._indexes: dict[int | None, int] = {}  # our number of a call by the number that the server gave it
        self._without_arguments: dict[int, None] = {}  # calls whose arguments have not come yet, in order

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended. Some servers send "stop" after calls, some send words of their own."""
        if self._reason is None:
            return None
        usual: FinishReason = "refusal" if self._refused else "tool_calls" if self._call_ids else "stop"
        return REASONS.get(self._reason, usual)

    def read(self, event: object) -> Iterator[Chunk]:
        """Yield the chunks in one event of a stream, or in a whole answer."""
        if not isinstance(event, dict):
            raise malformed(self._model, f"{event!r}"[:200])
        if event.get("error"):
            raise failed_mid_answer(self._model, *error_details(event["error"]))
        try:
            for choice in event["choices"]:
                yield from self._choice(choice)
            if usage := event.get("usage"):
                yield UsageReported(Usage(1, usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0))
        except (AttributeError, TypeError, KeyError) as error:
            raise malformed(self._model, f"{event!r}"[:200]) from error

    def _choice(self, choice: Json) -> Iterator[Chunk]:
        part = choice.get("delta") or choice.get("message")
        if part is not None:
            self._refused = self._refused or bool(part.get("refusal"))
            if text := (part.get("content") or "") + (part.get("refusal") or ""):
                yield TextDelta(text)
            for piece in part.get("tool_calls") or ():
                yield self._call(piece)
        if choice.get("finish_reason"):
            self._reason = choice["finish_reason"]
            # A call without arguments is an empty object; some servers write it as nothing. In an answer that was cut
            # off, the arguments are missing instead.
            if self.finish_reason not in CUT_OFF_CALL:
                yield from (CallDelta(index=index, arguments="{}") for index in self._without_arguments)
            self._without_arguments.clear()
        if self._reason == "error":
            raise ModelError(f"{self._model}: the provider ended the answer with an error", retryable=True)

    def _call(self, piece: Json) -> CallDelta:
        """Return one piece of a call, with the id and the name only in the first piece of each call.

        Some servers repeat the id and the name, some leave them out, and some number all calls 0. Some send the
        arguments as an object instead of its text.
        """
        position: int | None = piece.get("index")
        call_id, name = piece.get("id"), piece["function"].get("name")
        arguments = piece["function"].get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        index = self._indexes.get(position)
        if index is not None:
            is_next_call = call_id and call_id != self._call_ids[index]
            if not is_next_call and not (position is None and name):
                if arguments:
                    self._without_arguments.pop(index, None)
                return CallDelta(index=index, arguments=arguments)
        index = self._indexes[position] = len(self._call_ids)
        if not arguments:
            self._without_arguments[index] = None
        call_id = call_id if call_id and call_id not in self._call_ids else f"call_{uuid4().hex}"
        self._call_ids.append(call_id)
        return CallDelta(index=index, call_id=call_id, name=name or "", arguments=arguments)


def _messages(messages: tuple[Message, ...], provider: Provider) -> list[dict[str, object]]:
    repaired = repair(messages, provider)
    return [converted for message in repaired if (converted := _message(message)) is not None]


def _provider_of(host: str) -> Provider:
    for name, provider in HOSTS.items():
        if host == name or host.endswith(f".{name}"):
            return provider
    return "strict-alternation"


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
