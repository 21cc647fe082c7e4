"""Stores of checkpoints: the same promises from all of them, also when their process is killed at any moment."""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, shield
from safepoint.errors import SafepointError, UsageError
from safepoint.run import (
    CheckpointError,
    CheckpointInUse,
    Checkpoints,
    CheckpointUnreadable,
    FolderCheckpoints,
    MemoryCheckpoints,
    SqliteCheckpoints,
)
from tests.conftest import counts
from tests.kit.programs import alive

SECONDS = 30.0


ROOT = Path(__file__).parent.parent.parent


DURABLE: dict[str, Callable[[Path], Checkpoints]] = {
    "folder": lambda place: FolderCheckpoints(place / "kept"),
    "sqlite": lambda place: SqliteCheckpoints(place / "kept" / "kept.db"),
}


STORES: dict[str, Callable[[Path], Checkpoints]] = {"memory": lambda place: MemoryCheckpoints(), **DURABLE}


TEXTS = ["", "one", "ünï ☃ 𝄞", "a\r\nb\n\0c\n", "half a pair: \ud800", "long " * 200_000]


KEYS = [
    *("", " ", ".", "..", "../x", "..%2fx", "/x", "x", "X", "a/b", "a\\b", "a b", "%empty", "%", "%2e", "aside"),
    *("x.checkpoint", "nul\0", "line\nline", "ünï", "u\u0308ni\u0308", "☃", "k" * 300, "k" * 299, "☃" * 300, "'; --"),
]


@pytest.fixture(params=STORES)
def store(request, tmp_path) -> Checkpoints:
    return STORES[request.param](tmp_path)


@pytest.fixture(params=DURABLE)
def kind(request) -> str:
    """A store that outlives its process."""
    return str(request.param)


@pytest.mark.parametrize("text", TEXTS, ids=["empty", "short", "unicode", "controls", "surrogate", "long"])
async def test_what_was_saved_is_loaded(store, text):
    await store.save("k", text)
    assert await store.load("k") == text


async def test_the_last_text_that_was_saved_counts(store):
    for text in ("one", "a longer one", "two"):
        await store.save("k", text)
    assert await store.load("k") == "two"


async def test_where_there_is_none_nothing_is_loaded_or_deleted(store):
    assert await store.load("k") is None
    assert await store.delete("k") is False
    await store.save("other", "text")
    assert await store.load("k") is None
    assert await store.delete("k") is False
    assert await store.load("other") == "text"


async def test_what_was_deleted_is_gone_and_can_be_saved_again(store):
    await store.save("k", "one")
    assert await store.delete("k") is True
    assert await store.load("k") is None
    assert await store.delete("k") is False
    await store.save("k", "two")
    assert await store.load("k") == "two"


async def test_every_key_has_a_place_of_its_own(store):
    for number, key in enumerate(KEYS):
        await store.save(key, str(number))
    assert [await store.load(key) for key in KEYS] == [str(number) for number in range(len(KEYS))]
    for key in KEYS[::2]:
        assert await store.delete(key)
    assert [await store.load(key) is None for key in KEYS] == [number % 2 == 0 for number in range(len(KEYS))]


async def test_wrong_keys_and_texts_are_refused_with_what_to_do(store):
    with pytest.raises(UsageError, match="key is a string, not int: 7"):
        await store.load(7)
    with pytest.raises(UsageError, match="without lone surrogates"):
        await store.save("\ud800", "text")
    with pytest.raises(UsageError, match=r"Checkpoint 'k' must be text, not dict: turn it into JSON first"):
        await store.save("k", {})
    with pytest.raises(UsageError):
        async with store.lease(None):
            pytest.fail("leased")
    for wrong in (store.delete(b"k"), store.set_aside(b"k", "why")):
        with pytest.raises(UsageError):
            await wrong


async def test_what_is_set_aside_is_out_of_the_way_and_kept(store):
    places = []
    for text in ("one", "two"):
        await store.save("k", text)
        places.append(await store.set_aside("k", "it cannot be parsed"))
        assert await store.load("k") is None
        assert await store.delete("k") is False
    assert len(set(places)) == 2
    assert all(places)
    await store.save("k", "three")
    assert await store.load("k") == "three"


async def test_setting_aside_what_is_not_there_is_an_error_that_names_it(store):
    with pytest.raises(CheckpointError, match=r"no checkpoint 'k' in .* to set aside"):
        await store.set_aside("k", "why")
    await store.save("other", "text")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'k' in .* to set aside"):
        await store.set_aside("k", "why")


