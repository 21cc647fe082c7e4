"""Owns the tests of the demo: each thing that it offers to try does what it says, and stops."""

import asyncio

import pytest

from safepoint import Aborted, Completed
from safepoint.agent import Agent
from safepoint.cli.demo import TRY, demo_agent
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel
from safepoint.server import with_abandon_after
from safepoint.testing import FakeClock


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)


# What has begun when it is stopped, and what the receipt says of it.
STOPPED = {
    "tell me a story": ("text_streamed", "demo", "demo/model", "stopped"),
    "search": ("progress_made", "search", "demo/search", "stopped"),
    "dig": ("leaf_started", "dig", "demo/dig", "stopped"),
    "hash": ("leaf_started", "grind", "demo/grind", "still_running"),
    "build": ("leaf_started", "build", "demo/build", "stopped"),
    "research": ("progress_made", "search", "demo/researcher/search", "stopped"),
    "ask": ("question_asked", "ask", "demo/ask", "stopped"),
    "pay": ("question_asked", "pay", "demo/pay/question", "not_started stopped"),
    "everything": ("progress_made", "search", "demo/build", "stopped"),
}


def test_everything_offered_is_tested():
    assert list(STOPPED) == list(TRY)


@pytest.mark.parametrize("words", STOPPED)
async def test_what_is_offered_can_be_stopped(words: str):
    kind, who, name, fate = STOPPED[words]
    # Only what cannot be stopped needs to be left; on a busy machine the others take a while as well.
    run = with_abandon_after(demo_agent(), 0.3 if fate == "still_running" else 20.0).run(words)
    async with run:
        async for event in run:
            if event.kind == kind and event.path[-1] == who and not run.signal.aborted:
                if who in ("dig", "grind"):
                    await asyncio.sleep(1.5)  # real time: a thread has to be in the middle of its work
                run.abort("enough")
    outcome = await run
    assert isinstance(outcome, Aborted)
    fates = {entry.name: entry.fate for entry in outcome.receipt.entries}
    assert fates.get(name, "missing") in fate.split(), outcome.receipt


async def test_a_payment_begins_when_it_is_allowed(clock: FakeClock):
    run, began = demo_agent().run("pay"), False
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(tick(clock))
        async with run:
            async for event in run:
                if event.kind == "question_asked":
                    assert run.answer(event.question_id, "allow")
                if event.kind == "leaf_started" and event.path[-1] == "pay":
                    began = True
                    run.stop()
        ticking.cancel()
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert began
    assert "unknown" in str(outcome.partial)  # it is irreversible: nobody says what it did


async def tick(clock: FakeClock) -> None:
    while True:
        await clock.elapse(0.05)


async def test_whatever_else_is_said_it_says_what_it_can_do(clock: FakeClock):
    run = demo_agent().run("hello")
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(tick(clock))
        outcome = await run
        ticking.cancel()
    assert isinstance(outcome, Completed)
    assert all(words in outcome.value.text for words in TRY)


def test_with_a_key_or_an_address_it_uses_a_real_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    assert isinstance(demo_agent().model, OllamaModel)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    assert isinstance(demo_agent().model, OpenAIModel)
    assert isinstance(demo_agent(), Agent)
