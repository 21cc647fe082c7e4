"""Owns the tests of how the page shows the end of a turn: stopped, failed, out of time; and what can be done then."""

import threading
import time

from playwright.async_api import expect

from safepoint.agent import Agent, tool
from safepoint.server import with_abandon_after
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, picture, say, stop_button  # noqa: F401
from tests.kit.servers import ControlledModel

YELLOW, RED, PURPLE = "rgb(253, 243, 205)", "rgb(251, 227, 224)", "rgb(230, 226, 246)"


@in_background
async def test_a_stopped_turn_is_calm_and_shows_its_receipt_as_a_timeline(lab: Lab) -> None:  # noqa: F811
    faucet, in_thread, released = ControlledModel(), threading.Event(), threading.Event()

    @tool
    def dig() -> str:
        """Dig in plain Python."""
        in_thread.set()
        while not released.is_set():
            time.sleep(0.001)  # real time: a thread that works
        return "dug"

    @tool(on_abort="cooperate")
    def deaf() -> str:
        """Wait where no interrupt arrives."""
        released.wait(30)
        return "late"

    served = await lab.serve(with_abandon_after(Agent(faucet, tools=[dig, deaf], name="digger"), 0.4))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.say("I dig, and I wait.")
    faucet.call("dig", "deaf")
    await is_running(page)
    await expect(page.locator("details.tool")).to_have_count(2)
    assert in_thread.wait(10)
    await stop_button(page).click()
    end = page.locator(".end")
    await expect(end).to_have_class("end aborted")
    await expect(end).to_have_css("background-color", YELLOW)
    await expect(end.locator("> p")).to_have_text("You stopped this turn.")
    await expect(page.locator(".items > .answer")).to_have_text("I dig, and I wait.")
    dug = end.locator("g[data-fate=stopped]", has_text="digger/dig")
    await expect(dug.locator("rect.took")).to_have_count(1)
    left = end.locator("g[data-fate=still_running]")
    await expect(left).to_contain_text("still running")
    await expect(left.locator("rect.runs")).to_have_count(1)
    assert "test_page_ends.py:" in str(await left.locator("title").text_content())
    await expect(end.locator("summary")).to_contain_text("1 still running or not known.")
    await expect(page.locator("#announcer")).to_have_text("You stopped this turn.")
    await picture(page, "stopped")
    released.set()


@in_background
async def test_failures_are_red_and_timeouts_have_a_colour_of_their_own(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.break_down("the provider is <b>down</b>")
    failed = page.locator(".end.failed")
    await expect(failed).to_have_css("background-color", RED)
    await expect(failed.locator("> p")).to_have_text("This turn failed: the provider is <b>down</b>")
    session = page.url.partition("#")[2]
    await served.send(session, "quickly", timeout=0.05)
    late = page.locator(".end.timed_out")
    await expect(late).to_have_css("background-color", PURPLE)
    await expect(late.locator("> p")).to_have_text("This turn ran out of time.")
    await expect(page.locator("#announcer")).to_have_text("This turn ran out of time.")
    await expect(page.locator(".end.aborted")).to_have_count(0)
    await picture(page, "failed")


@in_background
async def test_a_stopped_turn_goes_on_or_is_forgotten(lab: Lab) -> None:  # noqa: F811
    faucet, begun = ControlledModel(), []

    @tool
    async def once() -> str:
        """Be called once."""
        begun.append(True)
        return "done"

    served = await lab.serve(Agent(faucet, tools=[once]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("once")
    await expect(page.locator("details.tool .state")).to_have_text("done")
    await stop_button(page).click()
    await page.locator(".end").get_by_role("button", name="Continue").click()
    await is_running(page)
    await expect(page.locator(".turn")).to_have_count(1)  # it is the same turn, going on
    await expect(page.locator("details.tool")).to_have_count(1)
    faucet.end("all of it")
    await is_idle(page)
    await expect(page.locator(".items > .answer")).to_have_text("all of it")
    assert begun == [True]
    await say(page, "again")
    await is_running(page)
    await stop_button(page).click()
    await page.locator(".end").get_by_role("button", name="Forget this turn").click()
    await expect(page.locator(".message")).to_have_text(["go"])


@in_background
async def test_what_the_reader_opened_or_closed_stays_so(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    await is_running(page)
    await stop_button(page).click()
    receipt = page.locator(".end details")
    await expect(receipt).to_have_attribute("open", "")
    await receipt.locator("summary").click()
    await expect(receipt.locator("svg")).to_be_hidden()
    await say(page, "next")
    faucet.end("done")
    await is_idle(page)
    await expect(receipt.locator("svg")).to_be_hidden()
    await expect(page.get_by_role("button", name="Continue")).to_have_count(0)  # only the last turn can go on