async def test_a_lease_excludes_a_second_one_and_says_who_holds_it(store):
    async with store.lease("k"):
        with pytest.raises(CheckpointInUse) as raised:
            async with store.lease("k"):
                pytest.fail("leased twice")
        async with store.lease("another"):
            pass
    message = str(raised.value)
    assert message.startswith("Checkpoint 'k' in ")
    assert f"this process (pid {os.getpid()}) since 20" in message
    assert "Wait until that is over, stop it, or use another key" in message
    assert raised.value.key == "k"
    assert isinstance(raised.value, SafepointError)


async def test_a_lease_is_free_again_however_it_was_left(store):
    async with store.lease("k"):
        pass
    with pytest.raises(LookupError):
        async with store.lease("k"):
            raise LookupError
    controller = AbortController()
    with pytest.raises(AbortError):
        with controller.signal.guard():
            async with store.lease("k"):
                controller.abort()
                await asyncio.sleep(SECONDS)  # real time: the abort ends it at once
    async with store.lease("k"):
        await store.save("k", "text")  # a lease is for those who lease; the key stays usable
    assert await store.load("k") == "text"


async def test_every_key_has_a_lease_of_its_own(store):
    leases = [store.lease(key) for key in KEYS]
    for lease in leases:
        await lease.__aenter__()
    for lease in leases:
        await lease.__aexit__(None, None, None)


async def test_only_one_of_many_tasks_gets_the_lease(store):
    gate, got, refused = asyncio.Event(), [], []

    def tried() -> None:  # also by the one that got it, which may be told last
        if len(got) + len(refused) == 8:
            gate.set()

    async def want(number: int) -> None:
        try:
            async with store.lease("k"):
                got.append(number)
                tried()
                await gate.wait()
        except CheckpointInUse:
            refused.append(number)
            tried()

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(want(number))
    assert len(got) == 1
    assert len(refused) == 7


async def test_many_tasks_may_save_at_once(store):
    async def save(number: int) -> None:
        await store.save(f"k{number}", str(number) * 1000)
        await store.save("shared", str(number) * 1000)

    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(save(number))
    assert [await store.load(f"k{number}") for number in range(12)] == [str(number) * 1000 for number in range(12)]
    shared = await store.load("shared")
    assert shared in [str(number) * 1000 for number in range(12)]


async def test_clean_up_after_an_abort_may_save(store):
    controller = AbortController()
    with pytest.raises(AbortError):
        with controller.signal.guard():
            try:
                controller.abort()
                await asyncio.sleep(SECONDS)  # real time: the abort ends it at once
            finally:
                with shield(SECONDS):
                    await store.save("k", "saved before anyone is told")
    assert await store.load("k") == "saved before anyone is told"


async def test_another_object_at_the_same_place_sees_the_same(kind, tmp_path):
    one, two = DURABLE[kind](tmp_path), DURABLE[kind](tmp_path)
    await one.save("k", "text")
    assert await two.load("k") == "text"
    async with one.lease("k"):
        with pytest.raises(CheckpointInUse):
            async with two.lease("k"):
                pytest.fail("leased twice")
    assert await two.delete("k")
    assert await one.load("k") is None


async def test_nothing_is_made_before_something_is_saved(kind, tmp_path):
    store = DURABLE[kind](tmp_path)
    assert await store.load("k") is None
    assert not await store.delete("k")
    assert list(tmp_path.iterdir()) == []


