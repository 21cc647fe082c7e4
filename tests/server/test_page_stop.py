"""Owns the tests of stopping from the page, in a real browser: the button, its menu, and Esc Esc."""

import asyncio

from playwright.async_api import Route, expect

from safepoint.agent import Agent
from tests.kit.agents import HeldTool
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, listeners, picture, say, stop_button  # noqa: F401
from tests.kit.servers import ControlledModel, Served

AGAIN = "Press Esc again to stop"


async def status(served: Served) -> list[str]:
    """How each turn of the newest session has ended so far."""
    session = (await served.call("GET", "/api/sessions")).json()[-1]["id"]
    return [e["outcome"]["status"] for _, e in await served.all_events(session) if e["kind"] == "turn_ended"]


@in_background
async def test_stop_stands_in_the_place_of_send_and_says_stopping_at_once(lab: Lab) -> None:  # noqa: F811
    faucet, deaf = ControlledModel(), HeldTool("deaf")
    served = await lab.serve(Agent(faucet, tools=[deaf.tool]))
    page = await lab.page(served.url)
    await say(page, "go")
    await is_running(page)
    faucet.say("Half an answer.")
    faucet.call("deaf")
    await deaf.inside.wait()
    held = asyncio.Event()

    async def hold(route: Route) -> None:
        await held.wait()
        await route.continue_()

    await page.route("**/stop", hold)
    await stop_button(page).click()
    await expect(stop_button(page)).to_have_text("Stopping…")  # the server has heard nothing so far
    await expect(stop_button(page)).to_be_disabled()
    await expect(page.locator("#stop-more")).to_be_disabled()
    assert (await served.call("GET", "/api/sessions")).json()[0]["turns"][0]["status"] == "running"
    held.set()
    await expect(page.locator(".state-line")).to_have_text("Stopping…")
    await expect(stop_button(page)).to_be_disabled()
    await picture(page, "stopping")
    deaf.released.set()
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator(".items > .answer")).to_have_text("Half an answer.")
    await is_idle(page)


