"""Owns the acceptance lines of gadget: a stop on its way from the page to the worker."""

import asyncio
import threading
import time
from typing import Any

import pytest

from safepoint import Aborted, AbortError, AbortSignal
from safepoint.agent import Agent, ModelRequest, tool
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.models.scripted import Stall as StallingModel
from safepoint.run.events import LeafStarted, TextStreamed
from safepoint.run.messages import UserMessage
from tests.acceptance.lines import not_built, open_line
from tests.rigs.ollama import Ollama
from tests.rigs.provider import Provider
from tests.rigs.script import Stall

ASKED = ModelRequest(messages=(UserMessage(text="count"),))


def openai_model(provider: Any, streams: bool) -> Any:
    return OpenAIModel("any", base_url=provider.base_url, api_key="any", stream=streams)


def ollama_model(provider: Any, streams: bool) -> Any:
    return OllamaModel("any", host=provider.url, stream=streams)


def came(provider: Any) -> bool:
    """Wait until the request has arrived at the provider."""
    until = time.monotonic() + 10
    while not provider.exchanges and time.monotonic() < until:
        time.sleep(0.005)  # real time: the provider is a server in a thread of its own
    return bool(provider.exchanges)


@open_line
def test_01_stop_is_acknowledged_at_once_before_and_apart_from_the_outcome() -> None:
    """Page → server → worker: Stop is acknowledged at once ("signalled"), before and apart from the outcome."""
    not_built()


@open_line
def test_02_a_stop_with_nothing_running_is_answered_truthfully_and_does_nothing_else() -> None:
    """Nothing running → the acknowledgement says so, truthfully; nothing else happens."""
    not_built()


@open_line
def test_03_the_turn_ends_through_the_one_ordinary_end_event_marked_aborted() -> None:
    """The turn ends through the one ordinary end event, marked `aborted`; there is no separate abort-completion
    event; nothing is raised further.
    """
    not_built()


@open_line
def test_04_an_aborted_turn_is_stored_and_shown_calmly_and_never_as_an_error() -> None:
    """An aborted turn is stored and shown as aborted ("You stopped this turn."), calm, never as an error; failed
    turns are red.
    """
    not_built()


@open_line
def test_05_a_controller_belongs_to_one_work_order_and_can_never_hit_the_next() -> None:
    """A controller belongs to one work order: created when it starts, gone when it ends, on every path; a stop can
    never hit the next order.
    """
    not_built()


async def test_06_the_provider_layer_checks_before_the_request_and_before_each_chunk() -> None:
    """Provider layer: check before the request; signal given to the SDK call; check before each chunk; for
    streaming and non-streaming, OpenAI and Ollama.
    """
    for rig, make in ((Provider, openai_model), (Ollama, ollama_model)):
        for streams in (True, False):
            with rig(["One two three", Stall()]) as provider:
                model = make(provider, streams)
                with pytest.raises(AbortError):
                    async for _ in model.stream(ASKED, signal=AbortSignal.already("no")):
                        pytest.fail("nothing may come")
                assert provider.exchanges == [], "no request is made under an aborted signal"

                run = Agent(model).run("count")
                async for event in run:
                    if isinstance(event, TextStreamed if streams else LeafStarted):
                        if not streams:
                            assert await asyncio.to_thread(came, provider)
                        run.abort("enough")
                assert isinstance(await run, Aborted)
                (exchange,) = provider.exchanges
                assert await asyncio.to_thread(exchange.closed.wait, 10)
                assert exchange.hung_up
                await model.aclose()


async def test_07_sub_agents_started_by_the_order_end_with_it() -> None:
    """Sub-agents started by the order end with it."""
    in_thread, gone = threading.Event(), threading.Event()

    @tool
    def dig() -> str:
        """Dig in a thread."""
        in_thread.set()
        try:
            while True:
                time.sleep(0.005)  # real time: a thread that works
        finally:
            gone.set()

    digger = Agent(ScriptedModel([Call("dig")]), tools=[dig], name="digger")
    talker = Agent(ScriptedModel(["half an", StallingModel()]), name="talker")
    middle = Agent(
        ScriptedModel([Call("digger", prompt="dig"), Call("talker", prompt="talk")]),
        tools=[digger.as_tool(), talker.as_tool()],
        name="middle",
    )
    order = Agent(ScriptedModel([Call("middle", prompt="go")]), tools=[middle.as_tool()], name="order")
    run = order.run("go")
    async for event in run:
        if isinstance(event, TextStreamed) and event.path[-1] == "talker":
            assert await asyncio.to_thread(in_thread.wait, 10)
            run.abort("enough")
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert gone.is_set()
    assert outcome.receipt.still_running == ()
    fates = {entry.name: entry.fate for entry in outcome.receipt.entries}
    for name in ("order/middle", "order/middle/digger", "order/middle/talker", "order/middle/digger/dig"):
        assert fates[name] == "stopped", outcome.receipt


@open_line
def test_08_completion_and_stop_at_the_same_time_are_one_of_them_for_everybody() -> None:
    """Completion and stop at the same time → one of them, the same for everybody."""
    not_built()


@open_line
def test_09_after_the_end_the_stop_machinery_is_gone_end_to_end() -> None:
    """After the end the stop machinery is gone end to end (listeners, timers, key handlers)."""
    not_built()


@open_line
def test_10_on_the_page_stop_replaces_send_and_a_failed_stop_tells() -> None:
    """The page: Stop replaces Send while running; "Stopping…" while stopping, disabled; a failed stop tells, and
    gives Stop back.
    """
    not_built()


@open_line
def test_11_escape_twice_within_three_seconds_stops_and_expiry_clears_toast_and_flag() -> None:
    """Esc → toast "Press Esc again to stop", 3 s; second Esc within 3 s stops; expiry clears toast and flag; the
    key handler exists only while a turn runs.
    """
    not_built()


@open_line
def test_12_a_stop_at_any_odd_moment_is_answered_truthfully() -> None:
    """Stop before the worker has started the order, while it is queued, twice, after completion, with the worker
    gone, with the worker's loop blocked, with the page reconnecting: each answered truthfully.
    """
    not_built()


@open_line
def test_13_a_page_reloaded_while_stopping_shows_stopping_and_then_aborted() -> None:
    """The page reloads while stopping → it shows "stopping", then "aborted"."""
    not_built()


@open_line
def test_14_a_worker_crash_after_a_stop_does_not_bring_the_turn_back() -> None:
    """A worker crash after a stop does not bring the turn back."""
    not_built()