async def test_it_stays_where_it_was_made_when_the_working_directory_changes(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = DURABLE[kind](Path())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await store.save("k", "text")
    assert (tmp_path / "kept").is_dir()
    assert str(tmp_path / "kept") in repr(store)


async def test_a_place_that_cannot_be_used_gives_an_error_that_names_it(kind, tmp_path):
    (tmp_path / "kept").write_text("in the way")
    store = DURABLE[kind](tmp_path)
    with pytest.raises(CheckpointError, match=r"Could not make the folder .*kept: .* See that the place exists"):
        await store.save("k", "text")
    with pytest.raises(CheckpointError, match="kept"):
        async with store.lease("k"):
            pytest.fail("leased")
    assert (tmp_path / "kept").read_text() == "in the way"


async def guarded(signal: AbortSignal, store: Checkpoints, text: str) -> None:
    with signal.guard():
        await store.save("k", text)


@pytest.mark.parametrize("how", ["abort", "task"])
async def test_a_save_that_is_interrupted_anywhere_leaves_old_or_new_and_never_comes_late(kind, how, tmp_path):
    store, interrupted = DURABLE[kind](tmp_path), 0
    await store.save("k", "first")
    began = time.monotonic()
    await store.save("k", "second")
    usual = time.monotonic() - began
    for number in range(counts(30, 500)):
        old, new, later = f"old {number}", f"new {number} " * 2000, f"later {number}"
        await store.save("k", old)
        controller = AbortController()
        task = asyncio.create_task(guarded(controller.signal, store, new))
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        if number % 3:
            await asyncio.sleep(random.random() * usual)  # real time: the stop has to come at any moment of a save
        _ = controller.abort() if how == "abort" else task.cancel()
        await asyncio.wait([task], timeout=SECONDS)
        assert task.done()
        interrupted += task.cancelled() or task.exception() is not None
        assert await store.load("k") in (old, new)
        await store.save("k", later)
        assert await store.load("k") == later
    assert interrupted
    assert await store.load("k") == later


PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from tests.storage.test_checkpoints import DURABLE

store = DURABLE[sys.argv[1]](Path(sys.argv[2]))

async def save():
    number = 0
    while True:
        number += 1
        await store.save("k", f"{number}:{'x' * number * 20_000}:{number}")
        print(number, flush=True)

async def hold():
    async with store.lease("k"):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

async def fork():
    async with store.lease("k"):
        if not os.fork():
            print(os.getpid(), flush=True)
            sys.stdin.readline()
            os._exit(0)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(globals()[sys.argv[3]]())
"""


@contextmanager
def program(kind: str, place: Path, what: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process at work on the store. It is killed in the end, and also when it says nothing for too long."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, kind, str(place), what]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as other:  # type: ignore[call-overload]
        watchdog = threading.Timer(SECONDS, other.kill)
        watchdog.start()
        try:
            yield other
        finally:
            watchdog.cancel()
            other.kill()
            other.wait(SECONDS)


def line(other: "subprocess.Popen[str]") -> str:
    """The next thing it says."""
    assert other.stdout is not None
    told = other.stdout.readline()
    assert told, "it has ended"
    return told.rstrip("\n")


def test_a_process_that_is_killed_while_it_saves_leaves_a_whole_text(kind, tmp_path):
    for _ in range(counts(4, 60)):
        with program(kind, tmp_path, "save") as saver:
            for _ in range(random.randint(1, 4)):
                acknowledged = int(line(saver))
            time.sleep(random.random() * 0.02)  # real time: the kill has to come at any moment of a save
            saver.kill()
            saver.wait(SECONDS)
        text = asyncio.run(DURABLE[kind](tmp_path).load("k"))
        assert text is not None
        number, body, end = text.split(":")
        assert number == end
        assert body == "x" * int(number) * 20_000
        assert int(number) >= acknowledged


def test_two_processes_may_save_at_once(kind, tmp_path):
    with program(kind, tmp_path, "save") as one, program(kind, tmp_path, "save") as two:
        for _ in range(5):
            assert line(one)
            assert line(two)
        text = asyncio.run(DURABLE[kind](tmp_path).load("k"))
    assert text is not None
    assert text.split(":")[0] == text.split(":")[2]


def leased(kind: str, place: Path) -> None:
    """Lease the key and give it back. Raises: CheckpointInUse."""

    async def lease() -> None:
        async with DURABLE[kind](place).lease("k"):
            pass

    asyncio.run(lease())


def test_two_processes_cannot_lease_one_key(kind, tmp_path):
    with program(kind, tmp_path, "hold") as holder:
        assert line(holder) == "held"
        with pytest.raises(CheckpointInUse, match=rf"in use by process {holder.pid} on \S+ since 20\d\d-"):
            leased(kind, tmp_path)
        holder.communicate("done\n", timeout=SECONDS)
        assert holder.returncode == 0
        leased(kind, tmp_path)


def test_the_lease_of_a_process_that_was_killed_is_free(kind, tmp_path):
    with program(kind, tmp_path, "hold") as holder:
        assert line(holder) == "held"
        holder.kill()
        holder.wait(SECONDS)
        leased(kind, tmp_path)


def test_a_forked_child_does_not_keep_the_lease_of_its_parent(kind, tmp_path):
    with program(kind, tmp_path, "fork") as parent:
        child = int(line(parent))
        with pytest.raises(CheckpointInUse):
            leased(kind, tmp_path)
        parent.kill()
        parent.wait(SECONDS)
        assert alive(child)
        leased(kind, tmp_path)


async def test_memory_keeps_what_was_set_aside_with_the_reason():
    store = MemoryCheckpoints()
    await store.save("k", "text")
    assert await store.set_aside("k", "why") == "`.aside[0]` of this MemoryCheckpoints"
    assert store.aside == [("k", "text", "why")]


async def test_no_key_leaves_the_folder(tmp_path):
    store = FolderCheckpoints(tmp_path / "kept")
    for key in KEYS:
        await store.save(key, key)
        async with store.lease(key):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert len(list((tmp_path / "kept").iterdir())) == len(KEYS)
    assert all(path.is_file() and path.suffix == ".checkpoint" for path in (tmp_path / "kept").iterdir())
    folded = {path.name.casefold() for path in (tmp_path / "kept").iterdir()}
    assert len(folded) == len(KEYS), "not on a file system without case either"


async def test_a_file_has_the_text_and_nothing_else(tmp_path):
    await FolderCheckpoints(tmp_path).save("chat-7", "text")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("chat-7.checkpoint", "text")]


async def test_what_is_set_aside_lies_in_a_folder_with_its_reason(tmp_path):
    store = FolderCheckpoints(tmp_path)
    await store.save("k", "text")
    place = Path(await store.set_aside("k", "it cannot be parsed"))
    assert place.parent == tmp_path / "aside"
    assert place.name.startswith("k.20")
    assert place.read_text() == "text"
    assert place.with_suffix(".why").read_text() == "it cannot be parsed\n"


async def test_a_reason_that_cannot_be_written_does_not_bring_it_back(tmp_path, monkeypatch, caplog):
    store = FolderCheckpoints(tmp_path)
    await store.save("k", "text")
    real = os.fsync

    def full(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".tmp"):
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    place = Path(await store.set_aside("k", "because"))
    assert place.read_text() == "text"
    assert await store.load("k") is None
    assert "because" in caplog.text
    assert "No space left on device" in caplog.text


async def test_bytes_that_are_no_text_are_named_and_can_be_set_aside(tmp_path):
    store = FolderCheckpoints(tmp_path)
    (tmp_path / "k.checkpoint").write_bytes(b"\xff\xfe half")
    with pytest.raises(CheckpointUnreadable, match=r"k\.checkpoint is not a checkpoint's text .* Set it aside"):
        await store.load("k")
    place = await store.set_aside("k", "not text")
    assert Path(place).read_bytes() == b"\xff\xfe half"
    assert await store.load("k") is None


async def test_an_old_file_that_cannot_be_swept_does_not_hinder_saving(tmp_path):
    store = FolderCheckpoints(tmp_path)
    (tmp_path / ".safepoint-0123.tmp").mkdir()
    os.utime(tmp_path / ".safepoint-0123.tmp", (1, 1))
    await store.save("k", "text")
    assert await store.load("k") == "text"


@pytest.mark.parametrize("wrong", [FolderCheckpoints.load, FolderCheckpoints.delete])
async def test_a_file_that_is_no_file_gives_an_error_that_names_it(wrong, tmp_path):
    (tmp_path / "k.checkpoint").mkdir()
    with pytest.raises(CheckpointError, match=r"Could not (read|delete) .*k\.checkpoint: "):
        await wrong(FolderCheckpoints(tmp_path), "k")


async def test_a_checkpoint_that_cannot_be_moved_stays(tmp_path):
    store = FolderCheckpoints(tmp_path)
    await store.save("k", "text")
    (tmp_path / "aside").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"Could not make the folder .*aside"):
        await store.set_aside("k", "why")
    assert await store.load("k") == "text"


class Gate:
    """Holds up whoever waits for the disk, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._wait)

    def _wait(self, file: int) -> None:
        self.reached.set()
        assert self.opened.wait(SECONDS)
        self._fsync(file)


