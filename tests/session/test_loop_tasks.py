"""Where a session lives: calls from other threads, and tasks that end before it."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from safepoint import Aborted
from safepoint.errors import UsageError
from safepoint.events import TurnQueued
from safepoint.models.scripted import Stall
from safepoint.session import LocalHost, MemoryStore, Session, SqliteStore, StoreError
from safepoint.testing import drain_ready_tasks
from tests.kit.agents import talker
from tests.kit.sessions import first_text, said, stored


def in_a_thread(work: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run this in the event loop of a thread of its own, for at most 20 seconds: what it gave back, or raised."""
    found: list[Any] = []

    def body() -> None:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await work()

        try:
            found.append(asyncio.run(bounded()))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(30)
    return found


CHANGES: list[Callable[[Session], object]] = [
    lambda session: session.send("hi"),
    lambda session: session.stream("hi"),
    lambda session: session.continue_turn(),
    lambda session: session.edit("waits", "another text"),
    lambda session: session.remove("waits"),
    lambda session: session.forget("waits"),
    lambda session: asyncio.run(anext(session.events()).__await__().__next__()),
]


NAMES = ["send", "stream", "continue_turn", "edit", "remove", "forget", "events"]


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
async def test_what_changes_a_session_is_refused_in_another_thread_with_what_to_do(
    change: Callable[[Session], object],
) -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker("1"), store=store, paused=True) as session:
        session.send("first", turn_id="waits")
        await session.saved()
        before = session.last_seq
        with pytest.raises(UsageError, match=r"session 's' was called outside .* runs in another thread: \w+"):
            await asyncio.to_thread(change, session)
        assert session.last_seq == before
        session.resume()
        await session.turns["waits"]
        assert said(session.messages) == ["first", "1"]


async def test_no_message_is_lost_where_threads_send_all_at_once(tmp_path: Path) -> None:
    """Eight threads send 25 times each: by hand-over to the event loop, and from event loops of their own."""
    store, loop_tasks = SqliteStore(tmp_path / "chat.db"), asyncio.get_running_loop()
    async with Session.open("s", agent=talker(*"x" * 200), store=store) as session:
        refused: list[UsageError] = []

        async def saves(name: str) -> None:
            for number in range(25):
                await session.save_messages(f"{name}-{number}", turn_id=f"{name}-{number}")

        def hands_over(name: str) -> None:
            for number in range(25):
                try:
                    session.send("never")
                except UsageError as error:
                    refused.append(error)
                turn_id = f"{name}-{number}"
                loop_tasks.call_soon_threadsafe(functools.partial(session.send, turn_id, turn_id=turn_id))

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                name = str(number)
                if number % 2:
                    group.create_task(asyncio.to_thread(in_a_thread, functools.partial(saves, name)))
                else:
                    group.create_task(asyncio.to_thread(hands_over, name))
        await drain_ready_tasks()
        for turn in session.turns.values():
            await turn
        assert len(refused) == 100
        queued = [event.turn_id for event in await stored(store) if isinstance(event, TurnQueued)]
        assert sorted(queued) == sorted(f"{name}-{number}" for name in range(8) for number in range(25))
        assert all(session.outcome_of(turn_id).status == "completed" for turn_id in queued)  # type: ignore[union-attr]
        assert len(session.messages) == 400
    async with Session.open("s", agent=talker(), store=store) as again:
        assert len(again.messages) == 400
    await store.close()


