"""Owns the tests of calls that run side by side on the page, in a real browser: each has a card of its own."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Locator, Page, expect

from safepoint import AbortSignal
from safepoint.agent import Agent, Chunk, ModelRequest, ToolContext, tool
from safepoint.flow import END, Flow, NodeContext
from safepoint.messages import UserMessage
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, lab, picture, say, stop_button  # noqa: F401
from tests.kit.servers import ControlledModel


class ByPrompt:
    """A model that says to each prompt what the test lets out for it."""

    name = "by-prompt"

    def __init__(self, **models: ControlledModel) -> None:
        self._models = models

    def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        prompt = next(message.text for message in request.messages if isinstance(message, UserMessage))
        return self._models[prompt].stream(request, signal=signal)


def card(page: Page, name: str, number: int = 0) -> Locator:
    """The card of a call of this tool, by its place among them."""
    return page.locator("details.tool", has=page.locator("> summary strong", has_text=name)).nth(number)


@in_background
async def test_two_calls_of_one_sub_agent_have_two_cards_with_words_of_their_own(lab: Lab) -> None:  # noqa: F811
    outer, alpha, beta = ControlledModel(), ControlledModel(), ControlledModel()
    released = asyncio.Event()

    @tool
    async def look(query: str, ctx: ToolContext) -> str:
        """Look for something."""
        ctx.progress(f"looking for {query}", 0.5)
        await released.wait()
        return f"all about {query}"

    researcher = Agent(ByPrompt(alpha=alpha, beta=beta), tools=[look], name="researcher")
    served = await lab.serve(Agent(outer, tools=[researcher.as_tool()], name="boss"))
    page = await lab.page(served.url)
    await say(page, "find out")
    outer.call_each("researcher", {"prompt": "alpha"}, {"prompt": "beta"})
    first, second = card(page, "researcher", 0), card(page, "researcher", 1)
    for number in range(3):  # word by word, from both in turn
        alpha.say(f"ALPHA{number} ")
        await expect(first.locator("> .inside > .answer")).to_contain_text(f"ALPHA{number}")
        beta.say(f"beta{number} ")
        await expect(second.locator("> .inside > .answer")).to_contain_text(f"beta{number}")
    await expect(first.locator("> .inside > .answer")).to_have_text("ALPHA0 ALPHA1 ALPHA2")
    await expect(second.locator("> .inside > .answer")).to_have_text("beta0 beta1 beta2")
    alpha.call("look", query="owls")  # both calls have the same id, inside of calls with other ids
    beta.call("look", query="mice")
    await expect(first.locator("details.tool .inside > span")).to_have_text("looking for owls")
    await expect(second.locator("details.tool .inside > span")).to_have_text("looking for mice")
    await picture(page, "parallel-calls")
    await page.reload()
    await expect(first.locator("> .inside > .answer")).to_have_text("ALPHA0 ALPHA1 ALPHA2")
    await expect(second.locator("details.tool .inside > span")).to_have_text("looking for mice")
    released.set()
    await expect(second.locator("details.tool summary .state")).to_have_text("done")
    beta.end("beta is done")
    await expect(second.locator("> summary .state")).to_have_text("done")
    await expect(first.locator("> summary .state")).to_have_text("running")
    alpha.end("ALPHA is done")
    await expect(first.locator("> .inside > .answer").nth(1)).to_have_text("ALPHA is done")
    outer.end("Owls eat mice.")
    await is_idle(page)


@in_background
async def test_two_calls_of_one_tool_have_progress_questions_and_warnings_of_their_own(lab: Lab) -> None:  # noqa: F811
    model, released = ControlledModel(), asyncio.Event()

    @tool(requires_approval=True, warn_after=0.05)
    async def fetch(page: str, ctx: ToolContext) -> str:
        """Fetch a page."""
        ctx.progress(f"{page}: half way", 0.5)
        while page == "two" and not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass
        await asyncio.get_running_loop().create_future()
        return page

    served = await lab.serve(Agent(model, tools=[fetch]))
    page = await lab.page(served.url)
    await say(page, "fetch both")
    model.call_each("fetch", {"page": "one"}, {"page": "two"})
    first, second = card(page, "fetch", 0), card(page, "fetch", 1)
    await expect(first.locator(".card")).to_contain_text('Allow fetch({"page": "one"})?')
    await expect(second.locator(".card")).to_contain_text('Allow fetch({"page": "two"})?')
    await first.get_by_role("button", name="allow").click()
    await expect(first.locator(".inside > span")).to_have_text("one: half way")
    await expect(second.locator(".inside > span")).to_have_count(0)
    await second.get_by_role("button", name="allow").click()
    await expect(second.locator(".inside > span")).to_have_text("two: half way")
    await expect(first.locator(".inside > span")).to_have_text("one: half way")
    await stop_button(page).click()
    await expect(second.locator(".inside > .state-line")).to_contain_text("Still runs at ")
    await expect(first.locator(".inside > .state-line")).to_have_count(0)
    await expect(first.locator("> summary .state")).to_have_text("interrupted")
    await picture(page, "parallel-warnings")
    released.set()
    await expect(page.locator(".end.aborted")).to_be_visible()


@dataclass
class Question:
    """The state of a flow that asks two agents."""

    text: str = ""


@in_background
async def test_agents_side_by_side_inside_of_one_call_have_answers_of_their_own(lab: Lab) -> None:  # noqa: F811
    outer, left, right = ControlledModel(), ControlledModel(), ControlledModel()
    writer = Agent(ByPrompt(left=left, right=right), name="writer")
    flow: Flow[Question, Any] = Flow("report", start="both")

    @flow.node
    async def both(state: Question, ctx: NodeContext[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for side in ("left", "right"):
                group.create_task(writer(ctx, side))

    flow.route("both", END)
    served = await lab.serve(Agent(outer, tools=[tool(flow)]))
    page = await lab.page(served.url)
    await say(page, "go")
    outer.call("report", text="x")
    answers = card(page, "report").locator("> .inside > .answer")
    left.say("one ")
    await expect(answers.nth(0)).to_have_text("one")
    right.say("two ")
    await expect(answers.nth(1)).to_have_text("two")
    left.end("three")
    right.end("four")
    await expect(answers.nth(0)).to_have_text("one three")
    await expect(answers.nth(1)).to_have_text("two four")
    assert [await answers.nth(n).get_attribute("data-from") for n in (0, 1)] == [
        "report/both/writer",
        "report/both/writer#2",
    ]
    await picture(page, "parallel-agents-in-a-flow")
    outer.end("done")
    await is_idle(page)
