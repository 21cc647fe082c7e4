"""Owns the tests that look inside, beside those of `tests/storage/test_files.py`.

Text on disk, whole; leases that end with their holder; disk work that ends before its caller does.
"""

import asyncio
import os
import re
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint.run import CheckpointError, CheckpointInUse, CheckpointUnreadable
from safepoint.storage.files import file_name, make_folder, read_back, run_to_end, write_atomically
from safepoint.storage.lease import FileLease
from tests.conftest import counts

SECONDS = 30.0


def test_a_file_is_written_and_read_back(tmp_path):
    path = tmp_path / "x.json"
    assert read_back(path) is None
    for text in ("one", "zwei\r\n☃\ud800", ""):
        write_atomically(str(path), text)
        assert read_back(path) == text
    assert list(tmp_path.iterdir()) == [path]


def test_the_text_is_on_disk_before_it_has_its_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    fsync, replace, done = os.fsync, os.replace, []

    def sync(file: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else f"{os.fstat(file).st_size} bytes")
        fsync(file)

    def rename(*names: Path) -> None:
        done.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write_atomically(tmp_path / "x", "text")
    assert done == ["4 bytes", "name", "folder"]


def test_whoever_reads_meanwhile_sees_the_old_text_or_the_new_one(tmp_path):
    path, over, seen = tmp_path / "x", threading.Event(), set()
    texts = [letter * 300_000 for letter in "abc"]
    write_atomically(path, texts[0])

    def read() -> None:
        while not over.is_set():
            seen.add(read_back(path))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(counts(50, 1000)):
        write_atomically(path, texts[number % 3])
    over.set()
    reader.join(SECONDS)
    assert len(seen) > 1
    assert seen <= set(texts)


def test_the_file_has_the_rights_that_any_new_file_has(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "x")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "x").read_text() == "text"


def test_what_cannot_be_written_is_named_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"Could not write .*missing/x: No such file or directory\. It has the whole old"
    ):
        write_atomically(tmp_path / "missing" / "x", "text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"Could not write .*folder: Is a directory"):
        write_atomically(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_disk_that_is_full_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomically(path, "old")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_atomically(path, "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(CheckpointUnreadable, match=r"x is not a checkpoint's text"):
        read_back(tmp_path / "x")


@given(st.text(), st.text())
def test_every_key_has_a_harmless_file_name_of_its_own(one, two):
    assert (file_name(one) == file_name(two)) == (one == two)
    for name in (file_name(one), file_name("long" * 50 + one)):
        assert re.fullmatch(r"[a-z0-9_%-]{1,200}", name)


def test_plain_keys_stay_readable():
    assert file_name("chat-7_b") == "chat-7_b"
    assert file_name("User/ä") == "%55ser%2f%c3%a4"
    assert re.fullmatch(r"k{64}%sha256-[0-9a-f]{64}", file_name("k" * 151))


def test_folders_are_made_with_those_above_them(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


async def test_finish_gives_the_value_or_the_error():
    assert await run_to_end(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await run_to_end(int, "x")


@pytest.mark.backends("asyncio", "uvloop", "eager")
async def test_an_interruption_waits_for_the_end_of_the_work():
    begun, told, end = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert end.wait(SECONDS)

    task = asyncio.create_task(run_to_end(work, on_interrupt=told.set))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    assert not told.is_set()
    for _ in range(3):
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
    assert told.is_set()
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_what_failed_while_its_caller_was_stopped_is_logged(caplog):
    begun, left = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert left.wait(SECONDS)
        raise CheckpointError("the disk is full")

    task = asyncio.create_task(run_to_end(work, on_interrupt=left.set))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "While its caller was being stopped: the disk is full" in caplog.text


def lease(folder: Path) -> FileLease:
    return FileLease("k", folder, "the folder")


def test_the_file_goes_with_the_lease(tmp_path):
    first = lease(tmp_path)
    first.release()  # not taken: nothing to do
    first.take()
    assert [path.name for path in tmp_path.iterdir()] == ["k.lease"]
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_only_one_of_many_threads_has_the_lease_at_a_time(tmp_path):
    barrier, broken, taken = threading.Barrier(4), [], []
    inside = tmp_path / "inside"

    def compete() -> None:
        barrier.wait(SECONDS)
        for _ in range(counts(500, 20_000)):
            mine = lease(tmp_path / "leases")
            try:
                mine.take()
            except CheckpointInUse:
                continue
            try:
                inside.touch(exist_ok=False)
                inside.unlink()
                taken.append(1)
            except OSError as error:
                broken.append(error)
            mine.release()

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS * 10)
    assert not broken
    assert taken
    assert list((tmp_path / "leases").iterdir()) == []


@pytest.mark.parametrize("told", ["", "{", "[]", "{}", '{"pid": 1}'])
def test_a_holder_who_has_not_signed_yet_is_still_a_holder(told, tmp_path):
    holder = lease(tmp_path)
    holder.take()
    (tmp_path / "k.lease").write_text(told)
    with pytest.raises(
        CheckpointInUse, match="Checkpoint 'k' in the folder is in use by another owner, who was just taking"
    ):
        lease(tmp_path).take()
    holder.release()


def test_the_file_of_a_holder_that_was_killed_is_taken_over(tmp_path):
    (tmp_path / "k.lease").write_text('{"pid": 999999, "host": "elsewhere", "since": "long ago", "more": "' + "x" * 900)
    mine = lease(tmp_path)
    mine.take()
    with pytest.raises(CheckpointInUse, match=rf"this process \(pid {os.getpid()}\)"):
        lease(tmp_path).take()
    mine.release()


def test_a_lock_on_a_file_that_was_removed_is_worth_nothing(tmp_path, monkeypatch):
    holder, waiting = lease(tmp_path), lease(tmp_path)
    holder.take()
    real = os.open

    def open_late(*args: object) -> int:
        file = real(*args)  # type: ignore[arg-type]
        monkeypatch.undo()
        holder.release()
        return file

    monkeypatch.setattr(os, "open", open_late)
    waiting.take()
    with pytest.raises(CheckpointInUse):
        lease(tmp_path).take()
    waiting.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lease_whose_file_was_removed_by_hand_leaves_the_next_one_alone(tmp_path):
    first, second = lease(tmp_path), lease(tmp_path)
    first.take()
    (tmp_path / "k.lease").unlink()
    second.take()
    first.release()
    with pytest.raises(CheckpointInUse):
        lease(tmp_path).take()
    second.release()


@pytest.mark.parametrize("copied", [False, True], ids=["alone", "while a program has a copy"])
def test_a_file_that_cannot_be_removed_does_not_keep_the_lease(copied, tmp_path, monkeypatch):
    first, second = lease(tmp_path), lease(tmp_path)
    first.take()
    assert first._file is not None
    copy = os.dup(first._file)  # as every program has that is just being started, until its exec
    if not copied:
        os.close(copy)
    with monkeypatch.context() as patch:

        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied")

        patch.setattr(os, "unlink", refuse)
        patch.setattr(Path, "unlink", refuse)
        first.release()
    assert (tmp_path / "k.lease").exists()
    second.take()
    second.release()
    if copied:
        os.close(copy)


def test_a_place_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "k.lease").mkdir()
    with pytest.raises(CheckpointError, match=r"Could not lock .*k\.lease: Is a directory"):
        lease(tmp_path).take()
