"""A client for a running server. Knows nothing of commands."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from ..errors import SafepointError, UsageError

__all__ = ["Client", "ServerRefused", "ServerUnreachable"]

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
