"""Owns the tests of talking to a server from the command line, also to what is none."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from safepoint.cli.client import Client, ServerRefused, ServerUnreachable
from safepoint.errors import UsageError


class Odd(BaseHTTPRequestHandler):
    """Something that answers, and is not ours."""

    def do_GET(self) -> None:
        status, body = {
            "/html": (200, b"<h1>hello</h1>"),
            "/empty": (200, b""),
            "/json": (200, b'{"a": 1}'),
            "/text": (200, b"plain"),
            "/refused": (409, b'{"error": "not now"}'),
            "/gateway": (502, b"<h1>Bad gateway</h1>"),
            "/silent": (404, b""),
            "/list": (400, b"[1]"),
            "/echo": (200, repr([self.headers["authorization"], self.headers["accept"]]).encode()),
        }[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.rfile.read(length))

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_answers_are_read_as_what_they_are(url: str):
    client = Client(url, "secret")
    assert client.call("GET", "/json") == {"a": 1}
    assert client.call("GET", "/empty") is None
    assert client.call("GET", "/text", accept="text/plain") == "plain"
    assert client.call("POST", "/any", {"b": "ü"}) == {"b": "ü"}
    assert client.call("GET", "/echo", accept="text/plain") == "['Bearer secret', 'text/plain']"


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/refused", 409, "not now"),
        ("/gateway", 502, "<h1>Bad gateway</h1>"),
        ("/silent", 404, "Not Found"),
        ("/list", 400, "[1]"),
    ],
)
def test_a_refusal_says_why(url: str, path: str, status: int, told: str):
    with pytest.raises(ServerRefused, match=r".") as refused:
        Client(url).call("GET", path)
    assert (refused.value.status, str(refused.value)) == (status, told)


def test_what_is_no_server_of_ours_is_said(url: str):
    with pytest.raises(ServerUnreachable, match="not a Safepoint server"):
        Client(url).call("GET", "/html")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_nobody_there_is_said(url: str):
    with pytest.raises(ServerUnreachable, match="no server answers"):
        Client(url).call("GET", "/")


@pytest.mark.parametrize("url", ["nonsense", "", "http://127.0.0.1:port"])
def test_an_address_that_is_none_is_a_wrong_call(url: str):
    with pytest.raises(UsageError, match="not the address of a server"):
        Client(url).call("GET", "/")
