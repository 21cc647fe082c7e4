"""Owns the tests of the page's conversation, in a real browser: what is said, what tools do, what is asked."""

import asyncio

from playwright.async_api import expect

from safepoint import Retry
from safepoint.agent import Agent, ToolContext, tool
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, picture, say  # noqa: F401
from tests.kit.servers import ControlledModel


@in_background
async def test_an_answer_streams_in_as_markdown(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "hello **you**")
    await expect(page.locator(".message")).to_have_text("hello **you**")  # what people write stays as it is
    await is_running(page)
    faucet.say("## A title\n\nSome *text* and `code`.\n\n- one\n")
    await expect(page.locator(".answer h2")).to_have_text("A title")
    await expect(page.locator(".answer li")).to_have_text("one")
    faucet.say("- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    await expect(page.locator(".answer li")).to_have_count(2)
    await picture(page, "streaming")
    faucet.end("\n```python\nprint('x')\n```\n")
    await is_idle(page)
    await expect(page.locator(".answer pre code")).to_have_text("print('x')\n")
    await expect(page.locator(".answer td")).to_have_count(2)
    await expect(page.locator("#announcer")).to_have_text("The answer is complete.")


@in_background
async def test_tools_show_their_progress_and_sub_agents_are_nested(lab: Lab) -> None:  # noqa: F811
    outer, inner, released = ControlledModel(), ControlledModel(), asyncio.Event()

    @tool
    async def look(query: str, ctx: ToolContext) -> str:
        """Look for something."""
        ctx.progress("page 3 of 10", 0.3)
        await released.wait()
        return f"all about {query}"

    helper = Agent(inner, tools=[look], name="researcher")
    served = await lab.serve(Agent(outer, tools=[helper.as_tool(), look], name="boss"))
    page = await lab.page(served.url)
    await say(page, "find out")
    outer.call("researcher", prompt="owls")
    inner.say("I will look.")
    inner.call("look", query="owls")
    child = page.locator("details.tool", has=page.locator("summary strong", has_text="researcher"))
    await expect(child).to_have_attribute("open", "")
    nested = child.locator("details.tool")
    await expect(nested.locator("summary strong")).to_have_text("look")
    await expect(nested.locator("summary .state")).to_have_text("running")
    await expect(nested.locator(".inside > span")).to_have_text("page 3 of 10")
    await expect(nested.locator("progress")).to_have_attribute("value", "0.3")
    await expect(child.locator(".inside > .answer")).to_have_text("I will look.")
    await picture(page, "nested")
    released.set()
    # The call inside has the same id as the one around it: only the one inside is done.
    await expect(nested.locator("summary .state")).to_have_text("done")
    await expect(child.locator("> summary .state")).to_have_text("running")
    inner.end("Owls are birds.")
    await expect(child.locator("> summary .state")).to_have_text("done")
    outer.end("They are birds.")
    await is_idle(page)
    await expect(page.locator(".items > .answer")).to_have_text("They are birds.")


@in_background
async def test_questions_and_approvals_are_cards_that_a_person_answers(lab: Lab) -> None:  # noqa: F811
    faucet, ticking = ControlledModel(), asyncio.Event()

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return await ctx.ask_user("Which colour?")

    @tool
    async def tick(ctx: ToolContext) -> str:
        """Make progress all the time, so that the page is drawn again and again."""
        while not ticking.is_set():
            ctx.progress("tick")
            await asyncio.sleep(0.01)  # real time: the page draws once per frame
        return "ticked"

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    served = await lab.serve(Agent(faucet, tools=[ask, pay, tick]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("ask", "tick")
    card = page.locator(".card")
    await expect(card.locator("p")).to_have_text("Which colour?")
    answer = card.get_by_label("Your answer")
    await answer.press_sequentially("dark blue", delay=20)  # what is typed stays while the page is drawn
    await expect(answer).to_be_focused()
    await picture(page, "question")
    await answer.press("Enter")
    await expect(card).to_contain_text("Answered: dark blue")
    await expect(card).to_have_class("card over")
    ticking.set()
    faucet.call("pay")
    approval = page.locator(".card:not(.over)")
    await expect(approval).to_contain_text("Allow pay({})?")
    await approval.get_by_role("button", name="allow").click()
    await expect(page.locator(".card").nth(1)).to_contain_text("Answered: allow")
    faucet.end("done")
    await is_idle(page)
    await expect(page.locator("details.tool", has_text="pay")).to_contain_text("paid")


@in_background
async def test_a_stop_withdraws_the_question_and_denies_the_approval(lab: Lab) -> None:  # noqa: F811
    faucet, paid = ControlledModel(), []

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return await ctx.ask_user("Which colour?")

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        paid.append(True)
        return "paid"

    served = await lab.serve(Agent(faucet, tools=[ask, pay]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("ask", "pay")
    await expect(page.locator(".card form")).to_have_count(2)
    await page.locator("#stop").click()
    await expect(page.locator(".end.aborted p")).to_have_text("You stopped this turn.")
    await expect(page.locator(".card form")).to_have_count(0)
    await expect(page.get_by_text("Withdrawn.")).to_have_count(2)
    await expect(page.locator("details.tool", has_text="pay").locator(".state")).to_have_text("not started")
    await picture(page, "withdrawn")
    assert paid == []


@in_background
async def test_a_new_message_takes_the_place_of_an_answer(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return await ctx.ask_user("Which colour?")

    served = await lab.serve(Agent(faucet, tools=[ask]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("ask")
    await expect(page.locator(".card form")).to_be_visible()
    await say(page, "something else")
    await expect(page.locator(".end.aborted p")).to_have_text("This turn was interrupted by your next message.")
    faucet.end("fine")
    await is_idle(page)


@in_background
async def test_what_waits_can_be_edited_removed_and_sent_now(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "first")
    await is_running(page)
    for text in ("second", "third", "fourth"):
        await say(page, text)
    rows = page.locator("#waiting .row")
    await expect(page.locator("#waiting h2")).to_have_text("Waiting (3)")
    await expect(rows.locator("span")).to_have_text(["second", "third", "fourth"])
    await rows.nth(0).get_by_role("button", name="Edit").click()
    field = page.get_by_label("Edit message")
    await expect(field).to_be_focused()
    await field.fill("second, better")
    faucet.say("a word that is drawn meanwhile")
    await expect(page.locator(".answer")).to_have_text("a word that is drawn meanwhile")
    await expect(field).to_have_value("second, better")
    await field.press("Enter")
    await expect(rows.nth(0).locator("span")).to_have_text("second, better")
    await picture(page, "queue")
    await rows.nth(1).get_by_role("button", name="Remove").click()
    await expect(rows.locator("span")).to_have_text(["second, better", "fourth"])
    await rows.nth(1).get_by_role("button", name="Send now").click()
    await expect(page.locator(".message")).to_have_text(["first", "fourth"])
    await expect(page.locator(".end.aborted p")).to_have_text("This turn was interrupted by your next message.")
    faucet.end("to the fourth")
    await expect(page.locator(".message")).to_have_text(["first", "fourth", "second, better"])
    await expect(page.locator("#waiting")).to_be_hidden()
    faucet.end("to the second")
    await is_idle(page)


@in_background
async def test_a_message_that_could_not_be_sent_is_given_back(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "first")
    await is_running(page)
    await say(page, "second")
    row = page.locator("#waiting .row")
    await expect(row).to_have_count(1)
    served.app.drain()  # from here on nothing new is taken
    await row.get_by_role("button", name="Send now").click()
    await expect(page.locator(".toast.error")).to_contain_text("shutting down")
    await expect(page.locator("#prompt")).to_have_value("second")


@in_background
async def test_sessions_stand_in_a_list_and_each_has_its_own_conversation(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet, name="helper"))
    page = await lab.page(served.url)
    await say(page, "in the first")
    faucet.end("one")
    await expect(page.locator(".answer")).to_have_text("one")
    first = page.url
    await page.get_by_role("button", name="New session").click()
    await expect(page.locator("#session-list li")).to_have_count(2)
    await expect(page.locator(".turn")).to_have_count(0)
    await expect(page.locator("#prompt")).to_be_focused()
    assert page.url != first
    await say(page, "in the second")
    faucet.end("two")
    await expect(page.locator(".answer")).to_have_text("two")
    await page.locator("#session-list button[aria-current=false]").click()
    await expect(page.locator(".answer")).to_have_text("one")
    await page.go_back()
    await expect(page.locator(".answer")).to_have_text("two")


@in_background
async def test_a_tool_that_was_opened_stays_open_while_the_page_is_drawn(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()

    @tool
    async def quick() -> str:
        """Be quick."""
        return "the result"

    served = await lab.serve(Agent(faucet, tools=[quick]))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.call("quick")
    box = page.locator("details.tool")
    await expect(box.locator(".state")).to_have_text("done")
    await expect(box).not_to_have_attribute("open", "")
    await box.locator("summary").click()
    await expect(box.get_by_text("the result")).to_be_visible()
    faucet.say("more ", "words")
    await expect(page.locator(".answer")).to_have_text("more words")
    await expect(box.get_by_text("the result")).to_be_visible()
    await expect(box.locator("summary")).to_be_focused()
    faucet.end()
    await is_idle(page)
    await expect(box.get_by_text("the result")).to_be_visible()


@in_background
async def test_an_answer_that_broke_off_is_taken_off_the_screen(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet, retry=Retry(attempts=2, delay=0.01)))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.say("half an ans")
    await expect(page.locator(".answer")).to_have_text("half an ans")
    faucet.break_down("the line is dead")
    faucet.end("a whole answer")
    await expect(page.locator(".answer")).to_have_text("a whole answer")
    await is_idle(page)
