"""Owns the names and settings of everything Safepoint keeps in JetStream. Knows nothing of what is kept."""

import asyncio
import base64
import json
import re
import time
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from ..errors import UsageError
from .broker import KEPT, BrokerError, Key, Queue

__all__ = [
    "ORDERS",
    "consumer_config",
    "consumer_lease",
    "consumer_of",
    "ensure",
    "key_of",
    "stream_name",
    "subject_of",
]

ORDERS = "orders"
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
# A server closes the connection on a line of 4096 bytes, for good.
LONGEST = 2000
# One question, how soon it is asked again, and how long a cluster may take until it has a leader.
ASK_SECONDS = 1.0
AGAIN_SECONDS = 0.1
READY_SECONDS = 15.0
EXISTS = 10058  # the server's number for "stream name already in use"
CONSUMER_EXISTS = (10013, 10105, 10148)  # and for consumers, with other settings


def token(text: str) -> str:
    """One word of a subject: as it is if it can be, else encoded. Two texts never become one word."""
    return text if PLAIN.fullmatch(text) else "=" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def text_of(word: str) -> str:
    """`token()` backwards."""
    if not word.startswith("="):
        return word
    coded = word[1:]
    return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()


def subject_of(namespace: str, room: str, key: Key) -> str:
    """The subject of a key: `safepoint.log.SESSION`. Raises: UsageError if it is too long for NATS."""
    made = ".".join([namespace, room, *map(token, key)])
    if len(made) > LONGEST:
        raise UsageError(f"the id {max(key, key=len)[:40]!r}… is too long for NATS")
    return made


def key_of(subject: str) -> Key:
    """`subject_of()` backwards."""
    return tuple(map(text_of, subject.split(".")[2:]))


def stream_name(namespace: str, room: str) -> str:
    """The stream of a shelf, or of the orders."""
    return f"{namespace}-{room}"


def consumer_of(queue: Queue) -> str:
    """The name of the consumer that all workers of a queue share."""
    return f"{queue[0]}-{token(queue[1]).replace('=', '+')}"


def consumer_config(namespace: str, queue: Queue, lease: float) -> ConsumerConfig:
    """Each order to one worker, again when its lease is over, as often as it takes: workers count the attempts."""
    return ConsumerConfig(
        durable_name=consumer_of(queue),
        filter_subject=f"{subject_of(namespace, ORDERS, queue)}.*",
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=lease,
        max_deliver=-1,
        max_ack_pending=-1,
    )


async def consumer_lease(connection: Client, namespace: str, queue: Queue, lease: float) -> float:
    """Make the consumer of a queue if there is none; the lease in force, which is that of whoever made it.

    Raises: what the client library raises, in the same cases.
    """
    jetstream_name, name = stream_name(namespace, ORDERS), consumer_of(queue)
    # The client library always overwrites a consumer that is there; the server is told not to.
    wanted = {
        "stream_name": jetstream_name,
        "config": consumer_config(namespace, queue, lease).as_dict(),
        "action": "create",
    }
    place = f"$JS.API.CONSUMER.DURABLE.CREATE.{jetstream_name}.{name}"
    answer = json.loads((await connection.request(place, json.dumps(wanted).encode(), timeout=ASK_SECONDS)).data)
    if answer.get("error", {}).get("err_code") in CONSUMER_EXISTS:
        info = await connection.jetstream(timeout=ASK_SECONDS).consumer_info(jetstream_name, name)
        return float(info.config.ack_wait or lease)
    if "error" in answer:
        APIError.from_error(answer["error"])
    return float(answer["config"]["ack_wait"]) / 1e9


def configs(namespace: str, replicas: int) -> list[StreamConfig]:
    """All streams."""
    made = [
        StreamConfig(
            name=stream_name(namespace, stream),
            subjects=[f"{namespace}.{stream}.>"],
            max_msgs_per_subject=1 if keeping.newest_only else -1,
            max_age=keeping.seconds or 0,
            num_replicas=replicas,
            allow_direct=True,
        )
        for stream, keeping in KEPT.items()
    ]
    orders = StreamConfig(
        name=stream_name(namespace, ORDERS),
        subjects=[f"{namespace}.{ORDERS}.>"],
        retention=RetentionPolicy.WORK_QUEUE,
        # One order per session: whoever wants to put up a second one is told that there is one.
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        num_replicas=replicas,
    )
    return [*made, orders]


async def ensure(connection: Client, namespace: str, replicas: int, *, create: bool = True) -> None:
    """Make the streams that are missing; those that are there stay as they are. Raises: BrokerError."""
    jetstream, until = connection.jetstream(timeout=ASK_SECONDS), time.monotonic() + READY_SECONDS
    try:
        for config in configs(namespace, replicas):
            await _make(jetstream, config, create, until)
    except BrokerError:
        await connection.close()
        raise


async def _make(jetstream: Any, config: StreamConfig, create: bool, until: float) -> None:
    """Make one stream. A cluster that has only just been started hears no question: it is asked again."""
    while True:
        try:
            try:
                await jetstream.stream_info(config.name)
            except NotFoundError:
                if not create:
                    raise BrokerError(f"there is no stream {config.name}: an operator has to make it") from None
                await jetstream.add_stream(config)
            return
        except (TimeoutError, ServiceUnavailableError) as error:
            if isinstance(error, ServiceUnavailableError) and error.err_code is None:  # nobody there to be asked
                raise BrokerError("there is no JetStream: is it switched on (-js)?") from error
            if time.monotonic() > until:
                told = f"JetStream has not answered for {READY_SECONDS:g} s ({type(error).__name__})"
                raise BrokerError(f"{told}: has the cluster a leader, and may this user ask it?") from error
        except APIError as error:
            if error.err_code == EXISTS:  # somebody was quicker
                return
            raise BrokerError(f"cannot make the stream {config.name}: {error.description}") from error
        except (errors.Error, OSError) as error:
            raise BrokerError(f"JetStream cannot be asked: {type(error).__name__}: {error}") from error
        await asyncio.sleep(AGAIN_SECONDS)  # real time: a leader is elected
