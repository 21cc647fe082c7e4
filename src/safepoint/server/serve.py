"""Serves the application: the address, the token outside of loopback, and an orderly shutdown. Knows nothing of routes.

On SIGTERM or Ctrl-C no new work is accepted, turns stop at their safe points and then at once, everything is written,
and the process ends within the given time. Work that does not end by then is cut off. Its stop is recorded, so the turn
is ended as stopped when the session is opened again.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import uvicorn

from ..agent.agent import Agent
from ..errors import SafepointError, UsageError, describe
from ..process.termination import graceful_shutdown
from ..session.host import Host
from .api import Limits
from .app import App, create_app

__all__ = ["Server", "is_loopback", "with_abandon_after"]

log = logging.getLogger("safepoint")
BACKLOG = 2048


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def with_abandon_after(agent: Agent, after: float) -> Agent:
    """Return a copy of the agent whose tools are abandoned `after` seconds after a stop.

    By default a run waits for a tool that goes on after the abort, because hiding such a tool would hide a bug. A
    server has other users to serve: it abandons the tool, names it in the receipt as still running, and drops its late
    result. A tool whose policy has an `abandon_after` of its own keeps it.
    """
    return agent.with_abandon_after(after)


class Server:
    """A server for one host. `await server.run()` returns when it has ended.

    Attributes:
        app: The ASGI application that it serves.
    """

    def __init__(
        self,
        host: Host,
        *,
        address: str = "127.0.0.1",
        port: int = 8420,
        token: str | None = None,
        within: float = 10.0,
        limits: Limits | None = None,
        started: Callable[[str], object] | None = None,
    ) -> None:
        """Create a server; `run()` starts it.

        Args:
            host: The host whose sessions it serves.
            address: The address to listen on. One outside of loopback needs a token.
            port: The port to listen on; 0 chooses a free one.
            token: The token that every request must have.
            within: The seconds from the signal to the end: half of them for safe points, then turns are stopped at
                once.
            limits: The limits of the server.
            started: Called with the URL when the server listens.

        Raises:
            UsageError: The address needs a token, or the token cannot be sent in a header.
        """
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise UsageError("a token travels in a header: use ASCII letters, digits and signs, without spaces")
        if not is_loopback(address) and not token:
            raise UsageError(
                f"{address} can be reached from other machines: give a token (--token or SAFEPOINT_TOKEN), or stay on"
                " 127.0.0.1"
            )
        self._host = host
        self._address = address
        self._port = port
        self._within = within
        self._started = started
        hosts = None if address in ("0.0.0.0", "::") else [self._name()]
        self.app: App = create_app(host, token=token or None, hosts=hosts, limits=limits)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises: UsageError if the port cannot be used."""
        listening = self._bind()
        config = uvicorn.Config(
            self.app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        # The signal handlers of uvicorn would close the connections before the turns have ended; ours replace them.
        server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
        leaving = asyncio.Event()
        on_signal = partial(asyncio.get_running_loop().call_soon_threadsafe, leaving.set)
        with listening, graceful_shutdown(on_signal, self._within, "the server"):
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listening]))
                group.create_task(self._recover())
                if self._started is not None:
                    self._started(f"http://{self._name()}:{listening.getsockname()[1]}")
                await leaving.wait()
                self.app.drain()
                await self._host.close(within=self._within / 2, reason="the server shuts down")
                server.should_exit = True

    async def _recover(self) -> None:
        """Recover interrupted turns, while the first requests are served already."""
        try:
            await self._host.recover()
        except (SafepointError, OSError) as error:
            log.error("interrupted turns cannot be recovered: %s", describe(error))

    def _name(self) -> str:
        return f"[{self._address}]" if ":" in self._address else self._address

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        # asyncio disables Nagle's algorithm (up to 40 ms of delay) only for sockets that name their protocol.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._address, self._port))
            listening.listen(BACKLOG)  # from here on clients can connect, and wait for the first answer
        except (OSError, OverflowError) as error:
            listening.close()
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot listen on {self._address}:{self._port}: {why}") from error
        return listening
