"""One connection to NATS, as a `BrokerConnection`. Knows nothing of sessions and turns.

What this relies on in NATS and JetStream:

- A server may be away for seconds, when it restarts or its cluster elects a leader. Requests are repeated for
  `RETRY_SECONDS`. Most of them have the same effect when they are carried out twice; `append()` says how it copes.
- Reads of the log are answered by any replica, which may lag behind; its reader notices that from the record numbers.
  All other streams are read from their leader, because there the newest message decides.
- Streams are read by position. Watches and ordered consumers are not used: after a restart of the server they have been
  seen to receive nothing more.
- The lease of an order is the acknowledgement wait of its consumer, so it applies to all workers of a queue.
- Publications outside of streams are lost while the connection is down. They are only hints.
"""

import asyncio
import contextlib
import json
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from ...session.loop_tasks import LoopTasks
from ..broker import (
    BrokerError,
    Fenced,
    Key,
    LeaseInForce,
    NoResponders,
    Order,
    Queue,
    RequestHandler,
    RequestTimeout,
    Rotation,
    StreamEntry,
    StreamName,
    same_lease,
)
from .streams import ORDERS, consumer_config, consumer_lease, consumer_of, key_of, stream_name, subject_of

__all__ = ["NatsConnection"]

T = TypeVar("T")
log = logging.getLogger("safepoint")
# Error codes of the server: "wrong last sequence", and "message not stored", for example for one too many of a subject.
WRONG_LAST_SEQUENCE = (10071, 10164)
STORE_FAILED = 10077
# The timeout of one request, and for how long requests are repeated: a cluster takes seconds to elect a leader.
REQUEST_SECONDS = 2.0
RETRY_SECONDS = 30.0
# How often queues are asked for orders without a hint: an order whose lease is over comes without one.
POLL_SECONDS = 0.5


