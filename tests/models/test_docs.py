"""The page on models: its examples run."""

import ast
import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import safepoint.abort
import safepoint.agent
import safepoint.run
from safepoint.abort import AbortController, AbortError
from safepoint.agent import ModelError
from safepoint.models import scripted
from safepoint.models.anthropic import AnthropicModel
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel
from safepoint.run import Retry
from safepoint.testing import drain_ready_tasks
from tests.models.asking import ask, asking, calls_of, ending_of, text_of

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROOMS = (safepoint.abort, safepoint.agent, safepoint.run, scripted)
NAMES = {name: getattr(room, name) for room in ROOMS for name in room.__all__} | {
    "AnthropicModel": AnthropicModel,
    "AsyncGenerator": AsyncGenerator,
    "OllamaModel": OllamaModel,
    "OpenAIModel": OpenAIModel,
}


async def run(marker: str, **names: object) -> dict[str, Any]:
    """Run the one example that contains the marker; what it defined."""
    [block] = [block for block in BLOCKS if marker in block]
    found: dict[str, Any] = {**NAMES, **names}
    code = compile(block, "models.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, found)
    if inspect.isawaitable(running):
        await running
    return found


def test_every_example_is_run():
    assert len(BLOCKS) == 4


async def test_the_models_are_made_as_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    assert isinstance((await run("async with OpenAIModel("))["model"], OllamaModel)
    await drain_ready_tasks()  # the SDKs close the clients of models that nobody closed


async def test_the_retry_tries_what_is_worth_it():
    retry = (await run("retry = Retry("))["retry"]
    model = scripted.ScriptedModel(
        [scripted.Error("busy", retryable=True, retry_after=0)], [scripted.Error("no")], "never"
    )
    with pytest.raises(ModelError, match="no"):
        await Retry(retry.attempts, delay=0, on=retry.on).run(lambda: ask(model))
    assert len(model.requests) == 2


async def test_the_model_of_your_own_answers_and_can_be_stopped():
    class Connection:
        count = 2
        closed = 0

        async def __aenter__(self) -> "Connection":
            return self

        async def __aexit__(self, *_: object) -> None:
            self.closed += 1

        async def ask(self, messages: object) -> AsyncIterator[str]:
            yield "Hello"
            yield " you"

    connection = Connection()
    echo = (await run("class Echo", connect=lambda: connection))["Echo"]()
    chunks = await ask(echo)
    assert (text_of(chunks), ending_of(chunks), connection.closed) == ("Hello you", "stop", 1)
    controller = AbortController()
    with pytest.raises(AbortError):
        async for _ in echo.stream(asking(), signal=controller.signal):
            controller.abort()
    assert connection.closed == 2


async def test_the_scripted_model_says_what_is_shown():
    model = (await run("model = ScriptedModel("))["model"]
    assert calls_of(await ask(model)) == [("call-1", "search", {"query": "safe points"})]
    assert text_of(await ask(model)) == "You sent 1 messages"
    assert text_of(await ask(model)) == "Done."
    model.done()
