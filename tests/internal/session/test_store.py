"""Owns the tests that look inside, beside those of `tests/session/test_store.py`.

What a session needs of a store: one suite, over every store there is.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.session import MemoryStore, SessionInfo, SessionInUse, SqliteStore, Store, StoreError
from safepoint.session.store import LogRecord
from tests.conftest import counts
from tests.session.test_store import Make


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A new, empty store each time."""
    numbers = iter(range(1000))
    return MemoryStore if request.param == "memory" else lambda: SqliteStore(tmp_path / f"{next(numbers)}.db")


def lines(*numbers: int) -> list[LogRecord]:
    return [LogRecord(number, f"line {number}") for number in numbers]


async def test_records_come_back_as_they_were_written_in_order(make: Make) -> None:
    store = make()
    assert await store.acquire("s") == 0
    odd = [LogRecord(1, "Grüße, 世界 \U0001f600 \\ ' \" \n \x00"), LogRecord(2, ""), LogRecord(3, "x" * 1_000_000, "t")]
    assert await store.append("s", odd, durable=False) == frozenset()
    assert await store.append("s", lines(4, 5), durable=True) == frozenset()
    assert await store.read("s") == [*odd, *lines(4, 5)]
    await store.close()


async def test_half_of_a_surrogate_pair_can_be_kept(make: Make) -> None:
    store = make()
    await store.append("s", [LogRecord(1, "half: \ud83d")], durable=True)
    assert await store.read("s") == [LogRecord(1, "half: \ud83d")]
    await store.close()


async def test_reading_goes_by_pages_from_any_number_on(make: Make) -> None:
    store = make()
    await store.append("s", lines(*range(1, 11)), durable=False)
    assert await store.read("s", 0, 4) == lines(1, 2, 3, 4)
    assert await store.read("s", 4, 4) == lines(5, 6, 7, 8)
    assert await store.read("s", 8, 4) == lines(9, 10)
    assert await store.read("s", 10, 4) == []
    assert await store.read("s", 99, 4) == []
    assert await store.read("s", -5, 1) == lines(1)
    assert await store.read("nobody") == []
    await store.close()


async def test_appending_again_changes_nothing(make: Make) -> None:
    store = make()
    await store.append("s", [*lines(1, 2), LogRecord(3, "end", "t")], durable=False)
    again = [*lines(2), LogRecord(3, "end", "t"), *lines(4)]
    assert await store.append("s", again, durable=True) == frozenset(), "it is the same end"
    assert await store.read("s") == [*lines(1, 2), LogRecord(3, "end", "t"), *lines(4)]
    await store.close()


async def test_of_two_ends_of_a_turn_the_first_stands(make: Make) -> None:
    store = make()
    await store.append("s", [*lines(1), LogRecord(2, "first", "t")], durable=True)
    refused = await store.append("s", [*lines(3), LogRecord(4, "second", "t"), *lines(5)], durable=True)
    assert refused == {"t"}
    assert await store.read("s") == [*lines(1), LogRecord(2, "first", "t"), *lines(3, 5)]
    assert await store.append("s", [LogRecord(2, "third, in its very place", "t")], durable=True) == {"t"}
    assert await store.read("s") == [*lines(1), LogRecord(2, "first", "t"), *lines(3, 5)]
    assert await store.append("other", [LogRecord(1, "elsewhere", "t")], durable=True) == frozenset()
    await store.close()


@pytest.mark.parametrize(
    "other",
    [LogRecord(2, "something else"), LogRecord(2, "an end", "u"), LogRecord(2, "half: \ud83d")],
    ids=["line", "end", "odd"],
)
async def test_a_number_that_another_record_has_is_refused_and_nothing_of_the_batch_is_written(
    make: Make, other: LogRecord
) -> None:
    store = make()
    await store.append("s", lines(1, 2), durable=True)
    with pytest.raises(StoreError, match="record 2 of session 's' is in the store already, with other content"):
        await store.append("s", [*lines(3), LogRecord(4, "an end", "t"), other], durable=True)
    with pytest.raises(StoreError, match="record 3 of session 's'"):
        await store.append("s", [*lines(3), LogRecord(3, "twice in one batch")], durable=False)
    assert await store.read("s") == lines(1, 2)
    assert await store.append("s", [*lines(2, 3), LogRecord(4, "the end", "t")], durable=False) == frozenset()
    assert await store.read("s") == [*lines(1, 2, 3), LogRecord(4, "the end", "t")]
    await store.close()


async def test_the_session_with_the_newest_record_is_the_last_of_the_list(make: Make) -> None:
    store = make()
    for name in ("b", "a", "c"):
        await store.append(name, lines(1), durable=False)
    await store.append("a", lines(2, 3), durable=False)
    await store.acquire("only taken")
    assert await store.sessions() == [SessionInfo("b", 1), SessionInfo("c", 1), SessionInfo("a", 3)]
    await store.close()


async def test_one_at_a_time_may_have_a_session(make: Make) -> None:
    store = make()
    await store.append("s", lines(1, 2), durable=False)
    assert await store.acquire("s") == 2
    with pytest.raises(SessionInUse, match="'s' is live already"):
        await store.acquire("s")
    assert await store.acquire("other") == 0
    await store.release("s")
    await store.release("s")
    assert await store.acquire("s") == 2
    await store.close()


async def test_closing_twice_is_no_error(make: Make) -> None:
    store = make()
    await store.append("s", lines(1), durable=False)
    await store.close()
    await store.close()
    await make().close()


async def answer(store: Store, records: list[LogRecord]) -> frozenset[str] | str:
    try:
        return await store.append("s", records, durable=False)
    except StoreError as error:
        return str(error)


@settings(deadline=None, max_examples=counts(30, 500))
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(1, 8), st.sampled_from([None, None, "t", "u"])), max_size=4), max_size=8
    )
)
def test_both_stores_give_the_same_answers_to_any_batches(batches: list[list[tuple[int, str | None]]]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            memory, file = MemoryStore(), SqliteStore(Path(folder) / "s.db")
            for number, batch in enumerate(batches):
                records = [
                    LogRecord(seq, f"{number // 2}/{place // 2}", ends) for place, (seq, ends) in enumerate(batch)
                ]
                assert await answer(memory, records) == await answer(file, records)
                kept = await memory.read("s")
                assert kept == await file.read("s")
                assert await memory.sessions() == await file.sessions()
                numbers = [record.seq for record in kept]
                assert numbers == sorted(set(numbers)), "each number once, in order"
                ended = [record.ends for record in kept if record.ends]
                assert len(ended) == len(set(ended)), "one end for each turn"
            await file.close()

    asyncio.run(play())
