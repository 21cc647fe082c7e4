"""Reasoning is streamed, and travels back to the provider that it came from, as it came, and to no other one."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from safepoint import Agent, Completed
from safepoint.agent import AgentResult, AgentRun, Model, repair, tool
from safepoint.events import ReasoningStreamed, TextStreamed
from safepoint.messages import AssistantMessage, Message, NativeData, ToolResult, message_from_json, message_to_json
from safepoint.models import AnthropicModel, OllamaModel, OpenAIModel
from safepoint.run import Outcome, Retry
from safepoint.testing import drain_ready_tasks
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.ollama import Ollama
from tests.kit.providers.openai import DeepSeek, Gemini, Provider
from tests.kit.providers.script import ScriptedServer, Stall, Thinks, ToolCall
from tests.models.asking import ask, asking

SERVERS: dict[str, Callable[[], ScriptedServer]] = {
    "anthropic": Anthropic,
    "deepseek": DeepSeek,
    "gemini": Gemini,
    "ollama": Ollama,
}
THINKING = {"type": "enabled", "budget_tokens": 1024}
THOUGHT = Thinks("I should look it up.", "signed")


@tool(effects="read")
def look(what: str = "") -> str:
    """Look something up."""
    return f"found {what}"


def model_at(kind: str, server: ScriptedServer, *, stream: bool = True, host: str = "127.0.0.1") -> Model:
    url = server.url.replace("127.0.0.1", host)
    match kind:
        case "anthropic":
            return AnthropicModel("any", base_url=url, api_key="any", stream=stream, thinking=THINKING)
        case "ollama":
            return OllamaModel("any", host=url, stream=stream)
        case "gemini":
            return OpenAIModel("any", base_url=f"{url}/v1", api_key="any", stream=stream, provider="gemini")
        case _:
            return OpenAIModel("any", base_url=f"{url}/v1", api_key="any", stream=stream)


def agent_at(kind: str, server: ScriptedServer, *, stream: bool = True, host: str = "127.0.0.1") -> Agent:
    return Agent(model_at(kind, server, stream=stream, host=host), tools=[look], retry=Retry(attempts=1))


@pytest.fixture(params=[*SERVERS])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(kind: str) -> Iterator[ScriptedServer]:
    with SERVERS[kind]() as running:
        yield running


async def close(agent: Agent) -> None:
    """Close the connections of the agent's model."""
    assert isinstance(agent.model, AnthropicModel | OllamaModel | OpenAIModel)
    await agent.model.aclose()
    await drain_ready_tasks()


async def ended(agent: Agent, prompt: Any, **options: Any) -> Outcome[AgentResult]:
    try:
        async with asyncio.timeout(10):
            return await agent.run(prompt, **options)
    finally:
        await close(agent)


async def finished(agent: Agent, prompt: Any = None, **options: Any) -> AgentResult:
    outcome = await ended(agent, prompt, **options)
    assert isinstance(outcome, Completed), outcome
    return outcome.value


def stored(messages: tuple[Message, ...]) -> list[Message]:
    """The messages, after they were in a store."""
    return [message_from_json(message_to_json(message)) for message in messages]


def sent(server: ScriptedServer) -> list[dict[str, Any]]:
    """The messages of the last request."""
    messages: list[dict[str, Any]] = server.exchanges[-1].body["messages"]
    return messages


def called(name: str = "look") -> ToolCall:
    return ToolCall(name, {"what": "owls"}, signature="signature-of-a-call")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_model_that_thinks_can_use_tools_and_is_asked_again(kind: str, server: ScriptedServer, stream: bool):
    server.will([THOUGHT, called()], [THOUGHT, called()], "It is an owl.", [THOUGHT, "Still."])
    agent = agent_at(kind, server, stream=stream)
    result = await finished(agent, "Who?")
    assert result.text == "It is an owl."
    again = await finished(agent, "Sure?", history=stored(result.messages))
    assert again.text == "Still."


