"""The address of a NATS server and how to authenticate: `NatsBroker`. Can be pickled for another process.

Credentials are passed on to the client library.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ...abort.clock import check_seconds
from ...errors import MissingExtra, UsageError
from ..broker import BrokerConnection, BrokerError

__all__ = ["NatsBroker"]

CONNECT_SECONDS = 5.0
# Few, so that a program that starts while there is no server fails soon.
FIRST_TRIES = 1
RECONNECT_SECONDS = 0.2
PING_SECONDS = 3


class _AuthOptions(TypedDict, total=False):
    """Options of `nats.connect()`."""

    user_credentials: str
    nkeys_seed: str
    user: str
    password: str
    token: str
    tls: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class NatsBroker:
    """A NATS server with JetStream, or a cluster of them.

    Attributes:
        url: One or several addresses, such as "nats://10.0.0.1:4222".
        namespace: The first token of every subject and the prefix of every stream, so that several installations can
            share a server.
        lease: The seconds for which an order is held without being renewed; after that its worker counts as dead.
        replicas: On how many servers of a cluster each stream is kept.
        credentials: The path of a .creds file.
        nkey: The path of an NKey seed file.
        user: A user name, with `password`.
        password: Its password.
        token: A token.
        ca: The path of the certificate authority, for TLS.
        cert: The path of the client's certificate.
        key: The path of its key.
        create: Whether to create missing streams. False if an operator creates them.
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
        """Open a connection. Raises: BrokerError, which names the server and the cause."""
        try:
            import nats

            from .connection import NatsConnection
            from .streams import ensure
        except ImportError as error:
            raise MissingExtra("NatsBroker", "nats", error) from error
        connection = NatsConnection(self.namespace, self.lease)
        servers = [self.url] if isinstance(self.url, str) else list(self.url)
        try:
            client = await nats.connect(
                servers,
                name=name,
                connect_timeout=CONNECT_SECONDS,
                allow_reconnect=True,
                max_reconnect_attempts=FIRST_TRIES,
                reconnect_time_wait=RECONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                reconnected_cb=connection.reconnected,
                error_cb=connection.report_error,
                **self._auth_options(),
            )
        except Exception as error:
            error = connection.connect_error or error
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise BrokerError(
                f"cannot connect to NATS at {', '.join(servers)} ({cause}): is a server running there?"
            ) from error
        # Once it was connected, a server that goes away is waited for without limit.
        client.options["max_reconnect_attempts"] = -1
        connection.attach(client)
        await ensure(client, self.namespace, self.replicas, create=self.create)
        return connection

    def _auth_options(self) -> _AuthOptions:
        options: _AuthOptions = {}
        if self.credentials is not None:
            options["user_credentials"] = self.credentials
        if self.nkey is not None:
            options["nkeys_seed"] = self.nkey
        if self.user is not None:
            options["user"] = self.user
        if self.password is not None:
            options["password"] = self.password
        if self.token is not None:
            options["token"] = self.token
        if self.ca or self.cert:
            options["tls"] = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                options["tls"].load_cert_chain(self.cert, self.key)
        return options
