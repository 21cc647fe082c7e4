"""Owns the tests that look inside, beside those of `tests/server/test_access.py`.

Owns the tests of who may come in: hosts, origins, the token, the size of a body.
"""

import hmac
from typing import Any

import pytest

from safepoint.server.access import AccessControl


async def asked(door: AccessControl, path: str = "/api/sessions", **headers: str) -> tuple[int, bytes]:
    """What the door says to a request with these headers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    given = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    await door({"type": "http", "path": path, "headers": given}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def door(
    token: str | None = None, hosts: list[str] | None = None, body_bytes: int = 100, any_host: bool = False
) -> AccessControl:
    return AccessControl(inside, token=token, hosts=None if any_host else hosts or [], body_bytes=body_bytes)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8420", "[::1]:8420", "LOCALHOST:1", "my.name:80"])
async def test_it_is_called_by_its_own_names(host: str):
    assert await asked(door(hosts=["My.Name"]), host=host) == (200, b"in")


@pytest.mark.parametrize("host", ["evil.example", "", "localhost.evil.example", "127.0.0.1.nip.io", "[::1", "[", "::1"])
async def test_another_name_is_a_421(host: str):
    status, told = await asked(door(), host=host)
    assert (status, b"call it by its own name" in told) == (421, True)


async def test_any_name_will_do_where_that_is_asked_for():
    assert await asked(door(any_host=True), host="anything") == (200, b"in")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "http://[", "", "//localhost"])
async def test_a_page_from_elsewhere_is_a_403(origin: str):
    status, _ = await asked(door(), host="localhost:8420", origin=origin)
    assert status == 403


async def test_our_own_page_may_come_in():
    assert await asked(door(), host="localhost:8420", origin="http://LOCALHOST:8420") == (200, b"in")


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer wrong", "secret", "Basic secret", "Bearer secret2", "Bearer \u00fc", "Bearer  secret"],
)
async def test_without_the_token_it_is_a_401(given: str):
    status, told = await asked(door(token="secret"), host="localhost", authorization=given)
    assert (status, b"token is needed" in told) == (401, True)


@pytest.mark.parametrize("given", ["Bearer secret", "bearer secret"])
async def test_with_the_token_it_comes_in(given: str):
    assert await asked(door(token="secret"), host="localhost", authorization=given) == (200, b"in")


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/healthz", "/favicon.ico"])
async def test_the_page_itself_needs_no_token(path: str):
    assert await asked(door(token="secret"), path, host="localhost") == (200, b"in")


@pytest.mark.parametrize("path", ["/api/sessions", "/metrics", "/openapi.json", "//", "/static"])
async def test_everything_else_needs_it(path: str):
    status, _ = await asked(door(token="secret"), path, host="localhost")
    assert status == 401


async def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    compared = []
    real = hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    await asked(door(token="secret"), host="localhost", authorization="Bearer s")
    await asked(door(token="secret"), host="localhost")
    assert compared == [(b"s", b"secret"), (b"", b"secret")]


@pytest.mark.parametrize(("length", "status"), [("100", 200), ("101", 413), ("-1", 400), ("1_0", 400), ("x", 400)])
async def test_a_body_that_says_that_it_is_too_large_is_refused_unread(length: str, status: int):
    assert (await asked(door(), host="localhost", content_length=length))[0] == status
