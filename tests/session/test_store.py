"""What a session needs of a store: one suite, over every store there is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from safepoint.session import MemoryStore, SqliteStore, Store

Make = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A new, empty store each time."""
    numbers = iter(range(1000))
    return MemoryStore if request.param == "memory" else lambda: SqliteStore(tmp_path / f"{next(numbers)}.db")


async def test_an_empty_batch_changes_nothing(make: Make) -> None:
    store = make()
    assert await store.append("s", [], durable=True) == frozenset()
    assert await store.sessions() == []
    await store.close()
