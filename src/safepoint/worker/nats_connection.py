"""Owns one connection to NATS with the face of a `Link`. Knows nothing of sessions and turns.

What is kept is asked for by position, from the leader of its stream where it matters that it is the newest. Watches and
ordered consumers are not used: after a restart of the server they have been seen to stay silent.
"""

import asyncio
import contextlib
import json
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import APIError, NotFoundError

from ..session.loop_tasks import LoopTasks
from .broker import (
    Answers,
    BrokerError,
    Fenced,
    Key,
    LeaseInForce,
    NoResponders,
    Order,
    Queue,
    RequestTimeout,
    StreamEntry,
    StreamName,
    same_lease,
)
from .nats_streams import ORDERS, consumer_config, consumer_lease, consumer_of, key_of, stream_name, subject_of
from .queue_rotation import Rotation

__all__ = ["NatsConnection"]

log = logging.getLogger("safepoint")
WRONG_LAST = (10071, 10164)  # the server's numbers for "wrong last sequence"
STORE_FAILED = 10077  # for one message too many of a subject, among others
ASK_SECONDS = 2.0
PATIENCE_SECONDS = 30.0  # a cluster without a leader takes some seconds to have one
POLL_SECONDS = 0.5  # how soon an order whose lease is over is noticed


class NatsConnection:
    """One connection."""

    def __init__(self, namespace: str, lease: float) -> None:
        self.lease = lease
        self._namespace = namespace
        self._returns: list[Callable[[], object]] = []
        self._consumers: set[Queue] = set()
        self._hints: dict[Queue, Callable[[], Awaitable[None]]] = {}
        self._hinted = asyncio.Event()
        self._rotation = Rotation()
        self._loop_tasks = LoopTasks()
        self.troubled: Exception | None = None  # while connecting
        self._nc: Any = None
        self._js: Any = None

    def begin(self, connection: Client) -> None:
        """The connection is there."""
        self._nc = connection
        self._js = connection.jetstream(timeout=ASK_SECONDS)

    async def returned(self) -> None:
        """The connection was lost, and is there again."""
        self._consumers.clear()  # whoever lost the server may find an empty one
        self._hinted.set()
        for call in list(self._returns):
            call()

    async def trouble(self, error: Exception) -> None:
        """Whatever the library tells of its connection."""
        if self.troubled is None or isinstance(self.troubled, OSError):  # what the server has said tells more
            self.troubled = error
        log.debug("NATS: %s: %s", type(error).__name__, error)

    def on_return(self, call: Callable[[], object]) -> Callable[[], None]:
        """Be told when the connection is there again."""
        self._returns.append(call)
        return lambda: self._returns.remove(call)

    # Kept messages

    async def append(self, stream: StreamName, key: Key, data: bytes, *, after: int | None = None) -> int:
        """Keep a message. An answer that was lost on the way is looked for before it is sent again."""
        headers = {"Nats-Msg-Id": uuid.uuid4().hex}
        if after is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(after)
        until, pause, unsure = time.monotonic() + PATIENCE_SECONDS, 0.02, False
        while True:
            try:
                name = subject_of(self._namespace, stream, key)
                ack = await self._js.publish(name, data, ASK_SECONDS, headers=headers)
                return int(ack.seq)
            except APIError as error:
                if error.err_code in WRONG_LAST:
                    return await self._ours(stream, key, data, unsure)
                if error.code != 503:
                    raise BrokerError(f"NATS refused to keep it in {stream}: {error.description}") from error
                failure: Exception = error
            except errors.MaxPayloadError as error:
                raise BrokerError(f"{len(data)} bytes are more than NATS takes for {stream} (max_payload)") from error
            except (errors.Error, OSError) as error:  # no answer, or nobody who could give one
                failure, unsure = error, True
            if time.monotonic() > until or self._nc.is_closed:
                raise BrokerError(f"NATS does not keep anything ({type(failure).__name__}) for {stream}") from failure
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # real time: a server comes back, or a new leader
            pause = min(2 * pause, 1.0)

    async def _ours(self, stream: StreamName, key: Key, data: bytes, unsure: bool) -> int:
        """Somebody has written here since: perhaps ourselves, when the answer was lost."""
        newest = await self.last(stream, key) if unsure else None
        if newest is not None and newest.data == data:
            return newest.position
        raise Fenced(f"{stream} {'/'.join(key)}: somebody else has written there since")

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        """The messages of this key. A log can be long: it is read in batches, from any server that has it."""
        name = subject_of(self._namespace, stream, key)
        if stream != "log":
            return await self._from_leader(stream, name, after, limit)
        wanted = {"seq": after + 1, "next_by_subj": name, "batch": limit}
        place = f"$JS.API.DIRECT.GET.{stream_name(self._namespace, stream)}"
        found = await self._collect(place, wanted, limit)
        return [StreamEntry(int((one.headers or {})["Nats-Sequence"]), key, one.data) for one in found]

    async def _from_leader(self, stream: StreamName, name: str, after: int, limit: int) -> list[StreamEntry]:
        found: list[StreamEntry] = []
        while len(found) < limit:
            entry = await self._get(stream, seq=after + 1, subject=name, next=True)
            if entry is None:
                break
            found.append(entry)
            after = entry.position
        return found

    async def _get(self, stream: StreamName, **which: Any) -> StreamEntry | None:
        """One message, asked of the leader."""
        try:
            found = await self._patiently(lambda: self._js.get_msg(stream_name(self._namespace, stream), **which))
        except NotFoundError:
            return None
        return StreamEntry(found.seq, key_of(found.subject), found.data or b"")

    async def last(self, stream: StreamName, key: Key) -> StreamEntry | None:
        """The newest message of this key."""
        return await self._get(stream, subject=subject_of(self._namespace, stream, key))

    async def lasts(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        """The message of each key below."""
        return await self._from_leader(stream, f"{subject_of(self._namespace, stream, under)}.*", after, 100_000)

    async def trim(self, stream: StreamName, key: Key, upto: int) -> None:
        """Forget the messages up to this position."""
        jetstream_name, name = stream_name(self._namespace, stream), subject_of(self._namespace, stream, key)
        await self._patiently(lambda: self._js.purge_stream(jetstream_name, seq=upto + 1, subject=name))

    async def keys(self, stream: StreamName) -> list[Key]:
        """The keys of which there are messages."""
        return [key_of(name) for name in await self._subjects(stream)]

    async def _subjects(self, room: str) -> list[str]:
        jetstream_name = stream_name(self._namespace, room)
        info = await self._patiently(lambda: self._js.stream_info(jetstream_name, subjects_filter=">"))
        return list(info.state.subjects or {})

    async def _patiently(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask what may be asked twice, until there is an answer. Raises: NotFoundError; BrokerError."""
        until, pause = time.monotonic() + PATIENCE_SECONDS, 0.02
        while True:
            try:
                return await ask()
            except NotFoundError:
                raise
            except (errors.Error, APIError, OSError) as error:
                refused = isinstance(error, errors.MaxPayloadError) or getattr(error, "code", None) not in (503, None)
                if refused or time.monotonic() > until or self._nc.is_closed:
                    raise BrokerError(f"NATS does not answer: {type(error).__name__}: {error}") from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # real time: a server comes back, or a new leader
            pause = min(2 * pause, 1.0)

    async def _collect(self, place: str, wanted: dict[str, Any], limit: int) -> list[Msg]:
        """Ask once, and gather the many messages that come as an answer."""

        async def ask() -> list[Msg]:
            found: list[Msg] = []
            inbox = self._nc.new_inbox()
            answers = await self._nc.subscribe(inbox, max_msgs=limit + 1)
            try:
                await self._nc.publish(place, json.dumps(wanted).encode(), reply=inbox)
                while len(found) < limit:
                    message = await answers.next_msg(ASK_SECONDS)
                    status = (message.headers or {}).get("Status")
                    if status == "503":
                        raise errors.NoRespondersError
                    if status is not None:  # the end of the batch, or nothing there
                        break
                    found.append(message)
                return found
            finally:
                with contextlib.suppress(errors.Error):
                    await answers.unsubscribe()

        found: list[Msg] = await self._patiently(ask)
        return found

    # Orders

    async def order(self, queue: Queue, session: str, data: bytes) -> bool:
        """Put an order up."""
        name = subject_of(self._namespace, ORDERS, (*queue, session))

        async def put() -> bool:
            try:
                await self._js.publish(name, data, ASK_SECONDS)
            except APIError as error:
                if error.err_code == STORE_FAILED and "per subject" in (error.description or ""):
                    return False
                raise
            return True

        new = bool(await self._patiently(put))
        await self.publish(("orders", *queue), b"")
        return new

    async def take(self, queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
        """Hold some orders: as soon as somebody says that there is one, and every now and then without being told."""
        until, hinted = time.monotonic() + wait, False
        while True:
            self._hinted.clear()
            for queue in queues:
                await self._attend(queue)
            found = await self._pull_fairly(queues, limit)
            left = until - time.monotonic()
            if found or left <= 0 or hinted:
                return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, POLL_SECONDS)):
                    hinted = await self._hinted.wait()

    async def _attend(self, queue: Queue) -> None:
        """See to it that the queue's consumer is there, and that somebody tells us of new orders."""
        if queue not in self._consumers:
            seconds = await self.lease_in_force(queue)
            if not same_lease(seconds, self.lease):
                raise LeaseInForce(queue, seconds, self.lease)
            self._consumers.add(queue)
        if queue not in self._hints:
            self._hints[queue] = await self.listen(("orders", *queue), lambda data: self._hinted.set())

    async def lease_in_force(self, queue: Queue) -> float:
        """The time for which the queue's consumer waits for an acknowledgement."""
        seconds = await self._patiently(lambda: consumer_lease(self._nc, self._namespace, queue, self.lease))
        return float(seconds)

    async def change_lease(self, queue: Queue) -> None:
        """Overwrite the settings of the queue's consumer."""
        config, jetstream_name = (
            consumer_config(self._namespace, queue, self.lease),
            stream_name(self._namespace, ORDERS),
        )
        await self._patiently(lambda: self._js.add_consumer(jetstream_name, config))

    async def _pull_fairly(self, queues: Sequence[Queue], limit: int) -> list[Order]:
        """Ask the queues for orders, the one that has waited longest first."""
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
        place = f"$JS.API.CONSUMER.MSG.NEXT.{stream_name(self._namespace, ORDERS)}.{consumer_of(queue)}"
        found = await self._collect(place, {"batch": limit, "no_wait": True}, limit)
        return [_NatsOrder(self, message) for message in found]

    async def ordered(self) -> set[str]:
        """The sessions for which there is an order."""
        return {key_of(name)[-1] for name in await self._subjects(ORDERS)}

    # Words that fly by

    async def request(self, subject: Key, data: bytes, timeout: float) -> bytes:
        """Ask whoever serves there."""
        return await self.ask(subject_of(self._namespace, "call", subject), data, timeout)

    async def ask(self, place: str, data: bytes, timeout: float) -> bytes:
        """The same, by the whole subject."""
        try:
            answer = await self._nc.request(place, data, timeout=timeout)
        except errors.NoRespondersError:
            raise NoResponders(f"nobody serves {place}") from None
        except (errors.Error, OSError) as error:
            raise RequestTimeout(f"{place} did not answer within {timeout:g} s ({type(error).__name__})") from error
        return bytes(answer.data)

    async def serve(self, subject: Key, answer: Answers) -> Callable[[], Awaitable[None]]:
        """Answer what is asked there."""

        async def respond(message: Msg) -> None:
            told = await answer(message.data)
            with contextlib.suppress(errors.Error, OSError):
                await message.respond(told)

        async def heard(message: Msg) -> None:  # no question waits for the answer to another one
            self._loop_tasks.spawn(respond(message), f"answer to {message.subject}")

        return await self._subscribe(subject_of(self._namespace, "call", subject), heard)

    async def publish(self, subject: Key, data: bytes) -> None:
        """Say something to whoever listens now. What cannot be said is not missed: everything that matters is kept."""
        with contextlib.suppress(errors.Error, OSError):
            await self._nc.publish(subject_of(self._namespace, "say", subject), data)

    async def listen(self, subject: Key, hear: Callable[[bytes], object]) -> Callable[[], Awaitable[None]]:
        """Hear what is said there."""

        async def heard(message: Msg) -> None:
            hear(message.data)

        return await self._subscribe(subject_of(self._namespace, "say", subject), heard)

    async def _subscribe(self, name: str, call: Callable[[Msg], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        try:
            subscription = await self._nc.subscribe(name, cb=call)
            await self._reach_the_server()  # from here on whoever asks is heard
        except (errors.Error, OSError) as error:
            raise BrokerError(f"cannot listen to {name}: {type(error).__name__}: {error}") from error

        async def end() -> None:
            with contextlib.suppress(errors.Error, OSError):
                await subscription.unsubscribe()
                await self._reach_the_server()  # from here on whoever asks is told that nobody is there

        return end

    async def _reach_the_server(self) -> None:
        """Wait until the server has read what was sent.

        It asks where nobody is: one `flush()` of the library that is cut short ends the whole connection.

        """
        if self._nc.is_connected:
            with contextlib.suppress(errors.Error, OSError):
                await self._nc.request(f"{self._namespace}.nobody", b"", timeout=ASK_SECONDS)

    async def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(errors.Error, OSError):
            await self._nc.close()
        await self._loop_tasks.empty()


class _NatsOrder:
    """An order in our hands."""

    def __init__(self, link: NatsConnection, message: Msg) -> None:
        self._connection = link
        self._reply = message.reply
        self.session = key_of(message.subject)[-1]
        self.data = message.data
        self.attempt = int(message.metadata.num_delivered or 1)

    async def renew(self) -> None:
        """Hold it for one more lease."""
        await self._connection.ask(self._reply, b"+WPI", min(ASK_SECONDS, self._connection.lease / 2))

    async def done(self) -> None:
        """There is nothing left to do."""
        await self._connection.ask(self._reply, b"+ACK", ASK_SECONDS)

    async def give_back(self, seconds: float = 0.0) -> None:
        """Somebody else may take it."""
        delay = json.dumps({"delay": int(seconds * 1e9)}).encode() if seconds else b""
        await self._connection.ask(self._reply, b"-NAK " + delay if delay else b"-NAK", ASK_SECONDS)
        self._connection._hinted.set()
