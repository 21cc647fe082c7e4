"""The commands that ask a running server: `sessions`, `turns`, `stop` and `receipt`, and the client they use."""

import argparse
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ..errors import SafepointError, UsageError
from .style import table

__all__ = ["Client", "ServerRefused", "ServerUnreachable", "receipt", "sessions", "stop", "turns"]

TIMEOUT_SECONDS = 10.0


class ServerUnreachable(SafepointError):
    """No Safepoint server answers at this address."""


class ServerRefused(SafepointError):
    """The server refused a request.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Sends requests to one server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, accept: str = "application/json"
    ) -> Any:
        """Send a request.

        Args:
            method: The HTTP method.
            path: The path on the server.
            body: The data of a JSON body, if any.
            accept: The media type to ask for.

        Returns:
            The data of the JSON response, or its text if `accept` is "text/plain".

        Raises:
            ServerRefused: The server answered with an error.
            ServerUnreachable: No server answers at the address.
            UsageError: The address is malformed.
        """
        headers = {"accept": accept, **({"authorization": f"Bearer {self._token}"} if self._token else {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        try:
            request = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            raise ServerRefused(error.code, _message(error)) from error
        except (ValueError, http.client.InvalidURL) as error:
            raise UsageError(f"{self._url!r} is not the address of a server: {error}") from error
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise ServerUnreachable(
                f"no server answers at {self._url} ({getattr(error, 'reason', error)}): start one with"
                " `safepoint serve`"
            ) from error
        return text if accept == "text/plain" else self._read(text)

    def _read(self, text: str) -> Any:
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise ServerUnreachable(f"what answers at {self._url} is not a Safepoint server") from None


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text or error.reason


def sessions(options: argparse.Namespace) -> int:
    """List the sessions."""
    found = _client(options).call("GET", "/api/sessions")
    rows = [[one["id"], one["agent"], one["last_seq"], len(one["turns"])] for one in found]
    table(["session", "agent", "events", "open turns"], rows)
    return 0


def turns(options: argparse.Namespace) -> int:
    """List the open turns of a session."""
    found = _client(options).call("GET", _path(options.session))
    table(["turn", "status"], [[turn["id"], turn["status"]] for turn in found["turns"]])
    return 0


def stop(options: argparse.Namespace) -> int:
    """Stop a turn."""
    client = _client(options)
    turn = options.turn
    if turn is None:
        live = client.call("GET", _path(options.session))["turns"]
        running = [one["id"] for one in live if one["status"] != "queued"] or [one["id"] for one in live]
        if not running:
            print("no turn is open in this session")
            return 0
        turn = running[0]
    given = {key: getattr(options, key) for key in ("at", "scope", "within", "abandon", "reason")}
    body = {key: value for key, value in given.items() if value is not None}
    ack = client.call("POST", f"{_path(options.session, turn)}/stop", body)
    print(f"{ack['status']}: turn {ack['id']}: {ack['message']}")
    return 0


def receipt(options: argparse.Namespace) -> int:
    """Print the receipt of a turn."""
    accept = "application/json" if options.json else "text/plain"
    found = _client(options).call("GET", f"{_path(options.session, options.turn)}/receipt", accept=accept)
    if options.json:
        found = json.dumps(found, indent=2, ensure_ascii=False)
    print(found)
    return 0


def _client(options: argparse.Namespace) -> Client:
    return Client(options.url, options.token)


def _path(session: str, turn: str | None = None) -> str:
    path = f"/api/sessions/{quote(session, safe='')}"
    return path if turn is None else f"{path}/turns/{quote(turn, safe='')}"
