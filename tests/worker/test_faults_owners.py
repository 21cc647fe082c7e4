"""Two who take themselves for the owner of a session: cut off, stalled, or given one order twice. One is fenced."""

import asyncio
import os
import signal
import time
from pathlib import Path

import nats
import pytest

from tests.conftest import counts
from tests.kit.nats import NatsServer, nats_server
from tests.worker.faulty import LEASE, Lab, Wire, lab
from tests.worker.laws import SLACK

ROUNDS = counts(1, 5)


LONG = "steps=900 pause=0.1"


async def effects_end(there: Lab, name: str, within: float) -> None:
    """A worker that is not the owner any more does nothing more, after a while."""
    begun = time.time()
    await asyncio.sleep(within + 0.5)  # real time: it would go on meanwhile
    late = [float(at) - begun for _, _, at, by in there.effects() if by == name and float(at) > begun + within]
    assert not late, f"{name} still worked {max(late):.1f} s after it had been cut off"


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_a_worker_that_is_cut_off_gives_up_and_another_one_takes_over(tmp_path: Path, seed: int) -> None:
    with nats_server() as server:
        async with Wire(server.port) as wire, lab(tmp_path, server.url) as there:
            await there.start("far", url=wire.url)
            client = await there.client(seed)
            turn_id = await client.send(LONG)
            await there.worker_of(client)
            await there.start("near")
            await asyncio.sleep(0.3 * seed)  # real time: at another moment of its lease
            wire.cut()
            await effects_end(there, "far", 2 * LEASE + 0.5)
            assert (await there.worker_of(client, besides="far")).name == "near"
            wire.mend()
            await asyncio.sleep(1.0)  # real time: what was late arrives
            stop = await client.stop(client.told.chain(turn_id)[-1])
            assert stop.level in ("delivered", "settled"), stop
            await client.until(turn_id, "aborted")
            await there.check()
            assert {by for _, _, _, by in there.effects()[-3:]} == {"near"}


@pytest.mark.parametrize("whole", [False, True], ids=["its supervisor", "all of it"])
async def test_a_worker_that_was_asleep_for_longer_than_its_lease_is_fenced(tmp_path: Path, whole: bool) -> None:
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            slow = await there.start("slow")
            client = await there.client(1)
            turn_id = await client.send(LONG)
            await there.worker_of(client)
            await there.start("other")
            asleep = slow.family if whole else [slow.process.pid]
            signal_all(asleep, signal.SIGSTOP)
            assert (await there.worker_of(client, besides="slow")).name == "other"
            signal_all(asleep, signal.SIGCONT)
            await effects_end(there, "slow", 1.5)
            stop = await client.stop(client.told.chain(turn_id)[-1])
            assert stop.level in ("delivered", "settled"), stop
            await client.until(turn_id, "aborted")
            await there.check()


@pytest.mark.parametrize("whole", [False, True], ids=["its supervisor", "all of it"])
async def test_a_stop_of_a_turn_whose_worker_is_asleep_is_kept_and_the_turn_sealed(tmp_path: Path, whole: bool) -> None:
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            slow = await there.start("slow")
            client = await there.client(1)
            turn_id, waiting = await client.send(LONG), await client.send("steps=1")
            await there.worker_of(client)
            asleep = slow.family if whole else [slow.process.pid]
            signal_all(asleep, signal.SIGSTOP)
            # What sleeps as a whole may do one more thing when it wakes up, before it notices that its place is taken.
            first, second = await client.stop(waiting), await client.stop(turn_id, 10.0 if whole else SLACK)
            # Where only the supervisor sleeps, the process that works reads the record, and is done before the answer.
            levels = {(stop.status, stop.level) for stop in (first, second)}
            assert levels <= {("accepted", "recorded")} | ({("already_finished", "settled")} if not whole else set())
            await there.start("other")
            await client.until(turn_id, "aborted")
            await client.until(waiting, "aborted")
            signal_all(asleep, signal.SIGCONT)
            await effects_end(there, "slow", 1.0)
            assert client.begun == {turn_id}
            await there.check()


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


