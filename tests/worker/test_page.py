"""The page over several servers and workers: whoever presses Stop, wherever, ends that turn, and everybody sees it."""

import re
from contextlib import AsyncExitStack

from playwright.async_api import expect

from safepoint.worker import MemoryBroker, NatsBroker, RemoteHost, Worker
from tests.kit.background import in_background
from tests.kit.browser import Lab, chromium, is_idle, is_running, lab, picture, say, stop_button  # noqa: F401
from tests.kit.nats import free_port, new_namespace, shared_url
from tests.kit.servers import serving_host
from tests.kit.worker_process import worker_process
from tests.worker.agents import helper

WORKERS = 3


@in_background
async def test_stop_on_one_server_ends_the_turn_that_was_started_on_another(lab: Lab) -> None:  # noqa: F811
    broker = NatsBroker(shared_url(), new_namespace(), lease=2.0)
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(Worker(helper, broker, name=f"w{n}")) for n in range(WORKERS)]
        there = await stack.enter_async_context(serving_host(RemoteHost(broker)))
        here = await stack.enter_async_context(serving_host(RemoteHost(broker)))
        theirs = await lab.page(there.url)
        await say(theirs, "talk")
        await is_running(theirs)
        await expect(theirs.locator("main")).to_contain_text("half an answer")
        ours = await lab.page(here.url)
        await expect(ours.locator("main")).to_contain_text("half an answer")
        await is_running(ours)
        await stop_button(ours).click()
        for page in (ours, theirs):
            await expect(page.locator(".end.aborted > p")).to_have_text("You stopped this turn.")
            await expect(page.locator("main")).to_contain_text("half an answer")
            await is_idle(page)
        await theirs.reload()
        await expect(theirs.locator(".end.aborted > p")).to_have_text("You stopped this turn.")
        await picture(theirs, "stopped-on-another-server")
        await say(theirs, "and now?")
        await expect(ours.locator("main")).to_contain_text("done")
        assert sum(worker.stats.taken for worker in workers) >= 1
        assert sum(worker.stats.fenced for worker in workers) == 0
        await lab.end()  # the pages go before their servers do


@in_background
async def test_a_stop_that_finds_no_worker_says_so_and_is_kept(lab: Lab) -> None:  # noqa: F811
    url, namespace = shared_url(), new_namespace()
    async with serving_host(RemoteHost(NatsBroker(url, namespace, lease=1.0))) as served:
        async with worker_process(url, namespace, "--lease", "1") as worker:
            page = await lab.page(served.url)
            await say(page, "talk")
            await expect(page.locator("main")).to_contain_text("half an answer")
            await worker.kill()
        await stop_button(page).click()
        await expect(page.locator(".toast")).to_contain_text("no worker answers for it")
        await expect(stop_button(page)).to_have_text("Stopping…")
        await picture(page, "no-worker-answers")
        async with worker_process(url, namespace, "--lease", "1"):
            await expect(page.locator(".end.aborted > p")).to_have_text("You stopped this turn.")
            await is_idle(page)
        await lab.end()


@in_background
async def test_a_message_that_no_worker_has_is_shown_as_waiting_and_can_be_taken_back(lab: Lab) -> None:  # noqa: F811
    lab.requests_may_fail = True  # the first visit finds no worker, and is told so
    broker = MemoryBroker(lease=2.0)
    async with serving_host(RemoteHost(broker)) as served:
        page = await lab.page(served.url)
        await expect(page.locator(".toast.error")).to_contain_text("there is no worker")
        async with Worker(helper, broker, idle_for=0.05):
            await say(page, "hello")
            await expect(page.locator("main")).to_contain_text("done")
        await say(page, "is anybody there?")
        await say(page, "never mind")
        await expect(page.locator("#waiting .row")).to_have_count(2)
        await expect(page.locator("#waiting")).to_contain_text("no worker has taken it yet")
        await page.reload()
        await expect(page.locator("#waiting .row")).to_have_count(2)
        await page.locator("#waiting .row", has_text="never mind").get_by_role("button", name="Remove").click()
        await expect(page.locator("#waiting .row")).to_have_count(1)
        await page.reload()
        await expect(page.locator("#waiting .row")).to_have_text([re.compile("is anybody there")])
        async with Worker(helper, broker, idle_for=0.05):
            await expect(page.locator("#waiting .row")).to_have_count(0)
            await expect(page.locator("#turns")).to_contain_text("is anybody there?")
            await is_idle(page)
            await expect(page.locator("#turns")).not_to_contain_text("never mind")
        await lab.end()


async def test_a_broker_that_cannot_be_reached_is_no_fault_of_the_request() -> None:
    host = RemoteHost(NatsBroker(f"nats://127.0.0.1:{free_port()}"))
    async with serving_host(host) as served:
        answer = await served.call("GET", "/api/sessions")
        assert answer.status_code == 503
        assert "cannot connect to NATS" in answer.json()["error"]