async def test_what_any_thread_may_do_it_may_do() -> None:
    agent = talker("1", ["half", Stall()], ["again", Stall()])
    async with Session.open("s", agent=agent) as session:

        async def from_elsewhere() -> tuple[Any, ...]:
            first = await session.save_messages("hi", turn_id="t1")
            session.pause()
            session.resume()
            seen = (session.messages, session.turns, session.last_seq, session.outcome_of("t1"))
            await session.saved()
            return first.status, len(seen[0]), session.answer("no question", "x"), session.successor_of("t1")

        [found] = await asyncio.to_thread(in_a_thread, from_elsewhere)
        assert found == ("completed", 2, False, "t1")

        async def stops() -> Any:
            return await session.stop("t2", reason="enough").settled()

        turn, after = session.send("more", turn_id="t2"), session.last_seq
        await first_text(session, after)
        [receipt] = await asyncio.to_thread(in_a_thread, stops)
        assert receipt.reason.message == "enough", "the answer wakes the event loop in which it is awaited"
        assert isinstance((await turn).outcome, Aborted)

        async def closes() -> str:
            said = asyncio.ensure_future(session.save_messages("and more"))
            await asyncio.sleep(0)
            await session.close()
            return (await said).status

        [status] = await asyncio.to_thread(in_a_thread, closes)
        assert status == "aborted"


def left_behind(store: Any, *, ended: bool) -> tuple[Session, Any]:
    """A session whose event loop is closed, and that was not: with a turn in it, which had ended or not."""
    loop = asyncio.new_event_loop()

    async def opens() -> tuple[Session, Any]:
        session = await Session.open("s", agent=talker("1") if ended else talker(["half", Stall()]), store=store)
        turn = session.send("hi", turn_id="t")
        if ended:
            await turn
        else:
            await first_text(session)
            await session.saved()
        return session, turn

    try:
        return loop.run_until_complete(opens())
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is what this is about
        loop.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_session_whose_event_loop_is_gone_can_be_closed_and_opened_again(
    tmp_path: Path, kind: str, ended: bool
) -> None:
    store: Any = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "chat.db")
    session, turn = left_behind(store, ended=ended)

    async def then() -> None:
        async with asyncio.timeout(20):
            with pytest.raises(UsageError, match=r"which is closed: close the session, and open it again"):
                session.send("more")
            await session.close()
            await session.close()
            assert (await turn).status == ("completed" if ended else "failed"), "whoever waits for it is told"
            again = await Session.open("s", agent=talker("2"), store=store)
            await session.close()  # a third time: it must not give back what somebody else has now
            with pytest.raises(StoreError, match="live already"):
                await Session.open("s", agent=talker(), store=store)
            assert (await again.send("more")).status == "completed"
            await again.close()
            await store.close()

    asyncio.run(then())


def test_what_a_closed_event_loop_has_left_unwritten_is_told_when_its_session_is_closed() -> None:
    async def leaves() -> Session:
        session = await Session.open("s", agent=talker("1"), store=MemoryStore())
        session.send("never written")
        return session

    session = asyncio.run(leaves())
    with pytest.raises(StoreError, match=r"not closed before its event loop was: its last \d events were not written"):
        asyncio.run(session.close())


def test_a_host_whose_event_loop_is_gone_can_be_closed(tmp_path: Path) -> None:
    async def leaves() -> LocalHost:
        host = LocalHost(talker("1"), SqliteStore(tmp_path / "chat.db"))
        await host.create("s")
        await host.send("s", "hi", turn_id="t")
        await (await host.live("s")).turns["t"]
        return host

    async def again() -> None:
        async with asyncio.timeout(20):
            await host.close()
            other = LocalHost(talker("2"), SqliteStore(tmp_path / "chat.db"))
            assert len((await other.live("s")).messages) == 2
            await other.close()

    host = asyncio.run(leaves())
    asyncio.run(again())


def test_a_session_whose_event_loop_stands_still_says_so() -> None:
    loop = asyncio.new_event_loop()

    async def opens() -> Session:
        return await Session.open("s", agent=talker("1"))

    session = loop.run_until_complete(opens())
    with pytest.raises(UsageError, match="does not run at the moment"):
        asyncio.run(session.close())
    turn = session.send("at home, between two runs of its event loop")
    assert loop.run_until_complete(turn.wait()).status == "completed"
    loop.run_until_complete(session.close())
    loop.close()
