"""The names and settings of everything that Safepoint keeps in JetStream. Knows nothing of its content."""

import asyncio
import base64
import json
import re
import time

from nats import errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from ...errors import UsageError
from ..broker import RETENTION, BrokerError, Key, Queue

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
# A server closes the connection for good when it receives a protocol line of more than 4096 bytes.
MAX_SUBJECT_LENGTH = 2000
# The timeout of one request, the pause before the next try, and how long a cluster may take to elect a leader.
REQUEST_SECONDS = 1.0
RETRY_SECONDS = 0.1
READY_SECONDS = 15.0
# Error codes of the server: "stream name already in use", "no suitable peers for placement", and for consumers "exists
# with other settings".
STREAM_EXISTS = 10058
NO_PEERS = 10005
CONSUMER_EXISTS = (10013, 10105, 10148)


def token(text: str) -> str:
    """The text as one token of a subject, encoded if necessary. Different texts give different tokens."""
    return text if PLAIN.fullmatch(text) else "=" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def text_of(word: str) -> str:
    """The inverse of `token()`."""
    if not word.startswith("="):
        return word
    coded = word[1:]
    return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()


def subject_of(namespace: str, stream: str, key: Key) -> str:
    """The subject of a key, such as `safepoint.log.SESSION`. Raises: UsageError if it is too long for NATS."""
    made = ".".join([namespace, stream, *map(token, key)])
    if len(made) > MAX_SUBJECT_LENGTH:
        raise UsageError(f"the id {max(key, key=len)[:40]!r}… is too long for NATS")
    return made


def key_of(subject: str) -> Key:
    """The inverse of `subject_of()`."""
    return tuple(map(text_of, subject.split(".")[2:]))


def stream_name(namespace: str, stream: str) -> str:
    """The name in JetStream of one of our streams, or of that of the orders."""
    return f"{namespace}-{stream}"


def consumer_of(queue: Queue) -> str:
    """The name of the consumer that all workers of a queue share."""
    return f"{queue[0]}-{token(queue[1]).replace('=', '+')}"


def consumer_config(namespace: str, queue: Queue, lease: float) -> ConsumerConfig:
    """The consumer of a queue: it delivers each order to one worker, and again whenever the lease is over.

    The number of deliveries is not limited here: workers count the attempts, and write the end of what they give up.
    """
    return ConsumerConfig(
        durable_name=consumer_of(queue),
        filter_subject=f"{subject_of(namespace, ORDERS, queue)}.*",
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=lease,
        max_deliver=-1,
        max_ack_pending=-1,
    )


async def consumer_lease(connection: Client, namespace: str, queue: Queue, lease: float) -> float:
    """Create the consumer of a queue if there is none.

    Returns:
        The lease in force, which is that of the connection that created the consumer.

    Raises:
        nats.errors.Error: As the client library raises it.
    """
    jetstream_name, name = stream_name(namespace, ORDERS), consumer_of(queue)
    # The client library overwrites an existing consumer. With "action": "create" the server refuses that.
    wanted = {
        "stream_name": jetstream_name,
        "config": consumer_config(namespace, queue, lease).as_dict(),
        "action": "create",
    }
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{jetstream_name}.{name}"
    answer = json.loads((await connection.request(subject, json.dumps(wanted).encode(), timeout=REQUEST_SECONDS)).data)
    if answer.get("error", {}).get("err_code") in CONSUMER_EXISTS:
        info = await connection.jetstream(timeout=REQUEST_SECONDS).consumer_info(jetstream_name, name)
        return float(info.config.ack_wait or lease)
    if "error" in answer:
        APIError.from_error(answer["error"])  # raises
    return float(answer["config"]["ack_wait"]) / 1e9


def configs(namespace: str, replicas: int) -> list[StreamConfig]:
    """The settings of all streams."""
    made = [
        StreamConfig(
            name=stream_name(namespace, stream),
            subjects=[f"{namespace}.{stream}.>"],
            max_msgs_per_subject=1 if retention.newest_only else -1,
            max_age=retention.seconds or 0,
            num_replicas=replicas,
            allow_direct=True,
        )
        for stream, retention in RETENTION.items()
    ]
    orders = StreamConfig(
        name=stream_name(namespace, ORDERS),
        subjects=[f"{namespace}.{ORDERS}.>"],
        retention=RetentionPolicy.WORK_QUEUE,
        # At most one order for each session: the server refuses a second one.
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        num_replicas=replicas,
    )
    return [*made, orders]


async def ensure(connection: Client, namespace: str, replicas: int, *, create: bool = True) -> None:
    """Create the streams that are missing. Existing ones are not changed.

    Args:
        connection: The connection; it is closed if this fails.
        namespace: The prefix of all names.
        replicas: On how many servers of a cluster each stream is kept.
        create: False to raise an error for a missing stream instead.

    Raises:
        BrokerError: A stream is missing and cannot be created.
    """
    jetstream, until = connection.jetstream(timeout=REQUEST_SECONDS), time.monotonic() + READY_SECONDS
    try:
        for config in configs(namespace, replicas):
            await _ensure_stream(jetstream, config, create, until)
    except BrokerError:
        await connection.close()
        raise


async def _ensure_stream(jetstream: JetStreamContext, config: StreamConfig, create: bool, until: float) -> None:
    """Create one stream if it is missing. A cluster that was just started may not answer, so this tries again."""
    while True:
        try:
            try:
                await jetstream.stream_info(config.name or "")
            except NotFoundError:
                if not create:
                    raise BrokerError(f"there is no stream {config.name}: an operator has to create it") from None
                await jetstream.add_stream(config)
            return
        except (TimeoutError, ServiceUnavailableError) as error:
            # Without a code the error comes from the client library: no server answers JetStream requests at all.
            if isinstance(error, ServiceUnavailableError) and error.err_code is None:
                raise BrokerError("there is no JetStream: is it switched on (-js)?") from error
            if time.monotonic() > until:
                what = f"JetStream has not answered for {READY_SECONDS:g} s ({type(error).__name__})"
                raise BrokerError(f"{what}: does the cluster have a leader, and may this user access it?") from error
        except APIError as error:
            if error.err_code == STREAM_EXISTS:  # another process has created it meanwhile
                return
            # The leader of a cluster that was just started does not know all of its servers yet.
            if error.err_code != NO_PEERS or time.monotonic() > until:
                raise BrokerError(f"cannot create the stream {config.name}: {error.description}") from error
        except (errors.Error, OSError) as error:
            raise BrokerError(f"JetStream cannot be reached: {type(error).__name__}: {error}") from error
        await asyncio.sleep(RETRY_SECONDS)  # real time: the cluster elects a leader