async def test_a_worker_that_wakes_up_does_not_take_the_order_of_the_next_one_away(tmp_path: Path) -> None:
    """It slept while its session was idle; what it has to say of the order is not said any more."""
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            slow = await there.start("slow")
            client = await there.client(1)
            await client.until(await client.send("steps=1"), "completed")
            slow.send(signal.SIGSTOP)
            other = await there.start("other")
            turn_id = await client.send("steps=40 pause=0.1")
            assert await there.worker_of(client, besides="slow") is other
            slow.send(signal.SIGCONT)
            await asyncio.sleep(0.5)  # real time: it wakes up, and settles what it had
            await other.kill()
            await client.until(turn_id, "completed")
            await there.check()


async def hand_out_again(server: NatsServer, there: Lab) -> None:
    """Let the broker give the one order that is held to somebody else too, at once."""
    stream, consumer = f"{there.namespace}-orders", "any-toiler"
    connection = await nats.connect(server.url)
    try:
        jetstream = connection.jetstream()
        held = await jetstream.get_msg(stream, seq=1, next=True, subject=f"{there.namespace}.orders.any.toiler.*")
        info = await jetstream.consumer_info(stream, consumer)
        assert info.delivered is not None
        place = f"$JS.ACK.{stream}.{consumer}.1.{held.seq}.{info.delivered.consumer_seq}.{time.time_ns()}.0"
        await connection.request(place, b"-NAK")
        await connection.publish(f"{there.namespace}.say.orders.any.toiler", b"")  # be quicker than the next renewal
        await connection.flush()
    finally:
        await connection.close()


async def test_of_two_owners_of_one_order_one_is_fenced(tmp_path: Path) -> None:
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            await asyncio.gather(*(there.start(name, "--concurrency", "1") for name in ("a", "b")))
            client = await there.client(1)
            turn_id = await client.send(LONG)
            await there.worker_of(client)
            for number in range(1, counts(2, 3) + 1):  # a turn is resumed three times at most
                while len(client.told.chain(turn_id)) <= number:  # the owner may have been quicker, and has renewed it
                    await hand_out_again(server, there)
                    await asyncio.sleep(0.5)  # real time: another process opens the session
                await client.carried_on(turn_id, number)
            stop = await client.stop(client.told.chain(turn_id)[-1])
            assert stop.level in ("delivered", "settled"), stop
            await client.until(turn_id, "aborted")
            await there.check()


async def test_leases_and_deadlines_do_not_care_what_the_clock_says(tmp_path: Path) -> None:
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            first, _ = await asyncio.gather(*(there.start(name, agent="tests.worker.jumping:agent") for name in "ab"))
            clients = [await there.client(number) for number in range(2)]
            for client in clients:
                client.talk()
            late = await there.client(7)
            await late.until(await late.send("steps=1"), "completed")
            asked = time.monotonic()
            view = await there.host.send(late.story.session, LONG, turn_id="late", timeout=2.0)
            late.story.accepted.append(view.id)
            await late.until("late", "timed_out")
            assert 1.5 < time.monotonic() - asked < 4.0
            assert "late" in late.begun, "it was not even begun"
            assert len(late.told.chain("late")) == 1, "it lost its lease"
            assert sum(one.kind == "session_opened" for client in clients for one in client.log) <= 8, "leases are lost"
            await first.kill()
            await asyncio.sleep(1.0)  # real time: the other one takes over
            await there.check(same_clock=False)


async def test_a_session_with_many_stops_behind_it_is_opened_within_its_lease(tmp_path: Path) -> None:
    """The record of stops is long, and the process that should be told of them is only just being started."""
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            await there.start("a")
            client = await there.client(1)
            for number in range(40):
                await there.host.stop(client.story.session, f"never-{number}")
            await client.until(await client.send("steps=10 pause=0.2"), "completed")
            assert sum(one.kind == "session_opened" for one in client.log) == 1, "it has lost its lease"
            await there.check()