async def test_each_provider_gets_its_reasoning_as_it_came(kind: str, server: ScriptedServer):
    server.will([THOUGHT, called()], "Done.")
    await finished(agent_at(kind, server), "Who?")
    answer = next(message for message in sent(server) if message["role"] == "assistant")
    match kind:
        case "anthropic":
            assert answer["content"][0] == {
                "type": "thinking",
                "thinking": "I should look it up.",
                "signature": "signed",
            }
        case "ollama":
            assert answer["thinking"] == "I should look it up."
        case _:
            assert answer["reasoning_content"] == "I should look it up."
    if kind == "gemini":
        assert answer["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "signature-of-a-call"}}


async def test_reasoning_is_streamed_as_events_and_is_no_part_of_the_text(kind: str, server: ScriptedServer):
    server.will([THOUGHT, "It is an owl."])
    agent = agent_at(kind, server)
    async with agent.run("Who?") as run:
        events = [event async for event in run]
        result = (await run).unwrap()
    await close(agent)
    assert "".join(e.text for e in events if isinstance(e, ReasoningStreamed)) == "I should look it up."
    assert "".join(e.text for e in events if isinstance(e, TextStreamed)) == result.text == "It is an owl."


@pytest.mark.parametrize("kind", ["deepseek", "gemini"])
async def test_the_fakes_refuse_a_conversation_without_its_reasoning(kind: str, server: ScriptedServer):
    server.will([THOUGHT, called()], "Done.", "Never.")
    agent = agent_at(kind, server)
    result = await finished(agent, "Who?")
    without = [
        replace(message, native=None, calls=tuple(replace(call, native=None) for call in message.calls))
        if isinstance(message, AssistantMessage)
        else message
        for message in result.messages
    ]
    plain = Agent(OpenAIModel("any", base_url=f"{server.url}/v1", api_key="any"), tools=[look], retry=Retry(attempts=1))
    outcome = await ended(plain, "Sure?", history=without)
    assert outcome.status == "failed"


async def test_redacted_reasoning_and_reasoning_between_calls_keep_their_places():
    with Anthropic() as server:
        hidden = Thinks("", "encrypted", redacted=True)
        server.will([hidden, THOUGHT, "Let me see.", Thinks("And this.", "two"), called(), called()], "Done.")
        await finished(agent_at("anthropic", server), "Who?")
        kinds = [block["type"] for block in sent(server)[1]["content"]]
        assert kinds == ["redacted_thinking", "thinking", "text", "thinking", "tool_use", "tool_use"]
        assert sent(server)[1]["content"][0] == {"type": "redacted_thinking", "data": "encrypted"}


async def test_reasoning_goes_back_under_the_name_that_the_server_gave_it():
    class Vllm(Provider):
        reasoning_field = "reasoning"

    with Vllm([THOUGHT, called()], "Done.") as server:
        await finished(agent_at("vllm", server), "Who?")
        assert sent(server)[1]["reasoning"] == "I should look it up."
        assert "reasoning_content" not in sent(server)[1]


async def stopped_at(run: AgentRun, event_type: type[ReasoningStreamed | TextStreamed]) -> AgentResult:
    async with run, asyncio.timeout(10):
        async for event in run:
            if isinstance(event, event_type):
                run.stop()
        outcome = await run
    assert outcome.status == "aborted"
    assert outcome.partial is not None
    return outcome.partial


async def test_reasoning_that_was_cut_off_is_not_sent_back(kind: str, server: ScriptedServer):
    server.will([Thinks("I was in the mid"), Stall()], "Yes.")
    agent = agent_at(kind, server)
    partial = await stopped_at(agent.run("Who?"), ReasoningStreamed)
    await finished(agent, "Go on.", history=stored(partial.messages))
    assert "I was in the mid" not in json.dumps(sent(server))


async def test_a_stop_in_the_text_keeps_the_reasoning_before_it(kind: str, server: ScriptedServer):
    server.will([THOUGHT, "It is", Stall()], "Yes.")
    agent = agent_at(kind, server)
    partial = await stopped_at(agent.run("Who?"), TextStreamed)
    await finished(agent, "Go on.", history=stored(partial.messages))
    assert "I should look it up." in json.dumps(sent(server))


async def test_a_stop_in_a_tool_round_leaves_a_conversation_that_goes_on(kind: str, server: ScriptedServer):
    begun = asyncio.Event()

    @tool(name="look", effects="read")
    async def slow(what: str = "") -> str:
        begun.set()
        await asyncio.Event().wait()
        return what

    server.will([THOUGHT, called()], "Yes.", "Resumed.")
    first = Agent(model_at(kind, server), tools=[slow])
    run = first.run("Who?")
    async with run, asyncio.timeout(10):
        await begun.wait()
        run.stop()
        partial = (await run).partial
    await close(first)
    assert partial is not None
    agent = agent_at(kind, server)
    assert (await finished(agent, "Go on.", history=stored(partial.messages))).text == "Yes."
    assert (await finished(agent, resume=partial)).text == "Resumed."


@pytest.mark.parametrize("target", [*SERVERS])
async def test_another_provider_gets_none_of_it_and_accepts_the_conversation(
    kind: str, server: ScriptedServer, target: str
):
    server.will([THOUGHT, called()], [THOUGHT, "An owl."])
    before = (await finished(agent_at(kind, server), "Who?")).messages
    in_round = before[:3]
    assert isinstance(in_round[-1], ToolResult)
    with Provider() if target == "deepseek" else SERVERS[target]() as other:
        other.will("One.", "Two.")
        agent = agent_at(target, other, host="localhost")
        await finished(agent, "And now?", history=stored(before))
        await finished(agent, list(in_round))  # in the middle of a round of tools
        for exchange in other.exchanges:
            text = json.dumps(exchange.body)
            assert "signature-of-a-call" not in text
            assert ("I should look it up." in text) == (kind == target == "ollama")
        if target == "anthropic":
            kept = [exchange.body["thinking"]["type"] for exchange in other.exchanges]
            assert kept == ["enabled", "disabled"], "it cannot think in a turn that began without it"


@pytest.mark.parametrize("host", ["api.deepseek.com", "api.moonshot.ai", "example.org"])
async def test_hosts_that_demand_reasoning_get_a_blank_for_answers_of_others(host: str):
    bodies = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return httpx2.Response(200, json={"id": "x", "choices": [choice]})

    native = NativeData(provider="openai:elsewhere", document='{"reasoning_content": "foreign"}')
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = openai.AsyncOpenAI(api_key="any", http_client=http, base_url=f"https://{host}/v1")
        model = OpenAIModel("any", client=client, stream=False)
        await ask(model, asking("hi", AssistantMessage(text="hello", native=native), "and?"))
    assert bodies[0]["messages"][1].get("reasoning_content") == (None if host == "example.org" else " ")


async def test_native_data_of_a_stranger_is_not_sent():
    with Provider("ok") as server:
        for document in ("no JSON", "[1]"):
            server.will("ok")
            native = NativeData(provider="openai:127.0.0.1", document=document)
            await finished(agent_at("any", server), "and?", history=[AssistantMessage(text="hello", native=native)])
            assert sent(server)[1] == {"role": "assistant", "content": "hello"}


def test_messages_of_before_are_read():
    old = '{"v": 1, "text": "hi", "calls": [{"call_id": "a", "name": "look", "arguments": "{}"}], "kind": "assistant"}'
    message = message_from_json(old)
    assert isinstance(message, AssistantMessage)
    assert (message.native, message.calls[0].native) == (None, None)


def test_two_answers_that_become_one_keep_the_reasoning_of_the_later_one():
    first, second = (NativeData(provider="p", document=f'"{name}"') for name in ("first", "second"))
    [_, joined] = repair(
        [
            *repair([]),
            AssistantMessage(text="one", interrupted=True, native=first),
            AssistantMessage(text="two", native=second),
        ]
    )
    assert isinstance(joined, AssistantMessage)
    assert joined.native == second
