"""Owns the tests of what survives: several tabs, reloads, broken connections, and servers that come and go."""

import asyncio
from pathlib import Path

from playwright.async_api import expect

from safepoint.agent import Agent, tool
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, say, stop_button  # noqa: F401
from tests.kit.server_process import ServerProcess
from tests.kit.servers import ControlledModel


@in_background
async def test_two_tabs_agree(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    one = await lab.page(served.url)
    await expect(one.locator("#connection")).to_have_text("connected")
    other = await lab.page(one.url)
    await say(one, "go")
    faucet.say("Half an answer.")
    for page in (one, other):
        await is_running(page)
        await expect(page.locator(".answer")).to_have_text("Half an answer.")
    await stop_button(other).click()
    for page in (one, other):
        await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
        await is_idle(page)
    await say(other, "more")
    await say(other, "and more")
    for page in (one, other):
        await expect(page.locator(".message")).to_have_text(["go", "more"])
        await expect(page.locator("#waiting .row span")).to_have_text("and more")


@in_background
async def test_a_reload_in_the_middle_of_stopping_shows_stopping_and_then_the_end(lab: Lab) -> None:  # noqa: F811
    faucet, reached, released = ControlledModel(), asyncio.Event(), asyncio.Event()

    @tool(on_abort="cooperate")
    async def deaf() -> str:
        """Go on after a stop."""
        reached.set()
        await released.wait()
        return "late"

    served = await lab.serve(Agent(faucet, tools=[deaf]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.say("Half an answer.")
    faucet.call("deaf")
    await reached.wait()
    await stop_button(page).click()
    await expect(page.locator(".state-line")).to_have_text("Stopping…")
    await page.reload()
    await expect(stop_button(page)).to_have_text("Stopping…")
    await expect(stop_button(page)).to_be_disabled()
    await expect(page.locator(".items > .answer")).to_have_text("Half an answer.")
    released.set()
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await page.reload()
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator("#announcer")).to_have_text("")  # history is not news


@in_background
async def test_a_connection_that_breaks_is_said_and_nothing_is_missed(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.say("one ")
    await expect(page.locator(".answer")).to_have_text("one")
    await page.context.set_offline(True)
    await page.route("**/events", lambda route: route.abort())
    await served.call("DELETE", f"/api/sessions/{page.url.partition('#')[2]}")  # the stream ends
    await expect(page.locator("#connection")).to_have_text("reconnecting…")
    await expect(page.locator("#connection")).to_have_class("connection lost")
    await page.unroute("**/events")
    await page.context.set_offline(False)
    await expect(page.locator("#connection")).to_have_text("connected")
    await expect(page.locator(".answer")).to_have_text("one")
    await expect(page.locator(".end.aborted p")).to_have_text("This turn was stopped: closed")


@in_background
async def test_a_server_that_was_killed_comes_back_with_the_whole_view(lab: Lab, tmp_path: Path) -> None:  # noqa: F811
    lab.requests_may_fail = True
    db = str(tmp_path / "chat.db")
    with await asyncio.to_thread(ServerProcess, "--db", db) as child:
        page = await lab.page(child.url)
        await say(page, "stall")
        await expect(page.locator(".answer")).to_have_text("I begin.")
        await say(page, "hello")
        await expect(page.locator("#waiting .row")).to_have_count(1)
        child.process.kill()
        child.process.wait(10)
        await expect(page.locator("#connection")).to_have_text("reconnecting…")
        port = child.port
    with await asyncio.to_thread(ServerProcess, "--db", db, port=port):
        await expect(page.locator("#connection")).to_have_text("connected")
        told = "This turn was interrupted: the process in which it ran has ended."
        await expect(page.locator(".end.aborted p")).to_have_text(told)
        await expect(page.locator(".end.aborted g")).to_contain_text("not known")  # and nobody says what nobody knows
        await expect(page.locator(".message")).to_have_text(["stall", "hello"])
        await expect(page.locator(".answer")).to_have_text(["I begin.", "I begin."])
        await is_idle(page)


@in_background
async def test_of_a_call_whose_process_was_killed_nobody_says_that_it_was_stopped(lab: Lab, tmp_path: Path) -> None:  # noqa: F811
    lab.requests_may_fail = True
    db = str(tmp_path / "chat.db")
    with await asyncio.to_thread(ServerProcess, "--db", db) as child:
        page = await lab.page(child.url)
        await say(page, "slow")
        await expect(page.locator(".tool .inside")).to_contain_text("at work")
        child.process.kill()
        child.process.wait(10)
        port = child.port
    with await asyncio.to_thread(ServerProcess, "--db", db, port=port):
        await expect(page.locator(".tool .state")).to_have_text("outcome unknown")
        await expect(page.locator(".end.aborted g title").last).to_contain_text("it may have had effects")


@in_background
async def test_a_session_that_is_gone_is_replaced_by_one_that_is_there(lab: Lab) -> None:  # noqa: F811
    served = await lab.serve(Agent(ControlledModel()))
    page = await lab.page(f"{served.url}/#never-was")
    await expect(page.locator("#connection")).to_have_text("connected")
    await expect(page.locator("#session-list li")).to_have_count(1)
    assert not page.url.endswith("never-was")


@in_background
async def test_a_server_without_memory_gives_a_fresh_session(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    with await asyncio.to_thread(ServerProcess) as child:
        page = await lab.page(child.url)
        await say(page, "hello")
        await expect(page.locator(".answer")).to_have_text("I begin.")
        port = child.port
    with await asyncio.to_thread(ServerProcess, port=port):
        await expect(page.locator(".toast.error")).to_contain_text("no longer on the server")
        await expect(page.locator("#connection")).to_have_text("connected")
        await expect(page.locator(".turn")).to_have_count(0)


@in_background
async def test_the_token_comes_with_the_address_and_leaves_it_at_once(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet), token="secret-token")
    stranger = await lab.page(served.url)
    await expect(stranger.locator(".toast.error")).to_contain_text("needs a token")
    page = await lab.page(f"{served.url}/#token=secret-token")
    await expect(page.locator("#connection")).to_have_text("connected")
    assert "secret" not in page.url
    await say(page, "hello")
    faucet.end("hi")
    await expect(page.locator(".answer")).to_have_text("hi")
    await page.reload()
    await expect(page.locator(".answer")).to_have_text("hi")
