"""A call in which the answer of a real format was cut off does not run, and refusals are told apart."""

from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Agent, Completed
from safepoint.agent import tool
from safepoint.messages import ToolResult
from safepoint.models import AnthropicModel, OpenAIModel
from tests.kit.providers.anthropic import Anthropic
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import End, ScriptedServer, ToolCall
from tests.models.asking import ask, ending_of

MODELS: dict[str, tuple[type[ScriptedServer], Callable[..., Any]]] = {
    "openai": (Provider, lambda url, **o: OpenAIModel("tiny", base_url=f"{url}/v1", api_key="any", **o)),
    "anthropic": (Anthropic, lambda url, **o: AnthropicModel("tiny", base_url=url, api_key="any", **o)),
}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("openai", "length"),
        ("openai", "content_filter"),
        ("anthropic", "max_tokens"),
        ("anthropic", "model_context_window_exceeded"),
        ("anthropic", "refusal"),
    ],
)
@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
async def test_a_call_without_its_arguments_is_not_run_with_the_defaults(kind: str, said: str, whole: bool):
    deleted: list[str] = []

    @tool
    def delete_files(folder: str = "/", recursive: bool = True) -> str:
        deleted.append(folder)
        return "deleted"

    with MODELS[kind][0]([ToolCall("delete_files", {} if whole else "{}"), End(said)], "Sorry.") as server:
        async with MODELS[kind][1](server.url, stream=not whole) as model:
            outcome = await Agent(model, tools=[delete_files]).run("Clean up")
    assert isinstance(outcome, Completed)
    assert deleted == []
    [result] = [message for message in outcome.value.messages if isinstance(message, ToolResult)]
    assert result.status == "not_started"
    told = repr(server.exchanges[1].body["messages"])
    assert told.count("This call was not started") == 1


@pytest.mark.parametrize(
    ("kind", "said", "means"),
    [
        ("anthropic", "refusal", "refusal"),
        ("anthropic", "pause_turn", "paused"),
        ("anthropic", "model_context_window_exceeded", "length"),
        ("anthropic", "stop_sequence", "stop"),
    ],
)
async def test_how_it_ended_is_told_apart(kind: str, said: str, means: str):
    with MODELS[kind][0](["I", End(said)]) as server:
        async with MODELS[kind][1](server.url) as model:
            assert ending_of(await ask(model)) == means
