"""Owns the acceptance lines of gadget: a stop on its way from the page to the worker."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import pytest
from playwright.async_api import expect

from safepoint import Aborted, AbortError, AbortSignal, Retry
from safepoint.agent import Agent, ModelRequest, ToolContext, tool
from safepoint.events import LeafStarted, TextStreamed
from safepoint.messages import UserMessage
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.models.scripted import Stall as StallingModel
from safepoint.session import MemoryStore
from safepoint.worker import NatsBroker, RemoteHost
from tests.conftest import counts
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, listeners, say, stop_button  # noqa: F401
from tests.kit.nats import new_namespace, shared_url
from tests.kit.providers.ollama import Ollama
from tests.kit.providers.openai import Provider
from tests.kit.providers.script import Stall
from tests.kit.servers import ControlledModel, serving, serving_host
from tests.kit.worker_process import worker_process

ASKED = ModelRequest(messages=(UserMessage(text="count"),))


class Order:
    """A tool that goes on after a stop until the test lets it go."""

    def __init__(self) -> None:
        self.begun, self.released = asyncio.Event(), asyncio.Event()

    def tool(self) -> Any:
        @tool(on_abort="cooperate")
        async def order() -> str:
            """Work."""
            self.begun.set()
            await self.released.wait()
            return "late"

        return order


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


async def test_01_stop_is_acknowledged_at_once_before_and_apart_from_the_outcome() -> None:
    """Page → server → worker: Stop is acknowledged at once ("signalled"), before and apart from the outcome."""
    faucet, order = ControlledModel(), Order()
    async with serving(Agent(faucet, tools=[order.tool()])) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.call("order")
        await order.begun.wait()
        ack = await served.stop(session, turn)
        assert (ack["status"], ack["level"], ack["id"]) == ("accepted", "recorded", turn)
        assert await served.turn(session, turn) == {"id": turn, "status": "stopping", "outcome": None}
        order.released.set()
        assert (await served.until(session, "turn_ended"))["outcome"]["status"] == "aborted"


async def test_02_a_stop_with_nothing_running_is_answered_truthfully_and_does_nothing_else() -> None:
    """Nothing running → the acknowledgement says so, truthfully; nothing else happens."""
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        assert (await served.stop(session, "never-sent"))["status"] == "unknown"
        turn = await served.send(session)
        faucet.end("done")
        await served.until(session, "turn_ended")
        before = await served.all_events(session)
        ack = await served.stop(session, turn)
        assert (ack["status"], ack["level"]) == ("already_finished", "settled")
        assert await served.all_events(session) == before
        assert (await served.turn(session, turn))["status"] == "completed"


async def test_03_the_turn_ends_through_the_one_ordinary_end_event_marked_aborted() -> None:
    """The turn ends through the one ordinary end event, marked `aborted`; there is no separate abort-completion
    event; nothing is raised further.
    """
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.say("half")
        await served.until(session, "text_streamed")
        await served.stop(session, turn)
        await served.until(session, "turn_ended")
        events = [event for _, event in await served.all_events(session)]
        assert events[-1]["kind"] == "turn_ended"
        assert events[-1]["outcome"]["status"] == "aborted"
        assert [event["kind"] for event in events].count("turn_ended") == 1
        assert not {event["kind"] for event in events} & {"turn_aborted", "run_ended", "error"}
        after = await served.send(session, "and now?")  # the session goes on as if nothing had been raised
        faucet.end("fine")
        assert (await served.until(session, "turn_ended", turn_id=after))["outcome"]["status"] == "completed"


@in_background
async def test_04_an_aborted_turn_is_stored_and_shown_calmly_and_never_as_an_error(lab: Lab) -> None:  # noqa: F811
    """An aborted turn is stored and shown as aborted ("You stopped this turn."), calm, never as an error; failed
    turns are red.
    """
    faucet, store = ControlledModel(), MemoryStore()
    served = await lab.serve(Agent(faucet), store)
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.say("Half an answer.")
    await expect(page.locator(".answer")).to_have_text("Half an answer.")
    await stop_button(page).click()
    calm = page.locator(".end.aborted")
    await expect(calm.locator("> p")).to_have_text("You stopped this turn.")
    await expect(calm).to_have_css("background-color", "rgb(253, 243, 205)")
    await expect(page.locator(".answer")).to_have_text("Half an answer.")
    await expect(page.locator(".failed, .toast.error")).to_have_count(0)
    session = page.url.partition("#")[2]
    (stored,) = [record.text for record in await store.read(session) if record.ends]
    assert ('"status": "aborted"' in stored, '"error"' in stored) == (True, False)
    await say(page, "again")
    faucet.break_down("the provider is down")
    failed = page.locator(".end.failed")
    await expect(failed.locator("> p")).to_have_text("This turn failed: the provider is down")
    await expect(failed).to_have_css("background-color", "rgb(251, 227, 224)")


async def test_05_a_controller_belongs_to_one_work_order_and_can_never_hit_the_next() -> None:
    """A controller belongs to one work order: created when it starts, gone when it ends, on every path; a stop can
    never hit the next order.
    """
    signals: list[weakref.ref[AbortSignal]] = []

    class Seeing(ControlledModel):
        """Sees the signal of each order: a tool's own only follows it."""

        def stream(self, request: ModelRequest, *, signal: AbortSignal) -> Any:
            signals.append(weakref.ref(signal))
            return super().stream(request, signal=signal)

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    faucet = Seeing()

    async with serving(Agent(faucet, tools=[look], retry=Retry(attempts=1))) as served:
        session = await served.session()
        for number, ending in enumerate(("completed", "failed", "aborted")):
            turn = await served.send(session, turn_id=f"t{number}")
            faucet.call("look")
            await served.until(session, "tool_ended", run_id=turn)
            seen = signals[-1]
            assert seen() is not None
            match ending:
                case "completed":
                    faucet.end("done")
                case "failed":
                    faucet.break_down("oh no")
                case _:
                    await served.stop(session, turn)
            ended = await served.until(session, "turn_ended", turn_id=turn)
            assert ended["outcome"]["status"] == ending
            following = await served.send(session, turn_id=f"next-{number}")
            faucet.say("on its way")
            await served.until(session, "text_streamed", run_id=following)
            gc.collect()
            if ending != "failed":  # an error keeps the frames that it came through
                assert seen() is None, f"after {ending} the signal is still held"
            assert (await served.stop(session, turn))["status"] == "already_finished"
            faucet.end(" and there")
            ended = await served.until(session, "turn_ended", turn_id=following)
            assert ended["outcome"]["value"]["text"] == "on its way and there"


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