@in_background
async def test_a_stop_that_fails_tells_and_gives_stop_back(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    await is_running(page)
    await page.route("**/stop", lambda route: route.abort())
    await stop_button(page).click()
    await expect(page.locator(".toast.error")).to_have_text("Stop failed: The server cannot be reached.")
    await is_running(page)
    await picture(page, "stop-failed")
    await page.unroute("**/stop")
    await page.route("**/stop", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    await stop_button(page).click()
    await expect(page.locator(".toast.error").nth(1)).to_contain_text("Stop failed:")
    await is_running(page)
    await page.unroute("**/stop")
    await stop_button(page).click()
    await expect(page.locator(".end.aborted")).to_be_visible()


@in_background
async def test_a_server_that_does_not_answer_cannot_keep_the_button(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page("about:blank")
    await page.clock.install()
    await page.goto(served.url)
    await say(page, "go")
    await is_running(page)
    asked, released = asyncio.Event(), asyncio.Event()

    async def never(route: Route) -> None:
        asked.set()
        await released.wait()
        await route.abort()

    await page.route("**/stop", never)
    await stop_button(page).click()
    await asked.wait()
    await expect(stop_button(page)).to_be_disabled()
    await page.clock.fast_forward(10_001)
    await expect(page.locator(".toast.error")).to_contain_text("Stop failed")
    await is_running(page)
    released.set()


@in_background
async def test_the_menu_stops_after_this_tool_or_this_answer(lab: Lab) -> None:  # noqa: F811
    faucet, deaf = ControlledModel(), HeldTool("deaf")
    served = await lab.serve(Agent(faucet, tools=[deaf.tool]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("deaf")
    await deaf.inside.wait()
    await page.locator("#stop-more").click()
    await picture(page, "menu")
    await page.get_by_role("menuitem", name="Stop after this tool").click()
    await expect(page.locator(".state-line")).to_have_text("Stopping after this tool…")
    await expect(stop_button(page)).to_have_text("Stopping…")
    await expect(stop_button(page)).to_be_disabled()
    deaf.released.set()
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator("details.tool .state")).to_have_text("done")  # it was let finish
    assert faucet.asked == 1


@in_background
async def test_a_stop_that_waits_can_be_made_stricter_with_the_keyboard_alone(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    await is_running(page)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await expect(page.locator("#stop-more")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("menuitem", name="Stop after this tool")).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("menuitem", name="Stop after this answer")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".state-line")).to_have_text("Stopping after this answer…")
    await expect(page.locator("#stop-more")).to_be_enabled()
    await expect(page.locator("#prompt")).to_be_focused()  # not lost on a button that was off for a moment
    await page.keyboard.press("Tab")
    await expect(page.locator("#stop-more")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("[role=menuitem]:visible")).to_have_text(["Stop now"])
    await page.keyboard.press("Enter")
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator("#prompt")).to_be_focused()


@in_background
async def test_escape_twice_stops(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await page.keyboard.press("Escape")  # nothing runs
    await expect(page.locator(".toast")).to_have_count(0)
    await say(page, "go")
    await is_running(page)
    await page.keyboard.press("Escape")
    await expect(page.locator(".toast")).to_have_text(AGAIN)
    await picture(page, "escape")
    await is_running(page)
    await page.keyboard.press("Escape")
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator(".toast")).to_have_count(0)


@in_background
async def test_a_single_escape_after_loading_stops_nothing_and_expires(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    session = await served.session()
    await served.send(session)
    page = await lab.page("about:blank")
    await page.clock.install()
    await page.goto(served.url)
    await is_running(page)
    await page.keyboard.press("Escape")
    await expect(page.locator(".toast")).to_have_text(AGAIN)
    await page.clock.fast_forward(3_001)
    await expect(page.locator(".toast")).to_have_count(0)
    await page.keyboard.press("Escape")  # the window is over: this is a first one again
    await expect(page.locator(".toast")).to_have_text(AGAIN)
    await is_running(page)
    assert await status(served) == []
    await page.keyboard.press("Escape")
    await expect(page.locator(".end.aborted")).to_be_visible()


@in_background
async def test_the_key_handler_exists_only_while_a_turn_runs(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await expect(page.locator("#connection")).to_have_text("connected")
    assert await listeners(page) == 0
    for ends in (lambda: faucet.end("done"), lambda: faucet.break_down("oh no")):
        await say(page, "go")
        await is_running(page)
        assert await listeners(page) == 1
        await page.keyboard.press("Escape")
        await expect(page.locator(".toast")).to_have_text(AGAIN)
        ends()
        await is_idle(page)
        assert await listeners(page) == 0
        await expect(page.locator(".toast")).to_have_count(0)  # the toast and its flag went with the turn
    await say(page, "once more")
    await is_running(page)
    await page.keyboard.press("Escape")  # the Esc of the turn before does not count
    await is_running(page)
    faucet.end("done")
    await is_idle(page)
    assert await status(served) == ["completed", "failed", "completed"]


@in_background
async def test_an_escape_that_closes_something_is_not_ours(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url, viewport={"width": 390, "height": 780})
    await say(page, "go")
    await is_running(page)
    await say(page, "and then")
    for _ in range(2):
        await page.locator("#stop-more").click()
        await expect(page.locator("#stop-menu")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#stop-menu")).to_be_hidden()
    for _ in range(2):
        await page.locator("#waiting").get_by_role("button", name="Edit").click()
        await expect(page.get_by_label("Edit message")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_label("Edit message")).to_have_count(0)
    for _ in range(2):
        await page.locator("#toggle-sessions").click()
        await expect(page.locator("#new-session")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#new-session")).to_be_hidden()
    await expect(page.locator(".toast")).to_have_count(0)
    await is_running(page)
    assert await status(served) == []


@in_background
async def test_a_key_that_is_held_down_is_pressed_once(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    await is_running(page)
    for _ in range(5):
        await page.keyboard.down("Escape")  # repeats, as a keyboard does
    await page.keyboard.up("Escape")
    await expect(page.locator(".toast")).to_have_text(AGAIN)
    await is_running(page)
    assert await status(served) == []
