"""Owns the tests of a session seen from afar: nothing is missed, whether or not anybody says that there is news."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from safepoint.abort import AbortReason
from safepoint.models.scripted import Stall
from safepoint.session import LoggedEvent, Session
from safepoint.session.log import RECENT
from safepoint.session.loop_tasks import LoopTasks
from safepoint.worker import MemoryBroker
from safepoint.worker.broker import BrokerConnection, Key
from safepoint.worker.log_follower import LogFollower
from safepoint.worker.store import BrokerStore
from tests.kit.agents import talker
from tests.kit.sessions import until
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, New, each_broker, linked


@asynccontextmanager
async def mirrored(connection: BrokerConnection, **options: float) -> AsyncIterator[LogFollower]:
    loop_tasks = LoopTasks()
    follower = LogFollower(connection, "s", loop_tasks, **options)
    yield follower
    follower.close()
    await loop_tasks.wait_all()


@asynccontextmanager
async def live(connection: BrokerConnection, *answers: Any) -> AsyncIterator[Session]:
    session = await Session.open("s", agent=talker(*answers), store=BrokerStore(connection, "w/1"))
    yield session
    await session.close()


async def follow(follower: LogFollower, upto: int, after: int = 0) -> list[LoggedEvent]:
    """What a reader is given, up to this number."""
    found: list[LoggedEvent] = []
    async with asyncio.timeout(SECONDS), aclosing(follower.follow(after)) as events:
        async for recorded in events:
            found.append(recorded)
            if recorded.seq >= upto:
                break
    return found


@each_broker
async def test_what_was_before_and_what_comes_is_read_once_and_in_order(new: New):
    broker = new()
    async with (
        linked(broker) as connection,
        linked(broker) as there,
        mirrored(connection) as follower,
        asyncio.TaskGroup() as group,
    ):
        async with live(there, "one two three", "four five six") as session:
            await session.send("hello")
            middle = session.last_seq
            await follower.catch_up()
            following = [group.create_task(follow(follower, 2 * middle - 1, after)) for after in (0, 3, middle)]

            async def all_there() -> bool:
                return follower.followers == 3

            await eventually(all_there)
            await session.send("again")
            await session.saved()
            for after, reader in zip((0, 3, middle), following, strict=True):
                assert [one.seq for one in await reader] == list(range(after + 1, 2 * middle))
            assert [turn.outcome.status for turn in follower.state.turns.values() if turn.outcome] == ["completed"] * 2


@each_broker
async def test_a_reader_from_far_back_is_given_everything(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as there, mirrored(connection) as follower:
        async with live(there, "word " * (RECENT + 100)) as session:
            await session.send("hello")
            last = session.last_seq
            assert last > RECENT
            assert [one.seq for one in await follow(follower, last)] == list(range(1, last + 1))
            assert [one.seq for one in await follow(follower, last, 10)] == list(range(11, last + 1))


class Silent:
    """A link over which nobody hears any news."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self.unsaid: list[tuple[Key, bytes]] = []

    async def publish(self, subject: Key, data: bytes) -> None:
        """Say nothing."""
        self.unsaid.append((subject, data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@each_broker
async def test_what_nobody_speaks_of_is_found_all_the_same(new: New):
    async with (
        linked(new()) as connection,
        mirrored(connection, read_seconds=0.05) as follower,
        asyncio.TaskGroup() as group,
    ):
        silent: Any = Silent(connection)
        async with live(silent, "one") as session:
            await session.saved()
            reading = group.create_task(follow(follower, session.last_seq + 5))
            await session.send("hello")
            assert [one.seq for one in await reading][:3] == [1, 2, 3]


@pytest.mark.parametrize(
    "told",
    [lambda said: [*reversed(said), *said], lambda said: said[-1:]],
    ids=["in a wrong order and twice", "after a gap"],
)
async def test_whatever_news_come_what_was_missed_is_read_at_once(told: Any):
    async with (
        linked(MemoryBroker()) as connection,
        mirrored(connection, read_seconds=2 * SECONDS) as follower,
        asyncio.TaskGroup() as group,
    ):
        silent: Any = Silent(connection)
        reading = group.create_task(follow(follower, 5))

        async def there() -> bool:
            return follower.followers == 1

        await eventually(there)
        async with live(silent, "one") as session:
            await session.send("hello")
            await session.saved()
            assert len(silent.unsaid) > 2
            assert not reading.done()
            for subject, said in told(silent.unsaid):
                await connection.publish(subject, said)
            assert [one.seq for one in await reading] == [1, 2, 3, 4, 5]


@each_broker
async def test_the_end_of_a_turn_is_told_when_it_has_come(new: New):
    broker = new()
    async with (
        linked(broker) as connection,
        linked(broker) as there,
        mirrored(connection) as follower,
        asyncio.TaskGroup() as group,
    ):
        async with live(there, [Stall()]) as session:
            turn = session.send("hello", turn_id="t")
            waiting = group.create_task(follower.outcome_of("t"))

            async def listening() -> bool:
                return follower.followers == 1

            await eventually(listening)
            assert not waiting.done()
            turn.stop(reason="enough")
            async with asyncio.timeout(SECONDS):
                outcome = await waiting
            assert outcome is not None
            assert (outcome.status, await follower.outcome_of("t")) == ("aborted", outcome)


async def test_of_a_turn_that_is_handed_over_the_end_of_its_heir_can_be_waited_for():
    broker = MemoryBroker()
    async with linked(broker) as connection, mirrored(connection) as follower, asyncio.TaskGroup() as group:
        async with live(connection, [Stall()]) as session:
            turn = session.send("hello", turn_id="t")
            await until(session, lambda event: event.kind == "turn_started")
            turn.stop(reason=AbortReason("lease_lost", "given back"))
            await turn
        waiting = group.create_task(follower.outcome_of("t", follow_successors=True))
        own = await follower.outcome_of("t")
        assert own is not None
        assert own.status == "aborted"
        successor = await Session.open("s", agent=talker("the end"), store=BrokerStore(connection, "w/2"), resume=True)
        async with asyncio.timeout(SECONDS):
            outcome: Any = await waiting
        assert outcome.value.text == "the end"
        await successor.close()


async def test_whoever_follows_is_let_go_when_the_mirror_is_closed():
    async with linked(MemoryBroker()) as connection, mirrored(connection) as follower, asyncio.TaskGroup() as group:
        following, waiting = group.create_task(follow(follower, 1)), group.create_task(follower.outcome_of("never"))

        async def both() -> bool:
            return follower.followers == 2

        await eventually(both)
        follower.close()
        assert (await following, await waiting) == ([], None)


async def test_nobody_listens_any_more_when_the_last_reader_has_gone():
    broker = MemoryBroker()
    async with linked(broker) as connection, mirrored(connection) as follower:
        async with live(connection) as session:
            await session.saved()
            for _ in range(3):
                await follow(follower, 1)
            assert (follower.followers, broker._hub.listening) == (0, {})


async def test_a_reader_who_cannot_listen_is_not_counted():
    connection = await MemoryBroker().connect("test")
    async with mirrored(connection) as follower:
        await connection.close()
        with pytest.raises(Exception, match="closed"):
            await follow(follower, 1)
        assert follower.followers == 0
