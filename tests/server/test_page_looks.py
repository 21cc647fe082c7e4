"""Owns the tests of the page for every eye, hand and screen, and of what hostile text can do there: nothing."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Page, expect

from safepoint.agent import Agent, ToolContext, tool
from tests.kit.background import in_background
from tests.kit.browser import (  # noqa: F401
    NARROW,
    WIDE,
    Lab,
    chromium,
    is_idle,
    is_running,
    lab,
    picture,
    say,
    stop_button,
)
from tests.kit.servers import ControlledModel

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<svg><a xlink:href='javascript:alert(1)'><text y=20>x</text></a></svg>",
    "[click](javascript:alert(1))",
    "[click](&#106;avascript:alert(1))",
    "[click](jAvAsCrIpT&colon;alert(1))",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[click](vbscript:alert(1))",
    "<a href='javascript:alert(1)' onclick='alert(1)'>click</a>",
    '![x](x" onerror="alert(1))',
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<object data='javascript:alert(1)'></object><embed src='javascript:alert(1)'>",
    "<form action='javascript:alert(1)'><button>x</button><input autofocus onfocus=alert(1)></form>",
    "<button data-do='forget' data-turn='t'>Click me</button>",
    "<body onload=alert(1)><style>@import 'javascript:alert(1)'; * { display: none }</style>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<details open ontoggle=alert(1)><summary>x</summary></details>",
    "<base href='https://evil.example/'><meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<div id='prompt' name='turns' class='card'>clobber</div><a id=stop></a><form id=composer></form>",
    "```html\n<script>alert(1)</script>\n```",
    "`<script>alert(1)</script>`",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
]


@pytest.mark.parametrize("policy", [True, False], ids=["as it is", "without the policy of the page"])
@in_background
async def test_hostile_text_never_runs_wherever_it_comes_from(lab: Lab, policy: bool) -> None:  # noqa: F811
    faucet, hostile = ControlledModel(), "\n\n".join(HOSTILE)
    lab.requests_may_fail = True

    @tool
    async def relay(text: str, ctx: ToolContext) -> str:
        """Repeat it in every place there is."""
        ctx.progress(text, 0.5)
        await ctx.ask_user(text)
        return text

    served = await lab.serve(Agent(faucet, tools=[relay], name="<img src=x onerror=alert(1)>"))
    page = await lab.page(served.url, bypass_csp=not policy)
    ran: list[str] = []
    asked: list[str] = []

    async def dismiss(dialog: Any) -> None:
        ran.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("request", lambda request: asked.append(request.url))
    await say(page, hostile)
    faucet.say(*(hostile[at : at + 7] for at in range(0, len(hostile), 7)))  # also cut in the middle of a tag
    faucet.call("relay", text=hostile)
    await page.get_by_label("Your answer").fill(hostile)
    await page.get_by_role("button", name="Answer").click()
    faucet.break_down(hostile)
    await expect(page.locator(".end.failed")).to_be_visible()
    await page.locator("details.tool > summary").click()
    links = page.locator(".turn a")
    for number in range(await links.count()):
        assert str(await links.nth(number).get_attribute("href") or "").split(":")[0] not in ("javascript", "data")
        await links.nth(number).click(force=True, no_wait_after=True)
    bad = "script, iframe, object, embed, svg, form, style, base, meta, math, img, input, button, [onclick], [onload]"
    await expect(page.locator(".answer").locator(bad)).to_have_count(0)
    await expect(page.locator(".answer [id], .answer [class], .answer [name], .answer [data-do]")).to_have_count(0)
    await expect(page.locator("#prompt")).to_be_visible()
    assert ran == []
    assert [url for url in asked if not url.startswith(served.url)] == []
    # The sanitizer reads it in a document that never runs anything; the policy reports what it meets there.
    lab.complaints[:] = [told for told in lab.complaints if "Content Security Policy" not in told]


@in_background
async def test_links_open_elsewhere_and_tell_nothing(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    faucet.end("[a link](https://example.com)")
    link = page.locator(".answer a")
    await expect(link).to_have_attribute("target", "_blank")
    await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["wide", "narrow"])
@in_background
async def test_every_state_can_be_read_in_every_light_and_width(lab: Lab, scheme: Any, width: str) -> None:  # noqa: F811
    faucet, released = ControlledModel(), asyncio.Event()

    @tool(on_abort="cooperate", abandon_after=0.05)
    async def crawl(ctx: ToolContext) -> str:
        """Crawl."""
        ctx.progress("page 3 of 10", 0.3)
        await released.wait()
        return "crawled"

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return await ctx.ask_user("Which colour should the switch be?")

    served = await lab.serve(Agent(faucet, tools=[crawl, ask], name="demo"))
    size: Any = WIDE if width == "wide" else NARROW
    page = await lab.page(served.url, color_scheme=scheme, viewport=size)
    await say(page, "look it up, and ask me if you have to")
    faucet.say("I will look at **all** of it, step by step; `crawl` first.\n\n- one\n- two\n")
    faucet.call("crawl", "ask")
    await expect(page.locator(".card form")).to_be_visible()
    await say_more(page)
    await picture(page, f"running-{scheme}-{width}")
    await no_sideways_scroll(page, size["width"])
    await stop_button(page).click()
    await expect(page.locator(".end.aborted")).to_be_visible()
    await expect(page.locator("#waiting")).to_be_hidden()
    await picture(page, f"stopped-{scheme}-{width}")
    await no_sideways_scroll(page, size["width"])
    ink, ground = await colours(page, ".end.aborted > p", ".end.aborted")
    assert contrast(ink, ground) >= 4.5
    assert contrast(*await colours(page, ".message", ".message")) >= 4.5
    assert contrast(*await colours(page, ".where", "body")) >= 4.5
    if width == "narrow":
        await expect(page.locator("#new-session")).to_be_hidden()
        await page.locator("#toggle-sessions").click()
        await expect(page.locator("#toggle-sessions")).to_have_attribute("aria-expanded", "true")
        await expect(page.locator("#new-session")).to_be_visible()
        await picture(page, f"sessions-{scheme}-{width}")
    released.set()


async def say_more(page: Page) -> None:
    """A message that waits would take the place of the question: only write it."""
    await page.locator("#prompt").fill("and then")


async def no_sideways_scroll(page: Page, width: int) -> None:
    for name in ("body", "#turns", "#composer"):
        box = await page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width + 1, name


async def colours(page: Page, ink: str, ground: str) -> tuple[list[float], list[float]]:
    """As the browser has computed them."""
    client = await page.context.new_cdp_session(page)
    await client.send("DOM.enable")
    await client.send("CSS.enable")
    root = (await client.send("DOM.getDocument"))["root"]["nodeId"]
    found = []
    for selector, name in ((ink, "color"), (ground, "background-color")):
        node = await client.send("DOM.querySelector", {"nodeId": root, "selector": selector})
        styles = await client.send("CSS.getComputedStyleForNode", {"nodeId": node["nodeId"]})
        value = next(one["value"] for one in styles["computedStyle"] if one["name"] == name)
        found.append([float(part) for part in value.partition("(")[2].rstrip(")").split(",")[:3]])
    await client.detach()
    return found[0], found[1]


def contrast(one: list[float], other: list[float]) -> float:
    """As WCAG has it; 4.5 is enough for text."""

    def luminance(colour: list[float]) -> float:
        parts = [part / 255 for part in colour]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@in_background
async def test_the_message_box_does_not_move_while_a_turn_runs(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await expect(page.locator("#connection")).to_have_text("connected")
    idle, send = await place(page), await right_edge(page, "#send")
    await say(page, "go")
    await is_running(page)
    assert await place(page) == idle
    assert await right_edge(page, "#stop-more") == send
    for number in range(30):
        faucet.say(f"Paragraph {number} of a long answer.\n\n")
        if number % 10 == 9:
            await expect(page.locator(".answer")).to_contain_text(f"Paragraph {number} ")
            assert await place(page) == idle
    await expect(page.locator(".answer p").last).to_be_in_viewport()  # it follows the end
    await page.locator("#turns").hover()
    await page.mouse.wheel(0, -3000)
    first = page.locator(".answer p").first
    await expect(first).to_be_in_viewport()
    faucet.say("More text, while the reader is further up.")
    await expect(page.locator(".answer")).to_contain_text("further up")
    await expect(first).to_be_in_viewport()  # and leaves the reader alone
    await stop_button(page).click()
    await is_idle(page)
    assert await place(page) == idle


async def place(page: Page) -> Any:
    return [await page.locator(name).bounding_box() for name in ("#composer", "#prompt")]


async def right_edge(page: Page, name: str) -> float:
    box = await page.locator(name).bounding_box()
    assert box is not None
    return box["x"] + box["width"]


@in_background
async def test_everything_can_be_done_with_the_keyboard(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    served = await lab.serve(Agent(faucet, tools=[pay]))
    page = await lab.page(served.url)
    await expect(page.locator("#connection")).to_have_text("connected")
    await expect(page.locator("#prompt")).to_be_focused()
    await page.keyboard.type("line one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("line two")
    await page.keyboard.press("Enter")
    await expect(page.locator(".message")).to_have_text("line one\nline two")
    faucet.call("pay")
    await expect(page.locator(".card form")).to_be_visible()
    await page.keyboard.press("Shift+Tab")
    await expect(page.get_by_role("button", name="deny")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".card")).to_contain_text("Answered: deny")
    await is_running(page)
    await page.locator("#prompt").focus()
    await page.keyboard.press("Tab")
    await expect(stop_button(page)).to_be_focused()
    await page.keyboard.press("Space")
    await is_idle(page)
    await expect(page.locator("#prompt")).to_be_focused()
    # The buttons of the composer may change one frame before the ended turn is drawn with its own buttons.
    await expect(page.get_by_role("button", name="Forget this turn")).to_be_visible()
    await page.keyboard.press("Shift+Tab")
    await expect(page.get_by_role("button", name="Forget this turn")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await expect(page.get_by_role("button", name="Continue")).to_be_focused()
    await page.keyboard.press("Enter")
    await is_running(page)
    faucet.end("done")
    await is_idle(page)


@in_background
async def test_screen_readers_are_told(lab: Lab) -> None:  # noqa: F811
    faucet = ControlledModel()
    served = await lab.serve(Agent(faucet))
    page = await lab.page(served.url)
    await say(page, "go")
    await is_running(page)
    await expect(page.get_by_role("log", name="Conversation")).to_be_visible()
    await expect(page.locator("article")).to_have_attribute("aria-busy", "true")
    await expect(page.locator("#announcer")).to_have_attribute("aria-live", "polite")
    await expect(page.locator("#toasts")).to_have_attribute("aria-live", "polite")
    await expect(page.locator("#stop-more")).to_have_attribute("aria-expanded", "false")
    await stop_button(page).click()
    await expect(page.locator("#announcer")).to_have_text("You stopped this turn.")
    await expect(page.locator("article")).to_have_attribute("aria-busy", "false")
    await expect(page.get_by_role("region", name="How the turn ended")).to_be_visible()
    await expect(page.get_by_role("navigation", name="Sessions")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    unnamed = "button:not(:has-text('')), input:not([aria-label])"
    await expect(page.locator(unnamed)).to_have_count(0)