class NatsConnection:
    """One connection to NATS.

    Attributes:
        lease: The lease of orders that this connection is to use.
        connect_error: The error that explains best why no connection can be made.
    """

    _client: Client
    _jetstream: JetStreamContext

    def __init__(self, namespace: str, lease: float) -> None:
        self._namespace = namespace
        self._reconnect_callbacks: list[Callable[[], object]] = []
        self._prepared: dict[Queue, asyncio.Task[BrokerError | None]] = {}  # see _answering()
        self._order_hints: dict[Queue, Callable[[], Awaitable[None]]] = {}
        self._order_hinted = asyncio.Event()
        self._rotation = Rotation()
        self._loop_tasks = LoopTasks()
        self.lease = lease
        self.connect_error: Exception | None = None

    def attach(self, client: Client) -> None:
        """Use a client that is connected. Nothing else may be called before."""
        self._client = client
        self._jetstream = client.jetstream(timeout=REQUEST_SECONDS)

    async def reconnected(self) -> None:
        """Called by the client library when the connection was lost and is restored."""
        self._prepared = {queue: task for queue, task in self._prepared.items() if not task.done()}
        self._order_hinted.set()
        for callback in list(self._reconnect_callbacks):
            callback()

    async def report_error(self, error: Exception) -> None:
        """Called by the client library with every error of the connection."""
        if self.connect_error is None or isinstance(self.connect_error, OSError):  # a server's own words explain more
            self.connect_error = error
        log.debug("NATS: %s: %s", type(error).__name__, error)

    def on_reconnect(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back whenever the connection was lost and is restored."""
        self._reconnect_callbacks.append(callback)
        return lambda: self._reconnect_callbacks.remove(callback)

    # Streams

    async def append(self, stream: StreamName, key: Key, data: bytes, *, expected_last: int | None = None) -> int:
        """Append a message, at most once.

        If the reply to a publication is lost, the message may or may not be in the stream. It is published again with
        the same message id, so that the server recognises it. If the compare-and-set then fails, the newest message is
        compared with ours: every message is unique, so an equal one is the publication whose reply was lost.
        """
        headers = {"Nats-Msg-Id": uuid.uuid4().hex}
        if expected_last is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_last)
        until, pause, unsure = time.monotonic() + RETRY_SECONDS, 0.02, False
        while True:
            try:
                name = subject_of(self._namespace, stream, key)
                ack = await self._jetstream.publish(name, data, REQUEST_SECONDS, headers=headers)
                return int(ack.seq)
            except APIError as error:
                if error.err_code in WRONG_LAST_SEQUENCE:
                    return await self._position_if_ours(stream, key, data, unsure)
                if error.code != 503:
                    raise BrokerError(f"NATS refused to store a message for {stream}: {error.description}") from error
                failure: Exception = error
            except errors.MaxPayloadError as error:
                raise BrokerError(f"{len(data)} bytes are more than NATS accepts for {stream} (max_payload)") from error
            except (errors.Error, OSError) as error:  # no reply, or no server to send one
                failure, unsure = error, True
            if time.monotonic() > until or self._client.is_closed:
                raise BrokerError(
                    f"NATS has not stored a message for {stream} in time ({type(failure).__name__})"
                ) from failure
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # real time: a server returns, or a leader is elected
            pause = min(2 * pause, 1.0)

    async def _position_if_ours(self, stream: StreamName, key: Key, data: bytes, unsure: bool) -> int:
        """The position of the newest message, if that is ours and only the reply was lost. Raises: Fenced."""
        newest = await self.last(stream, key) if unsure else None
        if newest is not None and newest.data == data:
            return newest.position
        raise Fenced(f"{stream} {'/'.join(key)}: another writer has written there since")

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        """The messages of a key. The log may be long, so it is read in batches, from any replica."""
        name = subject_of(self._namespace, stream, key)
        if stream != "log":
            return await self._read_from_leader(stream, name, after, limit)
        wanted = {"seq": after + 1, "next_by_subj": name, "batch": limit}
        subject = f"$JS.API.DIRECT.GET.{stream_name(self._namespace, stream)}"
        found = await self._with_retries(lambda: self._collect(subject, wanted, limit))
        return [StreamEntry(int((one.headers or {})["Nats-Sequence"]), key, one.data) for one in found]

    async def _read_from_leader(self, stream: StreamName, name: str, after: int, limit: int) -> list[StreamEntry]:
        found: list[StreamEntry] = []
        while len(found) < limit:
            entry = await self._get(stream, name, after + 1)
            if entry is None:
                break
            found.append(entry)
            after = entry.position
        return found

    async def _get(self, stream: StreamName, name: str, from_position: int | None = None) -> StreamEntry | None:
        """A message from the leader: the first one of a subject at or after a position, or without one the newest."""
        jetstream_name, follows = stream_name(self._namespace, stream), from_position is not None
        try:
            found = await self._with_retries(
                lambda: self._jetstream.get_msg(jetstream_name, seq=from_position, subject=name, next=follows)
            )
        except NotFoundError:
            return None
        assert found.seq is not None  # for the type checker: the server sends both
        assert found.subject is not None
        return StreamEntry(found.seq, key_of(found.subject), found.data or b"")

    async def last(self, stream: StreamName, key: Key) -> StreamEntry | None:
        """The newest message of a key."""
        return await self._get(stream, subject_of(self._namespace, stream, key))

    async def last_per_key(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        """The message of each key under a prefix."""
        return await self._read_from_leader(stream, f"{subject_of(self._namespace, stream, under)}.*", after, 100_000)

    async def purge(self, stream: StreamName, key: Key, upto: int) -> None:
        """Delete the messages of a key up to a position."""
        jetstream_name, name = stream_name(self._namespace, stream), subject_of(self._namespace, stream, key)
        await self._with_retries(lambda: self._jetstream.purge_stream(jetstream_name, seq=upto + 1, subject=name))

    async def keys(self, stream: StreamName) -> list[Key]:
        """The keys that have messages."""
        return [key_of(name) for name in await self._subjects(stream)]

    async def _subjects(self, stream: str) -> list[str]:
        jetstream_name = stream_name(self._namespace, stream)
        info = await self._with_retries(lambda: self._jetstream.stream_info(jetstream_name, subjects_filter=">"))
        return list(info.state.subjects or {})

    async def _with_retries(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request that may be repeated, until there is an answer. Raises: NotFoundError; BrokerError."""
        until, pause = time.monotonic() + RETRY_SECONDS, 0.02
        while True:
            try:
                return await request()
            except NotFoundError:
                raise
            except (errors.Error, APIError, OSError) as error:
                refused = isinstance(error, errors.MaxPayloadError) or getattr(error, "code", None) not in (503, None)
                if refused or time.monotonic() > until or self._client.is_closed:
                    raise BrokerError(f"NATS does not answer: {type(error).__name__}: {error}") from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # real time: a server returns, or a leader is elected
            pause = min(2 * pause, 1.0)

    async def _collect(self, subject: str, wanted: Mapping[str, object], limit: int) -> list[Msg]:
        """Send one request that is answered by many messages, and collect them. Raises: nats.errors.Error; OSError."""
        found: list[Msg] = []
        inbox = self._client.new_inbox()
        answers = await self._client.subscribe(inbox, max_msgs=limit + 1)
        try:
            await self._client.publish(subject, json.dumps(wanted).encode(), reply=inbox)
            while len(found) < limit:
                message = await answers.next_msg(REQUEST_SECONDS)
                status = (message.headers or {}).get("Status")
                if status == "503":
                    raise errors.NoRespondersError
                if status is not None:  # the end of the batch, or an empty one
                    break
                found.append(message)
        except errors.TimeoutError:
            if not found:
                raise
        finally:
            with contextlib.suppress(errors.Error):
                await answers.unsubscribe()
        return found

    # Orders

    async def enqueue(self, queue: Queue, session: str, data: bytes) -> bool:
        """Add an order, unless the session has one."""
        name = subject_of(self._namespace, ORDERS, (*queue, session))

        async def put() -> bool:
            try:
                await self._jetstream.publish(name, data, REQUEST_SECONDS)
            except APIError as error:
                # The code alone covers several failures; only the text says that the subject has a message already.
                if error.err_code == STORE_FAILED and "per subject" in (error.description or ""):
                    return False
                raise
            return True

        new = await self._with_retries(put)
        await self.publish(("orders", *queue), b"")
        return new

    async def take(self, queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
        """Take orders: as soon as one is announced, and now and then without an announcement."""
        until, hinted = time.monotonic() + wait, False
        while True:
            self._order_hinted.clear()
            found = await self._pull_fairly(await self._answering(queues), limit)
            remaining = until - time.monotonic()
            if found or remaining <= 0 or hinted:
                return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, POLL_SECONDS)):
                    hinted = await self._order_hinted.wait()

    async def _answering(self, queues: Sequence[Queue]) -> list[Queue]:
        """The queues whose consumers answer; the others are prepared meanwhile. Raises: LeaseInForce; BrokerError.

        In a cluster every consumer has a leader of its own, and may be without one for seconds. So each queue is
        prepared by a task that goes on between two calls: a queue that does not answer must not delay the orders of
        the others for longer than one request.
        """
        new = [queue for queue in queues if queue not in self._prepared]
        for queue in new:
            self._prepared[queue] = self._loop_tasks.spawn(self._prepare(queue), f"consumer of {queue}")
        if new:
            await asyncio.wait([self._prepared[queue] for queue in new], timeout=REQUEST_SECONDS)
        ready = [queue for queue in queues if (task := self._prepared.get(queue)) is not None and task.done()]
        for queue in ready:
            error = self._prepared[queue].result()
            if error is not None:
                del self._prepared[queue]
                raise error
        return ready

    async def _prepare(self, queue: Queue) -> BrokerError | None:
        """Ensure that the queue has a consumer with our lease, and that new orders are announced to us."""
        try:
            seconds = await self.lease_in_force(queue)
            if not same_lease(seconds, self.lease):
                return LeaseInForce(queue, seconds, self.lease)
            if queue not in self._order_hints:
                self._order_hints[queue] = await self.listen(("orders", *queue), lambda data: self._order_hinted.set())
        except BrokerError as error:
            return error
        return None

    async def lease_in_force(self, queue: Queue) -> float:
        """The seconds for which the queue's consumer waits for an acknowledgement."""
        return await self._with_retries(lambda: consumer_lease(self._client, self._namespace, queue, self.lease))

    async def change_lease(self, queue: Queue) -> None:
        """Overwrite the settings of the queue's consumer."""
        config = consumer_config(self._namespace, queue, self.lease)
        jetstream_name = stream_name(self._namespace, ORDERS)
        await self._with_retries(lambda: self._jetstream.add_consumer(jetstream_name, config))

    async def _pull_fairly(self, queues: Sequence[Queue], limit: int) -> list[Order]:
        """Pull orders from the queues, from the least recently served one first."""
        found: list[Order] = []
        empty: set[Queue] = set()
        for queue, share in self._rotation.shares(queues, limit):
            wanted = min(share, limit - len(found))
            if wanted <= 0:
                break
            if queue in empty:
                continue
            pulled = await self._pull(queue, wanted)
            found += pulled
            if pulled:
                self._rotation.served(queue)
            if len(pulled) < wanted:
                empty.add(queue)
        return found

    async def _pull(self, queue: Queue, limit: int) -> list[Order]:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream_name(self._namespace, ORDERS)}.{consumer_of(queue)}"
        try:
            found = await self._collect(subject, {"batch": limit, "no_wait": True}, limit)
        except (errors.Error, OSError) as error:  # its consumer has no leader, or the server is away
            log.debug("no orders from %s: %s", consumer_of(queue), error)
            self._prepared.pop(queue, None)
            return []
        return [_NatsOrder(self, message) for message in found]

    async def pending_sessions(self) -> set[str]:
        """The sessions that have an order."""
        return {key_of(name)[-1] for name in await self._subjects(ORDERS)}

    # Requests and publications

    async def request(self, subject: Key, data: bytes, timeout: float) -> bytes:
        """Send a request to the process that serves a subject."""
        return await self.request_raw(subject_of(self._namespace, "call", subject), data, timeout)

    async def request_raw(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send a request to a subject of NATS. Raises: NoResponders; RequestTimeout."""
        try:
            answer = await self._client.request(subject, data, timeout=timeout)
        except errors.NoRespondersError:
            raise NoResponders(f"no process serves {subject}") from None
        except (errors.Error, OSError) as error:
            raise RequestTimeout(f"{subject} did not answer within {timeout:g} s ({type(error).__name__})") from error
        return bytes(answer.data)

    async def serve(self, subject: Key, handler: RequestHandler) -> Callable[[], Awaitable[None]]:
        """Answer requests to a subject."""

        async def respond(message: Msg) -> None:
            answer = await handler(message.data)
            with contextlib.suppress(errors.Error, OSError):
                await message.respond(answer)

        async def on_request(message: Msg) -> None:  # in a task, so that no request waits for the answer to another
            self._loop_tasks.spawn(respond(message), f"answer to {message.subject}")

        return await self._subscribe(subject_of(self._namespace, "call", subject), on_request)

    async def publish(self, subject: Key, data: bytes) -> None:
        """Publish a message. A failure is ignored: everything that matters is in a stream as well."""
        with contextlib.suppress(errors.Error, OSError):
            await self._client.publish(subject_of(self._namespace, "say", subject), data)

    async def listen(self, subject: Key, on_message: Callable[[bytes], object]) -> Callable[[], Awaitable[None]]:
        """Receive what is published to a subject."""

        async def on_publication(message: Msg) -> None:
            on_message(message.data)

        return await self._subscribe(subject_of(self._namespace, "say", subject), on_publication)

    async def _subscribe(self, name: str, callback: Callable[[Msg], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        try:
            subscription = await self._client.subscribe(name, cb=callback)
            await self._sync()  # from here on requests and publications arrive
        except (errors.Error, OSError) as error:
            raise BrokerError(f"cannot listen to {name}: {type(error).__name__}: {error}") from error

        async def end() -> None:
            with contextlib.suppress(errors.Error, OSError):
                await subscription.unsubscribe()
                await self._sync()  # from here on requests are answered with "no responders"

        return end

    async def _sync(self) -> None:
        """Wait until the server has processed everything that was sent.

        It sends a request to a subject that is never served, instead of calling `flush()` of the client library: a
        `flush()` that is interrupted closes the whole connection.
        """
        if self._client.is_connected:
            with contextlib.suppress(errors.Error, OSError):
                await self._client.request(f"{self._namespace}.nobody", b"", timeout=REQUEST_SECONDS)

    async def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(errors.Error, OSError):
            await self._client.close()
        await self._loop_tasks.wait_all()


class _NatsOrder:
    """An order that was taken. It is acknowledged by requests, so that the server confirms each of them."""

    def __init__(self, connection: NatsConnection, message: Msg) -> None:
        self._connection = connection
        self._reply = message.reply
        self.session = key_of(message.subject)[-1]
        self.data = message.data
        self.attempt = int(message.metadata.num_delivered or 1)

    async def renew(self) -> None:
        """Extend the lease."""
        await self._connection.request_raw(self._reply, b"+WPI", min(REQUEST_SECONDS, self._connection.lease / 2))

    async def complete(self) -> None:
        """Remove the order."""
        await self._connection.request_raw(self._reply, b"+ACK", REQUEST_SECONDS)

    async def give_back(self, seconds: float = 0.0) -> None:
        """Return the order to its queue."""
        delay = json.dumps({"delay": int(seconds * 1e9)}).encode() if seconds else b""
        await self._connection.request_raw(self._reply, b"-NAK " + delay if delay else b"-NAK", REQUEST_SECONDS)
        self._connection._order_hinted.set()
