"""Anthropic: what is sent, what is its own, and a real inference server."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing

import anthropic
import pytest

from safepoint.abort import AbortSignal
from safepoint.agent import ModelError, UsageReported
from safepoint.errors import UsageError
from safepoint.messages import AssistantMessage, SystemMessage, ToolCall, ToolResult, UserMessage
from safepoint.models.anthropic import AnthropicModel
from safepoint.run import Usage
from safepoint.testing import drain_ready_tasks
from tests.kit.providers import script
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.llama import Llama
from tests.kit.providers.script import Cut, End, Fails, Raw, Refusal
from tests.models.asking import ask, asking, calls_of, ending_of, first_text, text_of


@pytest.fixture
def server() -> Iterator[Anthropic]:
    with Anthropic() as running:
        yield running


def model_at(server: Anthropic | Llama, **options: object) -> AnthropicModel:
    return AnthropicModel("tiny", base_url=server.url, api_key="any", **options)  # type: ignore[arg-type]


async def test_a_conversation_is_sent_in_the_providers_format(server: Anthropic):
    server.will("ok")
    calls = tuple(ToolCall(call_id=call_id, name="search", arguments='{"query": "x"}') for call_id in ("c1", "c2"))
    async with model_at(server, stop_sequences=["END"]) as model:
        await ask(
            model,
            asking(
                SystemMessage(text="Be brief."),
                UserMessage(text="look"),
                AssistantMessage(text="I look", calls=calls),
                ToolResult(call_id="c1", name="search", content="found"),
                ToolResult(call_id="c2", name="search", content="", status="not_started"),
                UserMessage(text="go on"),
                SystemMessage(text="And polite."),
                UserMessage(text="please"),
                max_tokens=7,
            ),
        )
    body = server.exchanges[0].body
    assert body["system"] == "Be brief.\n\nAnd polite."
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "x"}},
                {"type": "tool_use", "id": "c2", "name": "search", "input": {"query": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": "This call was not started; it had no effect.",
                    "is_error": True,
                },
                {"type": "text", "text": "go on"},
                {"type": "text", "text": "please"},
            ],
        },
    ]
    assert body["tools"][0]["input_schema"]["required"] == ["query"]
    assert (body["max_tokens"], body["stop_sequences"], body["stream"]) == (7, ["END"], True)


async def test_a_request_without_a_limit_gets_one(server: Anthropic):
    server.will("one", "two")
    await ask(model := model_at(server))
    await ask(other := model_at(server, max_tokens=99))
    await model.aclose()
    await other.aclose()
    assert [exchange.body["max_tokens"] for exchange in server.exchanges] == [4096, 99]


async def test_a_request_that_the_provider_refuses_comes_back_in_its_words(server: Anthropic):
    async with model_at(server) as model:
        with pytest.raises(ModelError, match="at least one message is required") as caught:
            await ask(model, asking(" "))
    assert (caught.value.status, caught.value.retryable) == (400, False)


async def test_usage_is_reported_at_the_beginning_and_at_the_end(server: Anthropic):
    server.will("one two three")
    async with model_at(server) as model:
        reports = [chunk.usage for chunk in await ask(model) if isinstance(chunk, UsageReported)]
    assert reports == [Usage(1, 10, 0), Usage(1, 10, 3)]


async def test_tokens_read_from_the_cache_are_counted(server: Anthropic):
    start = Raw(
        b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 1,'
        b' "output_tokens": 0, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 300}}}\n\n'
    )
    server.will([start, "Hello"])
    async with model_at(server) as model:
        reports = [chunk.usage for chunk in await ask(model) if isinstance(chunk, UsageReported)]
    assert reports[1:] == [Usage(1, 321, 0), Usage(1, 321, 1)]


async def test_text_between_calls_keeps_the_calls_apart(server: Anthropic):
    one, two = script.ToolCall("a", {"n": 1}, id="c1"), script.ToolCall("b", {}, id="c2")
    server.will(["first", one, "then", two])
    async with model_at(server) as model:
        chunks = await ask(model)
    assert calls_of(chunks) == [("c1", "a", {"n": 1}), ("c2", "b", {})]
    assert text_of(chunks) == "firstthen"


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("something_new", "stop"),
    ],
)
async def test_every_stop_reason_has_a_meaning(server: Anthropic, said: str, means: str):
    server.will(["Hello", End(said)])
    async with model_at(server) as model:
        assert ending_of(await ask(model)) == means


async def test_thinking_is_not_text(server: Anthropic):
    delta = b'{"type": "content_block_delta", "index": 9, "delta": {"type": "thinking_delta", "thinking": "hm"}}'
    server.will([Raw(b"event: content_block_delta\ndata: " + delta + b"\n\n"), "Hello"])
    async with model_at(server) as model:
        assert text_of(await ask(model)) == "Hello"


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [("overloaded_error", True), ("api_error", True), ("rate_limit_error", True), ("invalid_request_error", False)],
)
async def test_an_error_event_is_judged_by_its_kind(server: Anthropic, kind: str, retryable: bool):
    server.will(["Once", Fails("oh no", type=kind)])
    async with model_at(server) as model:
        with pytest.raises(ModelError, match="tiny: oh no") as caught:
            await ask(model)
    assert (caught.value.status, caught.value.retryable) == (None, retryable)


async def test_a_line_that_breaks_after_the_stop_reason_breaks_nothing(server: Anthropic):
    delta = b'{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}'
    server.will(["Hello", Raw(b"event: message_delta\ndata: " + delta + b"\n\n"), Cut()])
    async with model_at(server) as model:
        assert ending_of(await ask(model)) == "stop"


@pytest.mark.parametrize("body", [b"<html>", b'{"content": null}', b'{"content": [5]}', b"5"])
async def test_a_document_that_is_no_answer_is_malformed(server: Anthropic, body: bytes):
    server.will([Raw(body)])
    async with model_at(server, stream=False) as model:
        with pytest.raises(ModelError, match="malformed"):
            await ask(model)


async def test_a_given_client_makes_one_attempt_and_stays_open(server: Anthropic):
    server.will(Refusal(500), "Hello")
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=5) as client:
        async with AnthropicModel("tiny", client=client) as model:
            with pytest.raises(ModelError):
                await ask(model)
            assert len(server.exchanges) == 1
        assert not client.is_closed()
        assert text_of(await ask(AnthropicModel("tiny", client=client))) == "Hello"


def test_a_client_and_an_address_together_are_a_mistake():
    client = anthropic.AsyncAnthropic(api_key="any")
    with pytest.raises(UsageError, match="either a client"):
        AnthropicModel("tiny", client=client, api_key="other")


@pytest.mark.parametrize("option", ["messages", "tools", "system", "max_retries"])
def test_what_belongs_to_the_request_is_no_option(option: str):
    with pytest.raises(UsageError, match=option):
        AnthropicModel("tiny", api_key="any", **{option: 1})  # type: ignore[arg-type]


def test_a_missing_sdk_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ImportError, match=r'pip install "safepoint\[anthropic\]"'):
        AnthropicModel("tiny")


async def test_a_real_server_answers_and_is_idle_soon_after_the_iterator_is_closed(llama: Llama):
    async with model_at(llama) as model:
        chunks = await ask(model, asking("tell me", tools=(), max_tokens=20))
        assert len(text_of(chunks).split()) == 20
        assert ending_of(chunks) == "length"
        request = asking("tell me", tools=(), max_tokens=30_000)
        async with aclosing(model.stream(request, signal=AbortSignal.never())) as going:
            await first_text(going)
            assert llama.wait_busy(5) is not None
        assert await asyncio.to_thread(llama.wait_idle, 1.0) is not None
        await drain_ready_tasks()