async def test_08_completion_and_stop_at_the_same_time_are_one_of_them_for_everybody() -> None:
    """Completion and stop at the same time → one of them, the same for everybody."""
    faucet, seen = ControlledModel(), set()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        for number in range(counts(12, 40)):
            turn = await served.send(session, turn_id=f"t{number}")
            faucet.say("almost")
            await served.until(session, "text_streamed", run_id=turn)
            stopping = asyncio.create_task(served.stop(session, turn))
            for _ in range(number * 4 % 200):  # the end comes a little later in each round
                await asyncio.sleep(0)
            faucet.end(" done")
            ack, ended = await stopping, await served.until(session, "turn_ended", turn_id=turn)
            status = ended["outcome"]["status"]
            assert status in ("completed", "aborted")
            assert ack["status"] == "accepted" or status == "completed"
            told = await served.turn(session, turn)
            assert (told["status"], told["outcome"]) == (status, ended["outcome"])
            ends = [
                e for _, e in await served.all_events(session) if e["kind"] == "turn_ended" and e["turn_id"] == turn
            ]
            assert ends == [ended]
            seen.add(status)
            faucet.dry()
    assert "aborted" in seen


@in_background
async def test_09_after_the_end_the_stop_machinery_is_gone_end_to_end(lab: Lab) -> None:  # noqa: F811
    """After the end the stop machinery is gone end to end (listeners, timers, key handlers)."""
    faucet, signals = ControlledModel(), []

    @tool
    async def look(ctx: ToolContext) -> str:
        """See the signal of this order."""
        signals.append(weakref.ref(ctx.signal))
        return await ctx.ask_user("Well?")

    served = await lab.serve(Agent(faucet, tools=[look]))
    page = await lab.page(served.url)
    await expect(page.locator("#connection")).to_have_text("connected")
    tasks = {task.get_name() for task in asyncio.all_tasks()}
    assert await listeners(page) == 0
    await say(page, "go")
    faucet.call("look")
    await expect(page.locator(".card form")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator(".toast")).to_have_count(1)
    assert await listeners(page) == 1
    await stop_button(page).click()
    await expect(page.locator(".end.aborted")).to_be_visible()
    assert await listeners(page) == 0
    await expect(page.locator(".toast, .card form")).to_have_count(0)
    gc.collect()
    assert signals[0]() is None
    assert [t for t in asyncio.all_tasks() if "agent" in t.get_name() and t.get_name() not in tasks] == []


