"""Owns the tests of who may come in: hosts, origins, the token, the size of a body."""

import asyncio
from typing import Any

from safepoint.agent import Agent
from safepoint.server import Limits
from tests.kit.servers import ControlledModel, serving


async def test_a_body_that_grows_too_large_is_refused_and_changes_nothing():
    async def endless() -> Any:
        for _ in range(30):
            yield b" " * 100

    async with serving(Agent(ControlledModel()), limits=Limits(body_bytes=1000)) as served:
        answer = await served.call("POST", "/api/sessions", content=endless())
        assert (answer.status_code, "too large" in answer.text) == (413, True)
        declared = await served.call("POST", "/api/sessions", content=b" " * 1001)
        assert (declared.status_code, "larger than 1000" in declared.text) == (413, True)
        assert (await served.call("GET", "/api/sessions")).json() == []


async def test_strangers_are_refused_by_the_real_server():
    async with serving(Agent(ControlledModel()), token="secret") as served:
        assert (await served.call("GET", "/api/sessions")).json() == []
        nobody = {"authorization": ""}
        answer = await served.call("POST", "/api/sessions", {"id": "a"}, headers=nobody)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await served.call("POST", "/api/sessions", {}, headers={"host": "evil.example"})).status_code == 421
        assert (await served.call("POST", "/api/sessions", {}, headers={"origin": "http://evil"})).status_code == 403
        assert (await served.call("GET", "/", headers=nobody)).status_code == 200
        assert (await served.call("GET", "/api/sessions")).json() == []


async def test_a_broken_request_is_refused_and_the_server_lives():
    async with serving(Agent(ControlledModel())) as served:
        port = int(served.url.rpartition(":")[2])
        for raw in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"nonsense\r\n\r\n",
            b"POST /api/sessions HTTP/1.1\r\nhost: localhost\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw)
            if raw.endswith(b"\r\n\r\n"):
                assert (await reader.readline()).split()[1] in (b"400", b"421")
            writer.close()
            await writer.wait_closed()
        assert (await served.call("GET", "/healthz")).json() == {"status": "ok"}
