"""Owns the tests of the way of events to readers: numbered, without gap or duplicate, however slow they are."""

import asyncio
from typing import Any

import pytest

from safepoint.agent import Agent
from safepoint.session import MemoryStore, SqliteStore
from tests.kit.servers import ControlledModel, Served, serving

Events = list[tuple[int, dict[str, Any]]]


def numbers(events: Events) -> list[int]:
    return [number for number, _ in events]


def words(events: Events) -> str:
    return "".join(event["text"] for _, event in events if event["kind"] == "text_streamed")


async def test_a_reader_that_comes_back_reads_on_where_it_was(tmp_path: Any):
    faucet = ControlledModel()
    async with serving(Agent(faucet), SqliteStore(tmp_path / "chat.db")) as served:
        session = await served.session()
        await served.send(session)
        read: Events = []
        for number in range(30):
            faucet.say(f"{number} ")
            after = read[-1][0] if read else 0
            async with served.reading(session, after) as reader:  # breaks off after every piece
                read += await reader.until("text_streamed")
        faucet.end()
        async with served.reading(session, read[-1][0]) as reader:
            read += await reader.until("turn_ended")
        assert numbers(read) == list(range(1, len(read) + 1))
        assert words(read) == "".join(f"{number} " for number in range(30))
        assert read == await served.all_events(session)


async def test_the_number_may_come_in_the_address_and_the_header_counts_more():
    async with serving(Agent(ControlledModel())) as served:
        session = await served.session()
        await served.stop(session, "x")
        await served.call("DELETE", f"/api/sessions/{session}")
        await served.session(session)
        assert len(await served.all_events(session)) >= 3
        path = f"/api/sessions/{session}/events"
        async with served.client.stream("GET", path, params={"after": 2}) as response:
            assert await first_id(response) == "3"
        async with served.client.stream("GET", path, params={"after": 2}, headers={"last-event-id": "1"}) as response:
            assert await first_id(response) == "2"
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["content-type"].startswith("text/event-stream")


async def first_id(response: Any) -> str:
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            return str(line.removeprefix("id: "))
    raise AssertionError("nothing came")


async def test_many_readers_read_the_same():
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()

        async def read(reader: Any, ready: asyncio.Event) -> Events:
            events: Events = [await reader.next()]
            ready.set()
            events += await reader.until("turn_ended")
            return events

        async with asyncio.TaskGroup() as group:
            tasks = []
            for _ in range(8):
                ready = asyncio.Event()
                tasks.append(group.create_task(read_all(served, session, read, ready)))
                await ready.wait()
            await served.send(session)
            faucet.end(*(f"{number} " for number in range(200)))
        assert all(task.result() == tasks[0].result() for task in tasks)
        assert numbers(tasks[0].result()) == list(range(1, len(tasks[0].result()) + 1))


async def read_all(served: Served, session: str, read: Any, ready: asyncio.Event) -> Events:
    async with served.reading(session) as reader:
        events: Events = await read(reader, ready)
        return events


async def test_a_slow_reader_holds_nobody_up_and_misses_nothing():
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        async with served.reading(session) as slow:
            await slow.next()  # it is there, and reads no more for now
            await served.send(session)
            faucet.end(*("x" * 4000 for _ in range(1000)))  # far more than any buffer between us holds
            ended = await served.until(session, "turn_ended")
            assert ended["outcome"]["status"] == "completed"
            assert (await served.stop(session, "x"))["status"] == "unknown"
            events = await slow.until("turn_ended")
            assert numbers(events) == list(range(2, 2 + len(events)))
            assert len(words(events)) == 4_000_000


async def test_a_reader_that_leaves_while_it_is_behind_is_forgotten():
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        async with served.reading(session) as slow:
            await slow.next()
            await served.send(session)
            faucet.end(*("x" * 4000 for _ in range(1000)))
            await served.until(session, "turn_ended")
        await nobody_reads(served)


async def nobody_reads(served: Served) -> None:
    async with asyncio.timeout(10):
        while b"safepoint_streams 0.0" not in (await served.call("GET", "/metrics")).content:
            pass


async def test_a_disconnect_is_not_a_stop():
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        turn = await served.send(session)
        await served.until(session, "answer_started")  # and leaves
        await nobody_reads(served)
        faucet.end("all of it")
        ended = await served.until(session, "turn_ended")
        assert (ended["turn_id"], ended["outcome"]["status"]) == (turn, "completed")


async def test_where_the_session_says_so_a_turn_that_nobody_watches_is_stopped():
    faucet = ControlledModel()
    async with serving(Agent(faucet), on_disconnect=0.05) as served:
        session = await served.session()
        turn = await served.send(session)
        await served.until(session, "answer_started")
        async with asyncio.timeout(10):
            while (await served.turn(session, turn))["status"] in ("running", "stopping"):
                pass
        outcome = (await served.turn(session, turn))["outcome"]
        assert (outcome["status"], outcome["reason"]["kind"]) == ("aborted", "disconnected")


async def test_a_reader_who_comes_back_in_time_keeps_the_turn():
    faucet = ControlledModel()
    async with serving(Agent(faucet), on_disconnect=30.0) as served:
        session = await served.session()
        await served.send(session)
        await served.until(session, "answer_started")
        async with served.reading(session) as reader:
            faucet.end("all of it")
            events = await reader.until("turn_ended")
        assert events[-1][1]["outcome"]["status"] == "completed"


async def test_a_head_request_opens_no_stream():
    async with serving(Agent(ControlledModel())) as served:
        session = await served.session()
        answer = await served.call("HEAD", f"/api/sessions/{session}/events")
        assert answer.status_code == 200
        await nobody_reads(served)


@pytest.mark.parametrize("sessions", [200])
async def test_of_a_crowd_that_is_stopped_no_word_is_stored_after_the_end(sessions: int):
    faucets = [ControlledModel() for _ in range(sessions)]
    waiting = iter(faucets)

    class Each:
        """Every turn has a faucet of its own."""

        name = "each"

        def stream(self, request: Any, *, signal: Any) -> Any:
            return next(waiting).stream(request, signal=signal)

    store = MemoryStore()
    async with serving(Agent(Each()), store) as served:
        ids = [await served.session() for _ in range(sessions)]
        turns = {session: await served.send(session) for session in ids}
        for faucet in faucets:
            faucet.say(*("word " for _ in range(20)))
        async with asyncio.TaskGroup() as group:
            acks = [group.create_task(served.stop(session, turn)) for session, turn in turns.items()]
            for faucet in faucets:  # words keep coming while the stops arrive
                faucet.say(*("late " for _ in range(20)))
        assert {ack.result()["status"] for ack in acks} == {"accepted"}
        for session, turn in turns.items():
            while (await served.turn(session, turn))["status"] == "stopping":
                pass
            *before, last = await store.read(session)
            assert last.ends == turn
            assert not any(record.ends for record in before)
