"""Sessions in a SQLite file: who may have it, what is refused and left alone, and what survives."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from safepoint.session import LogRecord, SessionInUse, SqliteStore, StoreError


async def test_a_refused_store_can_be_used_when_the_holder_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    first, second = SqliteStore(path), SqliteStore(path)
    await first.acquire("s")
    with pytest.raises(SessionInUse):
        await second.acquire("s")
    await first.close()
    assert await second.acquire("s") == 0
    await second.close()


HOLDER = """
import asyncio, sys
from safepoint.session import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.acquire("s")
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


async def test_a_second_process_is_told_who_has_the_file_and_gets_it_when_that_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        store = SqliteStore(path)
        with pytest.raises(SessionInUse, match=rf"in use by process {holder.pid} on .* since "):
            await store.acquire("s")
        holder.kill()
        holder.wait(20)
        assert await store.acquire("s") == 0, "the lease ends with its holder"
        await store.close()


@pytest.mark.parametrize("content", [b"this is not a database, and long enough to be one" * 99, b"SQLite format 3\0x"])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chat.db"
    path.write_bytes(content)
    store = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"chat.db failed .*left as it is"):
            await store.acquire("s")
    await store.close()
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["chat.db"], "no lease, no journal"


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER)")
    db.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="a database of another program"):
        await store.acquire("s")
    await store.close()
    assert path.read_bytes() == before


async def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = SqliteStore(tmp_path / "file" / "chat.db")
    with pytest.raises(StoreError, match="cannot be used"):
        await store.acquire("s")
    await store.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match="unable to open database file"):
        await store.acquire("s")
    await store.close()


async def test_its_threads_end_with_the_store(tmp_path: Path) -> None:
    # The file has a name of its own: threads of another test's store may still be about to end.
    store = SqliteStore(tmp_path / "threads.db")
    await store.sessions()
    threads = [thread for thread in threading.enumerate() if thread.name.endswith("store threads.db")]
    assert len(threads) == 2, "one writes, one reads"
    await store.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()
    assert os.listdir(tmp_path) == ["threads.db"]


async def test_a_file_whose_process_was_killed_in_a_checkpoint_is_opened_with_all_it_has(tmp_path: Path) -> None:
    path, left = tmp_path / "s.db", tmp_path / "left.db"
    store = SqliteStore(path)
    await store.append("s", [LogRecord(1, "first")], durable=True)
    await store.close()
    store = SqliteStore(path)
    records = [LogRecord(number, f"{number} " * 1000) for number in range(2, 100)]
    await store.append("s", records, durable=True)
    shutil.copy(path, left)
    shutil.copy(tmp_path / "s.db-wal", tmp_path / "left.db-wal")
    await store.close()  # the checkpoint: it writes page after page, and the first one says how many there are
    with left.open("r+b") as file:
        file.write(path.read_bytes()[:4096])
    assert left.stat().st_size < path.stat().st_size
    opened = SqliteStore(left)
    assert await opened.read("s") == [LogRecord(1, "first"), *records]
    await opened.close()
