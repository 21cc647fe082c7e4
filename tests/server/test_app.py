"""Owns the tests of the web application around the API: the page, its files, its headers, its health."""

import pytest

from safepoint.agent import Agent
from tests.server.lab import Faucet, serving


async def test_the_page_and_its_files_are_there_and_may_run_nothing_foreign():
    async with serving(Agent(Faucet())) as served:
        page = await served.call("GET", "/")
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["cache-control"] == "no-store"
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        for name in (
            "main.js",
            "style.css",
            "vendor/marked.js",
            "vendor/purify.js",
            "vendor/LICENSE-marked",
            "icon.svg",
        ):
            assert (await served.call("GET", f"/static/{name}")).status_code == 200, name


async def test_the_page_names_no_other_host():
    async with serving(Agent(Faucet())) as served:
        for name in ("", "static/main.js", "static/style.css", "static/api.js", "static/view.js", "static/markdown.js"):
            text = (await served.call("GET", f"/{name}")).text
            assert "http://" not in text.replace("http://www.w3.org", ""), name
            assert "https://" not in text, name


@pytest.mark.parametrize(
    "path", ["/static/../api.py", "/static/%2e%2e/app.py", "/static/", "/nothing", "/static/no.js"]
)
async def test_nothing_else_is_served(path: str):
    async with serving(Agent(Faucet())) as served:
        assert (await served.call("GET", path)).status_code == 404


async def test_it_says_that_it_lives():
    async with serving(Agent(Faucet())) as served:
        answer = await served.call("GET", "/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