async def test_a_slow_disk_does_not_block_the_loop(tmp_path, monkeypatch):
    store, gate = FolderCheckpoints(tmp_path), Gate(monkeypatch)
    task = asyncio.create_task(store.save("k", "new"))
    # All of this runs on the loop while the save waits for the disk.
    assert await asyncio.to_thread(gate.reached.wait, SECONDS)
    assert await store.load("k") is None
    assert not task.done()
    gate.opened.set()
    await task
    assert await store.load("k") == "new"


@pytest.mark.backends("asyncio", "uvloop", "eager")
@pytest.mark.parametrize("how", ["abort", "task"])
async def test_a_save_that_was_begun_ends_before_the_stop_comes_out(how, tmp_path, monkeypatch):
    store, gate, controller = FolderCheckpoints(tmp_path), Gate(monkeypatch), AbortController()
    task = asyncio.create_task(guarded(controller.signal, store, "new"))
    assert await asyncio.to_thread(gate.reached.wait, SECONDS)
    for _ in range(2):
        _ = controller.abort() if how == "abort" else task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
    assert not task.done()
    gate.opened.set()
    with pytest.raises(AbortError if how == "abort" else asyncio.CancelledError):
        await task
    assert await store.load("k") == "new"


async def test_a_load_from_a_disk_that_hangs_can_be_left(tmp_path):
    store, controller = FolderCheckpoints(tmp_path), AbortController()
    pipe = tmp_path / "k.checkpoint"
    os.mkfifo(pipe)  # who opens it waits for a writer
    task = asyncio.create_task(controller.signal.run(store.load("k")))
    await asyncio.sleep(0)
    controller.abort()
    with pytest.raises(AbortError):
        await task
    # Only when somebody reads can it be opened without waiting: so the load was under way, and ends here.
    while True:
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            break
        except OSError:
            await asyncio.sleep(0.001)  # real time: the thread of the load has to get there
