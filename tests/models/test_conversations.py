"""Whatever a conversation holds and wherever a run was stopped, no provider refuses the next request.

The servers refuse what the providers refuse. The conversations are full of what other programs and models write:
white space, halves of characters, numbers that are no JSON, ids of other providers, results that came late.
"""

import json
import os
from collections.abc import Callable
from random import Random
from typing import Any, get_args

import pytest

from safepoint import Agent, Failed, Retry
from safepoint.agent import AgentResult, repair, tool, validate
from safepoint.agent import Provider as RulesOf
from safepoint.messages import AssistantMessage, CallStatus, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from safepoint.models import AnthropicModel, OllamaModel, OpenAIModel
from tests.kit.providers import script
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.ollama import Ollama
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Answer, ScriptedServer
from tests.kit.providers.template_rules import alternation_fault, mistral_fault, short_id_fault

TORTURE = bool(os.environ.get("SAFEPOINT_TORTURE"))
HISTORIES = 20_000 if TORTURE else 120  # histories that are repaired for each provider
TURNS = 3_000 if TORTURE else 60  # turns that are run and stopped at each server: five servers share half an hour
PARTS = 2 if TORTURE else 1

TEXTS = ["", " ", "\n\n", "hello", "größe 😀", "ok \ud83d", "\ude00 fine", "caf\udce9", "a\x00b", "[interrupted]"]
IDS = ["", "a", "b", "c", "call-0", "functions.look:0", "x" * 60, "é", "a b", "call\ud83d", "123456789"]
NAMES = ["", "look", "look", "no such tool", "é", "n" * 80, "a\ud83d"]
ARGUMENTS = [
    *("", " ", "{}", '{"query": 1}', '{"query": "x"}', '{"query": ', "[1]", "null", '"text"', '{"unreadable": "x"}'),
    *('{"x": NaN}', '{"x": -Infinity}', '{"x": 1e999}', '{"x": "\\ud83d"}', '{"x": "\ud83d"}', '{"\\ude00": [{}]}'),
    *('{"x": ' + "[" * 300 + "]" * 300 + "}", '{"x": ' + "9" * 5000 + "}", '{"x": "\\ud83d\\ude00"}'),
]
PROVIDERS: tuple[RulesOf, ...] = get_args(RulesOf)
STATUSES: list[CallStatus] = ["completed", "failed", "interrupted", "not_started", "unknown"]


class Alternating(Provider):
    """A server of an open model, with the templates of Devstral, Gemma and Mistral Small."""

    def fault(self, body: dict[str, Any]) -> str | None:
        return super().fault(body) or alternation_fault(body["messages"]) or short_id_fault(body["messages"])


class Mistral(Provider):
    """Mistral's own API."""

    def fault(self, body: dict[str, Any]) -> str | None:
        return super().fault(body) or mistral_fault(body["messages"])


def at_openai(provider: Any = None) -> Callable[[str], Any]:
    return lambda url: OpenAIModel("tiny", base_url=f"{url}/v1", api_key="any", provider=provider)


SERVERS: dict[str, tuple[type[ScriptedServer], Callable[[str], Any]]] = {
    "openai": (Provider, at_openai("openai")),
    "strict-alternation": (Alternating, at_openai()),
    "mistral": (Mistral, at_openai("mistral")),
    "anthropic": (Anthropic, lambda url: AnthropicModel("tiny", base_url=url, api_key="any")),
    "ollama": (Ollama, lambda url: OllamaModel("tiny", host=url)),
}


def a_call(random: Random) -> ToolCall:
    return ToolCall(call_id=random.choice(IDS), name=random.choice(NAMES), arguments=random.choice(ARGUMENTS))


def a_message(random: Random) -> Message:
    text = random.choice(TEXTS)
    match random.randrange(5):
        case 0:
            return SystemMessage(text=text)
        case 1:
            return UserMessage(text=text)
        case 2 | 3:
            calls = tuple(a_call(random) for _ in range(random.choice([0, 0, 1, 2])))
            return AssistantMessage(text=text, calls=calls, interrupted=random.random() < 0.3)
        case _:
            status, call = random.choice(STATUSES), a_call(random)
            return ToolResult(call_id=call.call_id, name=call.name, content=text, status=status)


def a_history(random: Random) -> list[Message]:
    return [a_message(random) for _ in range(random.randrange(10))]


def an_answer(random: Random, *, objects_only: bool) -> Answer:
    pieces: list[Any] = [random.choice(TEXTS)]
    for _ in range(random.choice([0, 0, 1, 2])):
        arguments = random.choice([a for a in ARGUMENTS if a.startswith("{") and a.endswith("}")] * 2 + ARGUMENTS)
        if objects_only and not is_object(arguments):
            arguments = "{}"
        pieces.append(script.ToolCall(random.choice(["look", "look", "other"]), arguments, random.choice(IDS[1:])))
    return [*pieces, "the end"]


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@tool(effects="read")
def look(query: str = "") -> str:
    """Look something up."""
    return f"three books about {query}"


async def a_turn(agent: Agent, prompt: str, history: list[Message], random: Random) -> list[Message]:
    """Run one turn, stopped at a random event or not at all; its conversation. No provider has refused a request."""
    stop_at = random.choice([None, *range(12)])
    run = agent.run(prompt, history=history)
    async with run:
        count = 0
        async for _ in run:
            if count == stop_at:
                run.stop()
            count += 1
        outcome = await run
    if isinstance(outcome, Failed):
        assert "400" not in str(outcome.error), f"refused: {outcome.error}"
        raise outcome.error
    result = outcome.partial
    assert isinstance(result, AgentResult)
    for provider in PROVIDERS:
        validate(repair(result.messages, provider), provider)
    return list(result.messages)


class HostileModel:
    """What a server answers: hostile words and calls for a few rounds, then an end."""

    def __init__(self, random: Random, *, objects_only: bool) -> None:
        self._random = random
        self._objects_only = objects_only
        self._left = random.randrange(5)

    def __call__(self, body: dict[str, Any]) -> Answer:
        self._left -= 1
        return an_answer(self._random, objects_only=self._objects_only) if self._left > 0 else "done"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("provider", SERVERS)
async def test_no_conversation_is_refused_after_any_stop(provider: str, part: int):
    kind, make = SERVERS[provider]
    with kind() as server:
        async with make(server.url) as model:
            agent = Agent(model, tools=[look], instructions="Be \ud83d brief.", retry=Retry(attempts=1))
            for seed in range(part, TURNS // 3, PARTS):
                random = Random(f"{provider}{seed}")
                history = a_history(random)
                for prompt in ("one", "two \ud83d", "three"):
                    server.always(HostileModel(random, objects_only=provider == "ollama"))
                    history = await a_turn(agent, prompt, history, random)
                server.exchanges.clear()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_conversation_is_repaired_for_every_provider(provider: RulesOf):
    for seed in range(HISTORIES):
        random = Random(seed)
        given = [*a_history(random), UserMessage(text="and now?")]
        repaired = repair(given, provider)
        validate(repaired, provider)
        assert repair(repaired, provider) == repaired
        json.dumps([repr(message) for message in repaired], ensure_ascii=False).encode()
