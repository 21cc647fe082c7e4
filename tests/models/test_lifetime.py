"""When an answer is over although its connection is not, and a model that outlives its event loop."""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from safepoint.agent import ModelError
from safepoint.models import AnthropicModel, OllamaModel, OpenAIModel
from tests.kit.providers import script
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.ollama import Ollama
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Raw, ScriptedServer, Stall
from tests.kit.providers.wire import Answering, Exchange, WireServer
from tests.models.asking import ask, ending_of, text_of

MODELS: dict[str, tuple[type[ScriptedServer], Callable[..., Any]]] = {
    "openai": (Provider, lambda url, **o: OpenAIModel("tiny", base_url=f"{url}/v1", api_key="any", **o)),
    "anthropic": (Anthropic, lambda url, **o: AnthropicModel("tiny", base_url=url, api_key="any", **o)),
    "ollama": (Ollama, lambda url, **o: OllamaModel("tiny", host=url, **o)),
}
LAST_EVENTS = {
    "openai": b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n',
    "anthropic": b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}\n\n',
    "ollama": b'{"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop"}\n',
}
each_provider = pytest.mark.parametrize("kind", MODELS)


@pytest.fixture
def server(kind: str) -> Iterator[ScriptedServer]:
    with MODELS[kind][0]() as running:
        yield running


@each_provider
async def test_a_server_that_leaves_the_line_open_after_the_end_is_not_waited_for(kind: str, server: ScriptedServer):
    server.will(["Hello", Raw(LAST_EVENTS[kind]), Stall()])
    async with MODELS[kind][1](server.url) as model:
        since = time.monotonic()
        chunks = await ask(model)
        took = time.monotonic() - since
    assert (text_of(chunks), ending_of(chunks)) == ("Hello", "stop")
    assert took < 5


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("final", [True, False])
async def test_an_error_that_is_sent_as_a_plain_document_is_told(kind: str, final: bool):
    details = {"message": "your model is on holiday", "type": "invalid_request_error" if final else "server_error"}

    async def play(exchange: Exchange, answering: Answering) -> None:
        answering.head(headers={"content-type": "text/event-stream"})
        answering.chunk(json.dumps({"error": details}).encode())
        answering.end()

    with WireServer(play) as server:
        async with MODELS[kind][1](server.url) as model:
            with pytest.raises(ModelError, match="your model is on holiday") as caught:
                await ask(model)
    assert caught.value.retryable is not final


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the connection of a loop that is gone
@each_provider
def test_one_model_answers_in_one_event_loop_after_the_other(kind: str, server: ScriptedServer):
    server.always(["Hello"])
    model = MODELS[kind][1](server.url)

    async def once() -> str:
        text = text_of(await ask(model))
        await model.aclose()
        return text

    async def left_open() -> str:
        return text_of(await ask(model))

    assert [asyncio.run(once()), asyncio.run(once())] == ["Hello", "Hello"]
    assert [asyncio.run(left_open()), asyncio.run(once())] == ["Hello", "Hello"]
    gc.collect()  # the connection of the loop that is gone is warned of here, and not in a later test


async def test_ollama_has_a_limit_of_silence():
    with Ollama([script.Silence()]) as server:
        async with OllamaModel("tiny", host=server.url, timeout=0.1) as model:
            with pytest.raises(ModelError, match="the connection failed") as caught:
                await ask(model)
    assert caught.value.retryable