@in_background
async def test_10_on_the_page_stop_replaces_send_and_a_failed_stop_tells(lab: Lab) -> None:  # noqa: F811
    """The page: Stop replaces Send while running; "Stopping…" while stopping, disabled; a failed stop tells, and
    gives Stop back.
    """
    lab.requests_may_fail = True
    faucet, order = ControlledModel(), Order()
    served = await lab.serve(Agent(faucet, tools=[order.tool()]))
    page = await lab.page(served.url)
    await expect(page.locator("#send")).to_be_visible()
    await say(page, "go")
    await is_running(page)
    faucet.call("order")
    await order.begun.wait()
    await page.route("**/stop", lambda route: route.abort())
    await stop_button(page).click()
    await expect(page.locator(".toast.error")).to_contain_text("Stop failed")
    await is_running(page)
    await page.unroute("**/stop")
    await stop_button(page).click()
    await expect(stop_button(page)).to_have_text("Stopping…")
    await expect(stop_button(page)).to_be_disabled()
    order.released.set()
    await is_idle(page)


@in_background
async def test_11_escape_twice_within_three_seconds_stops_and_expiry_clears_toast_and_flag(lab: Lab) -> None:  # noqa: F811
    """Esc → toast "Press Esc again to stop", 3 s; second Esc within 3 s stops; expiry clears toast and flag; the
    key handler exists only while a turn runs.
    """
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page("about:blank")
    await page.clock.install()
    await page.goto(served.url)
    await say(page, "go")
    await is_running(page)
    await page.keyboard.press("Escape")
    await expect(page.locator(".toast")).to_have_text("Press Esc again to stop")
    await page.clock.fast_forward(3_001)
    await expect(page.locator(".toast")).to_have_count(0)
    await page.keyboard.press("Escape")  # the flag has gone with the toast: this is a first one
    await expect(page.locator(".toast")).to_have_text("Press Esc again to stop")
    await is_running(page)
    await page.keyboard.press("Escape")
    await expect(page.locator(".end.aborted > p")).to_have_text("You stopped this turn.")
    assert await listeners(page) == 0


