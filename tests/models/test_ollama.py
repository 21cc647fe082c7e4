"""Ollama: what is sent, and what is its own."""

import sys
from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from pydantic import ValidationError

from safepoint.agent import CallDelta, ModelError, ToolSpec
from safepoint.errors import UsageError
from safepoint.messages import AssistantMessage, SystemMessage, ToolCall, ToolResult, UserMessage
from safepoint.models.ollama import OllamaModel
from tests.kit.providers import script
from tests.kit.providers.ollama import Ollama
from tests.kit.providers.script import End, Raw
from tests.models.asking import ask, asking, calls_of, ending_of, text_of


@pytest.fixture
def server() -> Iterator[Ollama]:
    with Ollama() as running:
        yield running


async def test_a_conversation_is_sent_in_the_servers_format(server: Ollama):
    server.will("ok")
    call = ToolCall(call_id="c1", name="search", arguments='{"query": "x"}')
    async with OllamaModel("tiny", host=server.url, options={"temperature": 0}, keep_alive="5m") as model:
        await ask(
            model,
            asking(
                SystemMessage(text="Be brief."),
                UserMessage(text="look"),
                AssistantMessage(calls=(call,)),
                ToolResult(call_id="c1", name="search", content="", status="unknown"),
                AssistantMessage(text="I was", interrupted=True),
                UserMessage(text="go on"),
                max_tokens=7,
            ),
        )
    body = server.exchanges[0].body
    unknown = "It is not known whether this call finished, and whether it had an effect."
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "look"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "search", "arguments": {"query": "x"}}}]},
        {"role": "tool", "tool_name": "search", "content": unknown},
        {"role": "assistant", "content": "I was [interrupted]"},
        {"role": "user", "content": "go on"},
    ]
    assert (body["model"], body["stream"], body["keep_alive"]) == ("tiny", True, "5m")
    assert body["options"] == {"temperature": 0, "num_predict": 7}
    [tool] = body["tools"]
    assert tool["function"]["name"] == "search"
    assert tool["function"]["parameters"]["properties"] == {"query": {"type": "string"}}


async def test_what_the_sdk_would_drop_of_a_schema_is_in_the_description(server: Ollama):
    server.will("ok")
    plain = {"type": "string", "description": "a word", "title": "Word", "default": "x"}
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "a place", "title": "Place"}
    properties = {"word": plain, "place": optional, "point": {"$ref": "#/$defs/Point"}}
    schema = {"type": "object", "properties": properties, "$defs": {"Point": {"type": "object"}}}
    tools = [
        ToolSpec(name="go", description="Go.", parameters=schema),
        ToolSpec(name="no", description="", parameters={}),
    ]
    async with OllamaModel("tiny", host=server.url) as model:
        await ask(model, asking(tools=tools))
    sent = server.exchanges[0].body["tools"][0]["function"]["parameters"]
    assert sent["properties"] == {
        "word": {"type": "string", "description": "a word"},
        "place": {"description": 'a place JSON schema: {"anyOf": [{"type": "string"}, {"type": "null"}]}'},
        "point": {"description": 'JSON schema: {"$ref": "#/$defs/Point"}'},
    }
    assert sent["$defs"] == {"Point": {"type": "object"}}


async def test_calls_come_whole_and_get_ids_that_no_other_call_has(server: Ollama):
    server.will(*[[script.ToolCall("search", {"n": n}), script.ToolCall("search", {"n": -n})] for n in (1, 2)])
    async with OllamaModel("tiny", host=server.url) as model:
        answers = [await ask(model), await ask(model)]
    calls = [call for answer in answers for call in calls_of(answer)]
    assert [arguments for _, _, arguments in calls] == [{"n": 1}, {"n": -1}, {"n": 2}, {"n": -2}]
    assert len({call_id for call_id, _, _ in calls}) == 4
    assert [chunk.index for chunk in answers[0] if isinstance(chunk, CallDelta)] == [0, 1]
    assert ending_of(answers[0]) == "tool_calls"


async def test_an_answer_without_a_reason_has_just_ended(server: Ollama):
    server.will([Raw(b'{"message": {"role": "assistant", "content": "Hi"}, "done": true}\n'), End(None)])
    async with OllamaModel("tiny", host=server.url) as model:
        chunks = await ask(model)
    assert text_of(chunks) == "Hi"
    assert ending_of(chunks) == "stop"


@pytest.mark.parametrize("line", [b"5\n", b'["x"]\n', b'{"message": {}}\n', b'{"done": true}\n'])
async def test_lines_that_are_no_part_of_an_answer_are_malformed(server: Ollama, line: bytes):
    server.will([Raw(line)], [Raw(line)])
    async with (
        OllamaModel("tiny", host=server.url) as model,
        OllamaModel("tiny", host=server.url, stream=False) as whole,
    ):
        for asked in (model, whole):
            with pytest.raises(ModelError, match="malformed"):
                await ask(asked)


async def test_a_request_that_the_sdk_refuses_is_the_callers_mistake(server: Ollama):
    async with OllamaModel("tiny", host=server.url, keep_alive=[]) as model:
        with pytest.raises(ValidationError, match="keep_alive"):
            await ask(model)
    assert server.connections == 0


async def test_a_given_client_stays_open(server: Ollama):
    server.will("one", "two")
    client: Any = ollama.AsyncClient(server.url)
    async with OllamaModel("tiny", client=client) as model:
        assert text_of(await ask(model)) == "one"
    assert text_of(await ask(OllamaModel("tiny", client=client))) == "two"
    await client.close()


def test_a_client_and_a_host_together_are_a_mistake():
    with pytest.raises(UsageError, match="either a client"):
        OllamaModel("tiny", client=ollama.AsyncClient(), host="http://127.0.0.1:1")


@pytest.mark.parametrize("option", ["messages", "tools"])
def test_what_belongs_to_the_request_is_no_option(option: str):
    with pytest.raises(UsageError, match=option):
        OllamaModel("tiny", **{option: 1})  # type: ignore[arg-type]


def test_a_missing_sdk_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ollama", None)
    with pytest.raises(ImportError, match=r'pip install "safepoint\[ollama\]"'):
        OllamaModel("tiny")
