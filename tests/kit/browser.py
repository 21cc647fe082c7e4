"""Owns a real browser for tests of the page: one chromium per test process, and a server for each test.

What it looked like is kept under `.cache/pages/`, for people to look at.
"""

import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect

from safepoint.agent import Agent
from tests.kit.background import Background
from tests.kit.servers import Served, serving

PICTURES = Path(__file__).parents[2] / ".cache" / "pages"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "THE PAGE IS NOT TESTED: there is no chromium here. As root: apt-get install chromium; see `make browser`."
PATIENCE_MS = 15_000
WIDE = {"width": 1200, "height": 800}
NARROW = {"width": 390, "height": 780}
expect.set_options(timeout=PATIENCE_MS)


class Lab:
    """Pages and servers of one test. Whatever a page complains about in its console is an error of the test."""

    def __init__(self, background: Background, browser: Browser) -> None:
        self.background = background
        self._browser = browser
        self._open = AsyncExitStack()
        self.complaints: list[str] = []
        self.requests_may_fail = False  # the browser itself complains about those

    async def serve(self, agent: Agent, *args: Any, **options: Any) -> Served:
        return await self._open.enter_async_context(serving(agent, *args, **options))

    async def page(self, url: str, **options: Any) -> Page:
        """A tab in a window of its own."""
        context = await self._browser.new_context(**{"viewport": WIDE, **options})
        self._open.push_async_callback(context.close)
        return await self.tab(context, url)

    async def tab(self, context: BrowserContext, url: str) -> Page:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        await page.goto(url)
        return page

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and not (self.requests_may_fail and text.startswith("Failed to load resource")):
            self.complaints.append(text)

    async def end(self) -> None:
        await self._open.aclose()


async def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png")


async def say(page: Page, text: str) -> None:
    """Write a message and send it with Enter, as soon as there is a session to say it to."""
    await expect(page.locator("#connection")).to_have_text("connected")
    await page.locator("#prompt").fill(text)
    await page.locator("#prompt").press("Enter")


def stop_button(page: Page) -> Locator:
    return page.locator("#stop")


async def is_running(page: Page) -> None:
    """Stop stands in the place of Send."""
    await expect(stop_button(page)).to_be_visible()
    await expect(stop_button(page)).to_be_enabled()
    await expect(stop_button(page)).to_have_text("Stop")
    await expect(page.locator("#send")).to_be_hidden()


async def is_idle(page: Page) -> None:
    await expect(page.locator("#send")).to_be_visible()
    await expect(stop_button(page)).to_be_hidden()


async def listeners(page: Page) -> int:
    """How many handlers of keys the document has: asked of the browser itself."""
    client = await page.context.new_cdp_session(page)
    found = await client.send("Runtime.evaluate", {"expression": "document"})
    told = await client.send("DOMDebugger.getEventListeners", {"objectId": found["result"]["objectId"]})
    await client.detach()
    return sum(one["type"] == "keydown" for one in told["listeners"])


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Background, Browser]]:
    """One browser for all tests of this process."""
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with Background() as background:
        playwright = background.enter(async_playwright())
        launching = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        browser = background.run(launching)
        yield background, browser
        background.run(browser.close())


@pytest.fixture
def lab(chromium: tuple[Background, Browser]) -> Iterator[Lab]:
    made = Lab(*chromium)
    yield made
    made.background.run(made.end())
    assert made.complaints == []
