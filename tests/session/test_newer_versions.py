"""Two versions side by side: events that only the newer one knows are kept and numbered, and change nothing."""

from pathlib import Path

import pytest

from safepoint.events import UnknownEvent
from safepoint.session import LocalHost, MemoryStore, Session, SqliteStore, Store
from tests.kit.agents import talker
from tests.kit.sessions import read_all, said

NEWER = '{"v": 1, "kind": "moon_landed", "run_id": "t9", "path": ["agent"], "at": 12.5, "crew": [2]}'


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_session_with_an_event_of_a_newer_version_is_listed_read_and_continued(
    kind: str, tmp_path: Path
) -> None:
    memory = MemoryStore()

    def new() -> Store:
        return memory if kind == "memory" else SqliteStore(tmp_path / "chat.db")

    host = LocalHost(talker("one"), new())
    await host.create("s")
    await one_turn(host, "a")
    await host.close()

    store = new()
    last = (await store.read("s"))[-1]
    await store.append("s", [last._replace(seq=last.seq + 1, text=NEWER, ends=None)], durable=True)
    host = LocalHost(talker("two"), store)
    assert [view.id for view in await host.sessions()] == ["s"]
    await one_turn(host, "b")
    assert said((await host.live("s")).messages) == ["a", "one", "b", "two"]
    await host.close()

    store = new()
    async with Session.open("s", agent=talker(), store=store) as session:
        events = session.events()
    logged = await read_all(events)
    assert [each.seq for each in logged] == [*range(1, len(logged) + 1)]
    unknown = UnknownEvent(run_id="t9", path=("agent",), at=12.5, name="moon_landed", document=NEWER)
    assert logged[last.seq].event == unknown
    assert (await store.read("s", last.seq, 1))[0].text == NEWER


async def one_turn(host: LocalHost, text: str) -> None:
    await host.send("s", text, turn_id=text)
    async for each in host.events("s"):
        if each.event.kind == "turn_ended" and each.event.turn_id == text:
            break
