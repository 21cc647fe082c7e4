"""Owns the tests of the web application around the API: the page, its files, its headers, its health."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from safepoint import Aborted
from safepoint.agent import Agent
from safepoint.events import TextStreamed, TurnEnded
from safepoint.models.scripted import ScriptedModel, Stall
from safepoint.server import App, create_app
from safepoint.session import LocalHost, SessionEnded, SqliteStore
from tests.kit.hosts import end_of, seen
from tests.kit.servers import ControlledModel, serving
from tests.kit.sessions import stored
from tests.server.own_server import OwnServer


async def test_the_page_and_its_files_are_there_and_may_run_nothing_foreign():
    async with serving(Agent(ControlledModel())) as served:
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
    async with serving(Agent(ControlledModel())) as served:
        for name in ("", "static/main.js", "static/style.css", "static/api.js", "static/view.js", "static/markdown.js"):
            text = (await served.call("GET", f"/{name}")).text
            assert "http://" not in text.replace("http://www.w3.org", ""), name
            assert "https://" not in text, name


@pytest.mark.parametrize(
    "path", ["/static/../api.py", "/static/%2e%2e/app.py", "/static/", "/nothing", "/static/no.js"]
)
async def test_nothing_else_is_served(path: str):
    async with serving(Agent(ControlledModel())) as served:
        assert (await served.call("GET", path)).status_code == 404


async def test_it_says_that_it_lives():
    async with serving(Agent(ControlledModel())) as served:
        answer = await served.call("GET", "/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_a_server_of_ones_own_closes_the_host_and_its_next_start_goes_on(tmp_path: Path):
    """By ASGI's lifespan protocol, as any server speaks it."""
    store = tmp_path / "s.db"
    answers: list[Any] = [["half", Stall()], "whole"]
    for life, answer in enumerate(answers):
        host = LocalHost(Agent(ScriptedModel(answer), name="helper"), SqliteStore(store), resume=True)
        async with life_of(create_app(host, within=0.0)):
            if life == 0:
                await host.create("s")
                await host.send("s", "hi", turn_id="t")
                await seen(host, "s", TextStreamed)
            else:
                assert (await end_of(host, "s", "t")).status == "completed"
        with pytest.raises(SessionEnded, match="the host is closed"):
            await host.create("another")
    kept = SqliteStore(store)
    ends = [one for one in await stored(kept) if isinstance(one, TurnEnded)]
    assert [(one.outcome.status, one.resumable) for one in ends] == [("aborted", True), ("completed", False)]
    first = ends[0].outcome
    assert isinstance(first, Aborted)
    assert first.reason.kind == "shutdown"
    await kept.close()


async def test_while_the_server_ends_it_takes_no_new_work():
    app = create_app(LocalHost(Agent(ScriptedModel())), within=0.0)
    async with life_of(app):
        pass
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    scope = {"type": "http", "method": "POST", "path": "/api/sessions", "headers": [(b"host", b"127.0.0.1")]}
    await app({**scope, "query_string": b"", "root_path": "", "raw_path": b"", "scheme": "http"}, receive, send)
    assert sent[0]["status"] == 503


@asynccontextmanager
async def life_of(app: App) -> AsyncIterator[None]:
    """The life of an application, as a server makes it."""
    asked: asyncio.Queue[Any] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()

    async def ask(name: str) -> None:
        asked.put_nowait({"type": f"lifespan.{name}"})
        assert (await told.get())["type"] == f"lifespan.{name}.complete"

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    async with asyncio.TaskGroup() as group:
        group.create_task(app(scope, asked.get, told.put))
        await ask("startup")
        yield
        await ask("shutdown")


def test_a_uvicorn_of_ones_own_closes_the_host_on_sigterm_also_while_somebody_reads(tmp_path: Path):
    db = tmp_path / "s.db"
    with OwnServer(db) as server:
        server.call("POST", "/api/sessions", {"id": "s"})
        server.call("POST", "/api/sessions/s/messages", {"text": "hi", "turn_id": "t"})
        with server.reading("text_streamed") as lines:
            server.process.send_signal(signal.SIGTERM)
            list(lines)  # the stream ends in order: a response that is cut off raises here
            assert server.process.wait(20) in (0, -signal.SIGTERM)
    with OwnServer(db, "whole") as server:
        server.until("turn_ended", after_kind="session_closed")
        turn = server.call("GET", "/api/sessions/s/turns/t")
        assert (turn["status"], "continued_by" in turn) == ("completed", True)
    events = asyncio.run(everything(db))
    first = next(one.outcome for one in events if isinstance(one, TurnEnded))
    assert isinstance(first, Aborted)
    assert first.reason.kind == "shutdown"


async def everything(db: Path) -> list[Any]:
    store = SqliteStore(db)
    events = await stored(store)
    await store.close()
    return events
