"""OpenAI and servers like it: what is sent, what odd servers answer, and a real inference server."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal
from safepoint.agent import ModelError, TextDelta, UsageReported
from safepoint.errors import UsageError
from safepoint.messages import AssistantMessage, SystemMessage, ToolCall, ToolResult, UserMessage
from safepoint.models.openai import OpenAIModel
from safepoint.run import Context, stream
from safepoint.testing import drain_ready_tasks
from tests.kit.providers.llama import Llama
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Cut, End, Fails, Raw, Refusal, Silence
from tests.kit.providers.wire import Answering, Exchange, WireServer
from tests.models.asking import ask, asking, calls_of, ending_of, first_text, text_of, usage_of

IDLE_SECONDS = 1.0


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        yield server


def model_at(server: Provider | Llama, **options: Any) -> OpenAIModel:
    return OpenAIModel("tiny", base_url=server.base_url, api_key="any", **options)


def event(delta: dict[str, Any], finish_reason: str | None = None) -> Raw:
    """One event of a stream, as some server may write it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return Raw(b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n")


def piece(index: int | None, arguments: object, name: str | None = None, call_id: str | None = None) -> Raw:
    """One piece of a call; what is None is left out."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    call: dict[str, Any] = {"function": function} | ({} if index is None else {"index": index})
    return event({"tool_calls": [call if call_id is None else {**call, "id": call_id}]})


# What is sent


async def test_a_conversation_is_sent_in_the_providers_format(provider: Provider):
    provider.will("ok")
    call = ToolCall(call_id="call-0001", name="search", arguments='{"query":"x"}')
    async with model_at(provider, temperature=0) as model:
        await ask(
            model,
            asking(
                SystemMessage(text="Be brief."),
                UserMessage(text="look"),
                AssistantMessage(calls=(call,)),
                ToolResult(call_id="call-0001", name="search", content="no answer", status="interrupted"),
                AssistantMessage(text="I was", interrupted=True),
                UserMessage(text="go on"),
                max_tokens=7,
            ),
        )
    function = {"name": "search", "arguments": '{"query":"x"}'}
    interrupted = "This call was interrupted before it had finished; it may have had an effect.\nno answer"
    assert provider.exchanges[0].body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call-0001", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call-0001", "content": interrupted},
            {"role": "assistant", "content": "I was [interrupted]"},
            {"role": "user", "content": "go on"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "search",
                    "description": "Look something up.",
                    "parameters": {
                        "type": "object",
                        "properties": {"query": {"type": "string"}},
                        "required": ["query"],
                    },
                },
            }
        ],
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }


async def test_openai_itself_is_told_the_limit_by_its_new_name():
    sent = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append((request.url.host, json.loads(request.content)))
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return httpx2.Response(200, json={"id": "x", "choices": [choice]})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = openai.AsyncOpenAI(api_key="any", http_client=http, base_url="https://api.openai.com/v1")
        await ask(OpenAIModel("tiny", client=client, stream=False), asking(tools=(), max_tokens=7))
    [(host, body)] = sent
    assert host == "api.openai.com"
    assert body["max_completion_tokens"] == 7
    assert "max_tokens" not in body
    assert "tools" not in body


async def test_a_request_that_the_provider_refuses_comes_back_in_its_words(provider: Provider):
    async with model_at(provider) as model:
        with pytest.raises(ModelError, match="empty array") as caught:
            await ask(model, asking(" "))
    assert (caught.value.status, caught.value.retryable) == (400, False)


# What servers answer


async def test_calls_of_a_server_that_repeats_their_id_and_name(provider: Provider):
    pieces = [piece(0, part, "search", "c1") for part in ('{"query"', ': "x"}')]
    provider.will([*pieces, piece(1, "{}", "noop", "c2")])
    async with model_at(provider) as model:
        assert calls_of(await ask(model)) == [("c1", "search", {"query": "x"}), ("c2", "noop", {})]


async def test_calls_of_a_server_that_counts_all_of_them_as_the_first(provider: Provider):
    provider.will([piece(0, '{"n": 1}', "a", "c1"), piece(0, '{"n": 2}', "b", "c2")])
    async with model_at(provider) as model:
        assert calls_of(await ask(model)) == [("c1", "a", {"n": 1}), ("c2", "b", {"n": 2})]


@pytest.mark.parametrize("indexes", [(0, 1), (None, None)])
async def test_calls_of_a_server_without_ids_get_some(provider: Provider, indexes: tuple[int | None, int | None]):
    provider.will([piece(indexes[0], '{"n": 1}', "a"), piece(indexes[1], '{"n": 2}', "a", "")])
    async with model_at(provider) as model:
        (first, *called), (second, *other) = calls_of(await ask(model))
    assert called == ["a", {"n": 1}]
    assert other == ["a", {"n": 2}]
    assert first
    assert second
    assert first != second


async def test_calls_of_a_server_that_gives_two_of_them_one_id(provider: Provider):
    provider.will([piece(0, "{}", "a", "call_0"), piece(1, "{}", "b", "call_0")])
    async with model_at(provider) as model:
        (first, *_), (second, *_) = calls_of(await ask(model))
    assert first == "call_0"
    assert second not in ("", "call_0")


async def test_arguments_that_are_an_object_or_missing_are_written_as_json(provider: Provider):
    provider.will([piece(0, {"n": 1}, "a", "c1"), piece(1, None, "b", "c2"), piece(1, "")])
    async with model_at(provider) as model:
        assert calls_of(await ask(model)) == [("c1", "a", {"n": 1}), ("c2", "b", {})]


async def test_a_finish_reason_said_twice_ends_the_answer_once(provider: Provider):
    provider.will([piece(0, "", "a", "c1"), event({}, "tool_calls"), End("tool_calls")])
    async with model_at(provider) as model:
        chunks = await ask(model)
    assert calls_of(chunks) == [("c1", "a", {})]
    assert ending_of(chunks) == "tool_calls"


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("function_call", "tool_calls"),
        ("eos_token", "stop"),
    ],
)
async def test_every_finish_reason_has_a_meaning(provider: Provider, said: str, means: str):
    provider.will(["Hello", End(said)])
    async with model_at(provider) as model:
        assert ending_of(await ask(model)) == means


async def test_stop_after_a_call_means_the_call_and_a_cut_one_stays_cut(provider: Provider):
    provider.will([piece(0, "{}", "a", "c1"), End("stop")], [piece(0, '{"n"', "a", "c1"), End("length")])
    async with model_at(provider) as model:
        assert ending_of(await ask(model)) == "tool_calls"
        assert ending_of(await ask(model)) == "length"


async def test_a_refusal_of_the_model_is_text(provider: Provider):
    provider.will([event({"refusal": "I will"}), event({"refusal": " not."})])
    async with model_at(provider) as model:
        assert text_of(await ask(model)) == "I will not."


async def test_events_without_choices_or_with_an_empty_delta_say_nothing(provider: Provider):
    ping = Raw(b': ping\n\ndata: {"id": "x", "choices": []}\n\n')
    empty = Raw(b'data: {"id": "x", "choices": [{"index": 0, "delta": null, "finish_reason": null}]}\n\n')
    provider.will([ping, empty, "Hello"])
    async with model_at(provider, stream_options=None) as model:
        chunks = await ask(model)
    assert text_of(chunks) == "Hello"
    assert not any(isinstance(chunk, UsageReported) for chunk in chunks), "none was reported, so none is made up"


@pytest.mark.parametrize(
    ("fails", "status", "retryable"),
    [
        (Fails("x", code=503), 503, True),
        (Fails("x", code=400), 400, False),
        (Fails("x", type="tokens", code="rate_limit_exceeded"), None, True),
        (Fails("x", type="invalid_request_error", code="context_length_exceeded"), None, False),
        (Fails("x", type=None), None, False),
    ],
)
async def test_an_error_event_is_judged_by_its_code(provider: Provider, fails: Fails, status: int, retryable: bool):
    provider.will(["Once", fails])
    async with model_at(provider) as model:
        with pytest.raises(ModelError, match="tiny: x") as caught:
            await ask(model)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)


async def test_an_answer_that_the_provider_ends_with_an_error_is_none(provider: Provider):
    provider.will(["Once", End("error")])
    async with model_at(provider) as model:
        with pytest.raises(ModelError, match="ended the answer with an error") as caught:
            await ask(model)
    assert caught.value.retryable


async def test_a_line_that_breaks_after_the_finish_reason_breaks_nothing(provider: Provider):
    provider.will(["Hello", event({}, "stop"), Cut()])
    async with model_at(provider) as model:
        chunks = await ask(model)
    assert text_of(chunks) == "Hello"
    assert ending_of(chunks) == "stop"


async def test_a_server_that_sends_a_document_instead_of_a_stream_is_told_of(provider: Provider):
    async def play(exchange: Exchange, answering: Answering) -> None:
        answering.whole(200, {"id": "x", "choices": []})

    with WireServer(play) as server:
        async with OpenAIModel("tiny", base_url=server.url, api_key="any") as model:
            with pytest.raises(ModelError, match="stream=False"):
                await ask(model)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"choices": null}', b'{"choices": [5]}', b"5"])
async def test_a_document_that_is_no_answer_is_malformed(provider: Provider, body: bytes):
    provider.will([Raw(body)])
    async with model_at(provider, stream=False) as model:
        with pytest.raises(ModelError, match="malformed"):
            await ask(model)


async def test_a_document_without_a_finish_reason_broke_off(provider: Provider):
    provider.will(["Hello", End(None)])
    async with model_at(provider, stream=False) as model:
        with pytest.raises(ModelError, match="broke off"):
            await ask(model)


async def test_a_line_that_breaks_inside_of_an_errors_body_is_a_failed_connection():
    async def play(exchange: Exchange, answering: Answering) -> None:
        answering.head(500, headers={"content-type": "application/json"}, length=1000)
        answering.raw(b'{"error": ')
        answering.cut()

    with WireServer(play) as server:
        async with OpenAIModel("tiny", base_url=server.url, api_key="any") as model:
            with pytest.raises(ModelError, match="the connection failed") as caught:
                await ask(model)
    assert caught.value.retryable


async def test_silence_beyond_the_timeout_is_worth_another_attempt(provider: Provider):
    provider.will([Silence()])
    async with model_at(provider, timeout=0.1) as model:
        with pytest.raises(ModelError, match="the connection failed") as caught:
            await ask(model)
    assert caught.value.retryable


# Clients


async def test_a_given_client_makes_one_attempt_and_stays_open(provider: Provider):
    provider.will(Refusal(500), "Hello")
    async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", max_retries=5) as client:
        async with OpenAIModel("tiny", client=client) as model:
            with pytest.raises(ModelError):
                await ask(model)
            assert len(provider.exchanges) == 1
        assert not client.is_closed()
        assert text_of(await ask(OpenAIModel("tiny", client=client))) == "Hello"


async def test_its_own_client_is_closed_with_it(provider: Provider):
    provider.will("Hello")
    model = model_at(provider)
    await ask(model)
    await model.aclose()
    assert provider.exchanges[0].closed.wait(5)


def test_a_client_and_an_address_together_are_a_mistake():
    client = openai.AsyncOpenAI(api_key="any")
    with pytest.raises(UsageError, match="either a client"):
        OpenAIModel("tiny", client=client, base_url="http://127.0.0.1:1")


@pytest.mark.parametrize("option", ["messages", "tools", "n", "max_retries"])
def test_what_belongs_to_the_request_is_no_option(option: str):
    with pytest.raises(UsageError, match=option):
        OpenAIModel("tiny", api_key="any", **{option: 1})  # type: ignore[arg-type]


def test_a_missing_key_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="api_key"):
        OpenAIModel("tiny")


def test_a_missing_sdk_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r'pip install "safepoint\[openai\]"'):
        OpenAIModel("tiny")


# A real inference server


@asynccontextmanager
async def generating(llama: Llama, model: OpenAIModel, signal: AbortSignal) -> AsyncIterator[AsyncIterator[Any]]:
    """An answer that would go on for a minute, begun."""
    async with aclosing(model.stream(asking("tell me", tools=(), max_tokens=30_000), signal=signal)) as chunks:
        await first_text(chunks)
        assert llama.wait_busy(5) is not None
        yield chunks


async def quiet(llama: Llama) -> None:
    """Nothing generates within a second, and nothing begins after."""
    took = await asyncio.to_thread(llama.wait_idle, IDLE_SECONDS)
    assert took is not None, "the server generates for nobody"
    read, written = llama.read(), llama.written()
    await asyncio.sleep(0.3)  # real time: another process could still get a request
    assert (llama.busy(), llama.read(), llama.written()) == (0, read, written)


async def test_a_real_server_answers_whole(llama: Llama):
    async with model_at(llama) as model:
        chunks = await ask(model, asking("tell me", tools=(), max_tokens=20))
    assert len(text_of(chunks).split()) == 20
    assert text_of(chunks).isprintable()
    assert ending_of(chunks) == "length"
    assert usage_of(chunks).output_tokens == 20
    assert usage_of(chunks).input_tokens > 0


async def test_a_real_server_accepts_a_stopped_conversation(llama: Llama):
    history = (
        UserMessage(text="tell me"),
        AssistantMessage(text="Once upon a", interrupted=True),
        UserMessage(text="something else"),
    )
    async with model_at(llama, stream=False) as model:
        assert text_of(await ask(model, asking(*history, tools=(), max_tokens=5)))


async def test_a_real_server_is_idle_soon_after_the_iterator_is_closed(llama: Llama):
    async with model_at(llama) as model:
        async with generating(llama, model, AbortSignal.never()):
            pass
        await quiet(llama)
        await drain_ready_tasks()


async def test_a_real_server_is_idle_soon_after_an_abort(llama: Llama):
    controller = AbortController()
    async with model_at(llama) as model:
        ctx = Context(signal=controller.signal)
        source = model.stream(asking("tell me", tools=(), max_tokens=30_000), signal=ctx.signal)
        words = 0
        with pytest.raises(AbortError):
            async with stream(ctx, source, name="model") as chunks:
                async for chunk in chunks:
                    words += isinstance(chunk, TextDelta)
                    if words == 20:
                        controller.abort("enough")
        assert words == 20, "nothing comes after the abort"
        await quiet(llama)
        await drain_ready_tasks()


async def test_a_real_server_writes_nothing_after_an_abort_before_the_first_token(llama: Llama):
    """A long prompt keeps it busy before it says anything. It reads that to its end, as it does for everybody."""
    controller = AbortController()
    async with model_at(llama) as model, asyncio.TaskGroup() as group:
        request = asking("word " * 800, tools=(), max_tokens=30_000)
        waiting = group.create_task(aborted(model, request, controller.signal))
        assert await asyncio.to_thread(llama.wait_busy, 5) is not None
        written = llama.written()
        controller.abort()
        since = time.monotonic()
        assert await waiting == 0
        assert time.monotonic() - since < IDLE_SECONDS
        assert await asyncio.to_thread(llama.wait_idle, 20) is not None
        assert llama.written() - written < 100
        await quiet(llama)


async def aborted(model: OpenAIModel, request: Any, signal: AbortSignal) -> int:
    """How many words came before the abort."""
    words = 0
    with pytest.raises(AbortError):
        async for chunk in model.stream(request, signal=signal):
            words += isinstance(chunk, TextDelta)
    return words


async def test_one_stopped_stream_leaves_the_others_alone(llama: Llama):
    async with model_at(llama) as model:
        async with generating(llama, model, AbortSignal.never()) as going:
            controller = AbortController()
            async with generating(llama, model, controller.signal) as stopped:
                controller.abort()
                with pytest.raises(AbortError):
                    await anext(stopped)
            for number in range(200):  # the server may need some tokens of the other stream to notice the closed one
                await anext(going)
                if number >= 50 and llama.busy() == 1:
                    break
            assert llama.busy() == 1
        await quiet(llama)
        await drain_ready_tasks()


async def test_mistral_is_not_sent_an_option_that_it_refuses(provider: Provider):
    provider.will("one", "two")
    async with model_at(provider, provider="mistral") as model:
        await ask(model)
    async with model_at(provider) as model:
        await ask(model)
    assert ["stream_options" in exchange.body for exchange in provider.exchanges] == [False, True]
