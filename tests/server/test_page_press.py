"""Owns the tests of the second press on the page, in a real browser: the button Don't wait, and when it is there."""

import asyncio
from typing import Any

from playwright.async_api import Page, Route, expect

from safepoint.agent import Agent
from tests.kit.agents import Swallower
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, picture, say, stop_button  # noqa: F401
from tests.kit.servers import ControlledModel, Served


def dont_wait(page: Page) -> Any:
    return page.get_by_role("button", name="Don't wait")


async def stuck(lab: Lab) -> tuple[Served, Page, Swallower]:  # noqa: F811
    """A turn in a tool that does not end, on a page whose clock the test moves."""
    faucet, swallower = ControlledModel(), Swallower()
    served = await lab.serve(Agent(faucet, tools=[swallower.tool("stubborn")]))
    page = await lab.page("about:blank")
    await page.clock.install()
    await page.goto(served.url)
    await say(page, "go")
    await is_running(page)
    faucet.call("stubborn")
    await swallower.inside.wait()
    return served, page, swallower


async def pressed(page: Page) -> None:
    """Stop was pressed, and the server has said so."""
    await stop_button(page).click()
    await expect(page.locator(".state-line")).to_have_text("Stopping…")
    await expect(stop_button(page)).to_have_text("Stopping…")


@in_background
async def test_dont_wait_stands_in_the_place_of_stopping_after_a_second_and_ends_the_turn(lab: Lab) -> None:  # noqa: F811
    _, page, swallower = await stuck(lab)
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if "/stop" in request.url else None)
    await pressed(page)
    await expect(dont_wait(page)).to_have_count(0)
    await stop_button(page).click(force=True)  # a double click is one press
    await page.clock.fast_forward(1_100)
    await expect(dont_wait(page)).to_be_visible()
    await expect(stop_button(page)).to_be_hidden()
    await expect(page.locator("#dont-wait-means")).to_contain_text("continue without operations that have not ended")
    await expect(dont_wait(page)).to_have_accessible_description(
        "Don't wait: continue without operations that have not ended. They are listed as still running, and their later"
        " results are not part of the conversation."
    )
    await expect(page.locator("#announcer")).to_contain_text("Don't wait")
    await expect(page.locator(".state-line")).to_contain_text("Stopping…")
    await picture(page, "dont-wait")
    await dont_wait(page).click()
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await is_idle(page)
    await expect(page.locator("#dont-wait-means")).to_be_hidden()
    assert bodies == [{"at": "NOW"}, {"at": "NOW", "abandon": 0}]
    await expect(page.locator("details.tool .state")).to_have_text("outcome unknown")
    swallower.let_go.set()


@in_background
async def test_it_is_reached_and_pressed_with_the_keyboard_alone(lab: Lab) -> None:  # noqa: F811
    _, page, swallower = await stuck(lab)
    await page.locator("#prompt").focus()
    await page.keyboard.press("Tab")
    await expect(stop_button(page)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".state-line")).to_have_text("Stopping…")
    await page.clock.fast_forward(1_100)
    await expect(dont_wait(page)).to_be_visible()
    await expect(page.locator("#prompt")).to_be_focused()  # nothing takes the focus away from somebody who writes
    await page.keyboard.press("Tab")
    await expect(dont_wait(page)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator("#prompt")).to_be_focused()
    swallower.let_go.set()


@in_background
async def test_it_comes_back_after_a_reload_and_other_tabs_have_it_too(lab: Lab) -> None:  # noqa: F811
    served, page, swallower = await stuck(lab)
    await pressed(page)
    other = await lab.page(served.url)
    await page.reload()
    await expect(stop_button(page)).to_have_text("Stopping…")
    await page.clock.fast_forward(1_100)
    await expect(dont_wait(page)).to_be_visible()
    await expect(dont_wait(other)).to_be_visible()  # real time: this tab has a clock of its own
    await dont_wait(other).click()
    for tab in (page, other):
        await expect(tab.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    swallower.let_go.set()


@in_background
async def test_a_press_that_fails_tells_and_is_offered_again(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    _, page, swallower = await stuck(lab)
    await pressed(page)
    await page.clock.fast_forward(1_100)
    held = asyncio.Event()

    async def fail(route: Route) -> None:
        await held.wait()
        await route.abort()

    await page.route("**/stop", fail)
    await dont_wait(page).click()
    await expect(dont_wait(page)).to_have_count(0)
    await expect(stop_button(page)).to_have_text("Stopping…")
    held.set()
    await expect(page.locator(".toast.error")).to_have_text("Stop failed: The server cannot be reached.")
    await page.unroute("**/stop")
    await page.clock.fast_forward(1_100)
    await dont_wait(page).click()
    await expect(page.locator(".end.aborted")).to_be_visible()
    swallower.let_go.set()


@in_background
async def test_a_stop_that_waits_for_a_safe_point_is_first_made_a_now(lab: Lab) -> None:  # noqa: F811
    _, page, swallower = await stuck(lab)
    await page.locator("#stop-more").click()
    await page.get_by_role("menuitem", name="Stop after this tool").click()
    await expect(page.locator(".state-line")).to_have_text("Stopping after this tool…")
    await page.clock.fast_forward(5_000)
    await expect(dont_wait(page)).to_have_count(0)
    await page.locator("#stop-more").click()
    await page.get_by_role("menuitem", name="Stop now").click()
    await expect(page.locator(".state-line")).to_contain_text("Stopping…")
    await page.clock.fast_forward(1_100)
    await expect(dont_wait(page)).to_be_visible()
    swallower.let_go.set()
    await expect(page.locator(".end.aborted")).to_be_visible()
