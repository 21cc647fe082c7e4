"""Owns serving: the address, the token outside of loopback, and an end in order. Knows nothing of routes.

SIGTERM or Ctrl-C: no new work is taken, turns stop at their safe points, then at once, everything is written, and the
process ends within the given time.
"""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext

import uvicorn

from ..errors import UsageError
from ..session.host import Host
from .app import App, create_app
from .limits import Limits

__all__ = ["Server", "is_loopback"]


def is_loopback(address: str) -> bool:
    """True: nobody from another machine can come by this address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Server:
    """One server. `await server.run()` returns when it has ended.

    within  seconds from the signal to the end: half of them for safe points, then everything is stopped at once
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
        hosts = None if address in ("0.0.0.0", "::") else [address]
        self.app: App = create_app(host, token=token, hosts=hosts, limits=limits)

    async def run(self) -> None:
        """Serve until a signal comes."""
        listening = self._bind()
        config = uvicorn.Config(
            self.app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        # Its own handlers would close the door before the turns have ended; ours come first.
        server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
        going = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, going.set)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listening]))
                if self._started is not None:
                    self._started(f"http://{self._name()}:{listening.getsockname()[1]}")
                await going.wait()
                self.app.drain()
                await self._host.close(self._within / 2, "the server shuts down")
                server.should_exit = True
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            listening.close()

    def _name(self) -> str:
        return f"[{self._address}]" if ":" in self._address else self._address

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._address, self._port))
        except OSError as error:
            listening.close()
            raise UsageError(f"cannot listen on {self._address}:{self._port}: {error.strerror or error}") from error
        return listening