async def test_12_a_stop_at_any_odd_moment_is_answered_truthfully() -> None:
    """Stop before the worker has started the order, while it is queued, twice, after completion, with the worker
    gone, with the worker's loop blocked, with the page reconnecting: each answered truthfully.
    """
    url, namespace = shared_url(), new_namespace()
    broker = NatsBroker(url, namespace, lease=1.0)
    options = ("--lease", "1", "--grace", "0.5")
    async with serving_host(RemoteHost(broker)) as served:

        async def stop(turn: str) -> tuple[str, str, str]:
            began = time.monotonic()
            ack = await served.stop("s", turn, reason="enough")
            assert time.monotonic() - began < 2, "answered at once"
            return ack["status"], ack["level"], ack["message"]

        async def ends(turn: str) -> tuple[str, bool]:
            """How it ended, and whether it had begun."""
            ended = await served.until("s", "turn_ended", turn_id=turn)
            begun = [e for _, e in await served.all_events("s") if (e["kind"], e["run_id"]) == ("turn_started", turn)]
            return ended["outcome"]["status"], bool(begun)

        async with worker_process(url, namespace, *options) as worker:
            await served.session("s")
            first = await served.send("s", "talk")
            await served.until("s", "text_streamed", run_id=first)
            waiting = await served.send("s", "quick")
            await served.until("s", "turn_queued", turn_id=waiting)
            assert (await stop(waiting))[:2] == ("accepted", "delivered")  # while it is queued
            assert await ends(waiting) == ("aborted", False)
            assert (await served.turn("s", first))["status"] == "running", "no other turn was hit"
            async with served.reading("s") as page:
                await page.until("text_streamed", run_id=first)
                assert (await stop(first))[:2] == ("accepted", "delivered")
            # The page has gone and comes back: it reads on from where it was.
            assert await ends(first) == ("aborted", True)
            assert (await stop(first))[0] == "already_finished"  # twice, and after its end
            done = await served.send("s", "quick")
            assert await ends(done) == ("completed", True)
            assert (await stop(done))[:2] == ("already_finished", "settled")  # after completion
            hogging = await served.send("s", "hog")
            await served.until("s", "tool_called", run_id=hogging)
            await asyncio.sleep(0.6)  # real time: its event loop is to be seen as blocked
            status, level, told = await stop(hogging)  # with the loop blocked
            assert (status, level) == ("accepted", "delivered")
            assert "has not moved" in told
            assert await ends(hogging) == ("aborted", True)
            lost = await served.send("s", "talk")
            await served.until("s", "text_streamed", run_id=lost)
            await worker.kill()
        status, level, told = await stop(lost)  # with the worker gone
        assert (status, level) == ("accepted", "recorded")
        assert "no worker" in told
        early = await served.send("s", "quick")
        assert (await stop(early))[:2] == ("accepted", "recorded")  # before a worker has the order
        async with worker_process(url, namespace, *options):
            assert await ends(lost) == ("aborted", True)
            assert await ends(early) == ("aborted", False)
            assert (await stop("never-sent"))[0] == "unknown"


@in_background
async def test_13_a_page_reloaded_while_stopping_shows_stopping_and_then_aborted(lab: Lab) -> None:  # noqa: F811
    """The page reloads while stopping → it shows "stopping", then "aborted"."""
    faucet, order = ControlledModel(), Order()
    served = await lab.serve(Agent(faucet, tools=[order.tool()]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("order")
    await order.begun.wait()
    await stop_button(page).click()
    await expect(page.locator(".state-line")).to_have_text("Stopping…")
    await page.reload()
    await expect(stop_button(page)).to_have_text("Stopping…")
    await expect(stop_button(page)).to_be_disabled()
    order.released.set()
    await expect(page.locator(".end.aborted > p")).to_have_text("You stopped this turn.")
    await is_idle(page)


async def test_14_a_worker_crash_after_a_stop_does_not_bring_the_turn_back() -> None:
    """A worker crash after a stop does not bring the turn back."""
    url, namespace = shared_url(), new_namespace()
    options = ("--lease", "1", "--grace", "30")
    async with serving_host(RemoteHost(NatsBroker(url, namespace, lease=1.0))) as served:
        async with worker_process(url, namespace, *options) as worker:
            await served.session("s")
            turn = await served.send("s", "hog")
            await served.until("s", "tool_called", run_id=turn)
            ack = await served.stop("s", turn, reason="enough")
            assert (ack["status"], ack["level"]) == ("accepted", "delivered")
            await worker.kill()
        async with worker_process(url, namespace, *options):
            ended = await served.until("s", "turn_ended", turn_id=turn)
            assert (ended["outcome"]["status"], ended["outcome"]["reason"]["message"]) == ("aborted", "enough")
            after = await served.send("s", "quick")
            assert (await served.until("s", "turn_ended", turn_id=after))["outcome"]["status"] == "completed"
        events = [event for _, event in await served.all_events("s")]
        assert [e["run_id"] for e in events if e["kind"] == "tool_called"] == [turn], "it ran once"
        assert [e["turn_id"] for e in events if e["kind"] == "turn_started"] == [turn, after]
