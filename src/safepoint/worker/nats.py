"""Owns where a NATS server is and how to get in: `NatsBroker`. Can be sent to another process.

Credentials are passed through to the client library; streams are made where they are missing, unless `create` is off.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..abort.clock import check_seconds
from ..errors import MissingExtra, UsageError
from .broker import BrokerConnection, BrokerError

__all__ = ["NatsBroker"]

CONNECT_SECONDS = 5.0
FIRST_TRIES = 1  # more than one: whoever starts is told soon that there is no server
RECONNECT_SECONDS = 0.2
PING_SECONDS = 3


@dataclass(frozen=True, slots=True)
class NatsBroker:
    """A NATS server with JetStream, or a cluster.

    url          one or several, such as "nats://10.0.0.1:4222"
    namespace    the first word of every subject and stream: several installations may share a server
    lease        how long an order is held without being renewed; after that the worker counts as dead
    replicas     on how many servers of a cluster everything is kept
    credentials  a .creds file; nkey: a seed file; user and password; token
    ca, cert, key  files for TLS
    create       make the streams that are missing; False: an operator has made them
    """

    url: str | Sequence[str] = "nats://127.0.0.1:4222"
    namespace: str = "safepoint"
    lease: float = 10.0
    replicas: int = 1
    credentials: str | None = None
    nkey: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    create: bool = True

    def __post_init__(self) -> None:
        if not self.namespace.isidentifier() or not self.namespace.isascii():
            raise UsageError(f"the namespace must be one word of letters, digits and _, not {self.namespace!r}")
        check_seconds("lease", self.lease)

    async def connect(self, name: str) -> BrokerConnection:
        """A connection. Raises: BrokerError that says which server, and why not."""
        try:
            import nats

            from .nats_connection import NatsConnection
            from .nats_streams import ensure
        except ImportError as error:
            raise MissingExtra("NatsBroker", "nats", error) from error
        link = NatsConnection(self.namespace, self.lease)
        servers = [self.url] if isinstance(self.url, str) else list(self.url)
        try:
            connection = await nats.connect(
                servers,
                name=name,
                connect_timeout=CONNECT_SECONDS,
                allow_reconnect=True,
                max_reconnect_attempts=FIRST_TRIES,
                reconnect_time_wait=RECONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                reconnected_cb=link.returned,
                error_cb=link.trouble,
                **self._way_in(),
            )
        except Exception as error:
            error = link.troubled or error
            told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise BrokerError(f"cannot connect to NATS at {', '.join(servers)} ({told}): does it run there?") from error
        connection.options["max_reconnect_attempts"] = -1  # once there, it is waited for as long as it takes
        link.begin(connection)
        await ensure(connection, self.namespace, self.replicas, create=self.create)
        return link

    def _way_in(self) -> dict[str, Any]:
        """What the client library needs to be let in."""
        given = {
            "user_credentials": self.credentials,
            "nkeys_seed": self.nkey,
            "user": self.user,
            "password": self.password,
            "token": self.token,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.ca or self.cert:
            tls = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                tls.load_cert_chain(self.cert, self.key)
            options["tls"] = tls
        return options
