"""Owns how text gets on disk whole, how one process at a time uses it, and the errors of both.

The ground under the stores that outlive the process. Knows nothing of stores.
"""

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from ..abort.threads import start_in_thread
from ..errors import SafepointError, UsageError

__all__ = [
    "CheckpointError",
    "CheckpointInUse",
    "CheckpointUnreadable",
    "FileLease",
    "finish",
    "read_back",
    "write_atomically",
]

log = logging.getLogger("safepoint")
T = TypeVar("T")

# Whatever a model has said can be saved: also half of a surrogate pair, which plain UTF-8 refuses.
ENCODING = ("utf-8", "surrogatepass")

# Lower case only: some file systems take `A` and `a` for one name. No dot: what follows one is ours.
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
LONGEST_NAME = 150  # of the 255 bytes a file name may have; the rest is for endings

TEMPORARY = ".safepoint-*.tmp"


class CheckpointError(SafepointError):
    """A checkpoint could not be saved, loaded, moved or leased: the message says which, where, and what to do."""


class CheckpointUnreadable(CheckpointError):
    """There is a checkpoint, but what is kept is not text: `set_aside` it, and nothing is lost."""


class CheckpointInUse(CheckpointError):
    """Somebody else has leased this key. `holder` says who, and since when."""

    def __init__(self, key: str, where: str, holder: str) -> None:
        super().__init__(key, where, holder)
        self.key = key
        self.where = where
        self.holder = holder

    def __str__(self) -> str:
        return (
            f"Checkpoint {self.key!r} in {self.where} is in use by {self.holder}. Wait until that is over, stop it, or"
            " use another key. The lease ends with its holder, even one that is killed: there is nothing to remove."
        )


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write the file so that at every moment, also after a crash, it has the old text or the new one, whole.

    When it returns, the new text is on disk. It blocks: in async code call it in a thread. Raises: CheckpointError.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    # In the same folder, because only there a rename is atomic.
    temporary = target.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))
    try:
        try:
            with temporary.open("xb") as file:
                file.write(text.encode(*ENCODING))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(target.parent)
    except OSError as error:
        raise failed(f"write {target}", error, left="It has its old text or the new one, whole.") from error


def read_back(path: str | os.PathLike[str]) -> str | None:
    """What `write_atomically` wrote; None: there is no such file. Raises: CheckpointError, CheckpointUnreadable."""
    try:
        return Path(path).read_bytes().decode(*ENCODING)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failed(f"read {path}", error) from error
    except UnicodeDecodeError as error:
        raise unreadable(str(path), error) from error


async def finish(fn: Callable[..., T], *args: object, on_leave: Callable[[], None] = lambda: None) -> T:
    """Run disk work in a thread and wait for its end, also when the caller is interrupted: that comes out afterwards.

    Otherwise a save that nobody waits for any more could overwrite a later one, or outlive its lease. `on_leave`
    tells the work that nobody wants its result: what only waits may give up.
    """
    ended = start_in_thread(fn, *args)
    interruption: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            interruption = error
            on_leave()
    if interruption is None:
        return ended.result()
    failure = ended.exception()
    if failure is not None:
        log.warning("While its caller was being stopped: %s", failure)
    try:
        raise interruption from failure
    finally:
        del interruption, failure  # a frame and its own traceback would keep each other alive


class FileLease:
    """Exclusive use of a key among processes: a lock on a file, which the kernel drops when the process ends.

    The file goes with the lease. So whoever gets the lock looks whether the file is still the one with that name:
    if its holder removed it in between, the lock is worth nothing, and the next try is on the next file.
    """

    def __init__(self, key: str, folder: Path, where: str) -> None:
        self._key = key
        self._where = where
        self._path = folder / f"{file_name(key)}.lease"
        self._file: int | None = None

    def take(self) -> None:
        """Raises: CheckpointInUse; CheckpointError."""
        try:
            make_folder(self._path.parent)
            while self._file is None:
                self._try()
        except BlockingIOError:
            raise CheckpointInUse(self._key, self._where, self._holder()) from None
        except OSError as error:
            raise failed(f"lock {self._path}", error) from error

    def release(self) -> None:
        """Give it back. Does nothing if it was not taken."""
        _held.discard(self)
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._is(file):
                self._path.unlink()
        except OSError as error:
            log.debug("The file of a lease could not be removed: %s", error)
        # Closing is not enough: a program that is just being started has a copy of the descriptor until its exec.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)

    def forget(self) -> None:
        """In a forked child: the lease is the parent's, and must not live on here when the parent is gone."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is(file):
                holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": date()}
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(holder).encode(), 0)
                self._file = file
                _held.add(self)
        finally:
            if self._file is None:
                os.close(file)

    def _is(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False

    def _holder(self) -> str:
        try:
            told = json.loads(self._path.read_bytes())
            pid, host, since = told["pid"], told["host"], told["since"]
        except (OSError, ValueError, KeyError, TypeError):
            return "somebody who came or went at this moment"
        if (pid, host) == (os.getpid(), socket.gethostname()):
            return f"this process (pid {pid}) since {since}"
        return f"process {pid} on {host} since {since}"


_held: set[FileLease] = set()


def _forget_leases() -> None:
    for lease in _held:
        lease.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_leases)


def check_key(key: str) -> bytes:
    """The key's bytes. Raises: UsageError."""
    if not isinstance(key, str):
        raise UsageError(f"A checkpoint's key is a string, not {type(key).__name__}: {key!r}")
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The key {key!r} cannot be written as UTF-8: use one without lone surrogates") from error


def file_name(key: str) -> str:
    """The key as part of a file name: another one for every key, harmless, and readable where possible."""
    data = check_key(key)
    name = "".join(chr(byte) if byte in PLAIN else f"%{byte:02x}" for byte in data) or "%empty"
    if len(name) <= LONGEST_NAME:
        return name
    # No escaped key has `%s`, so that none can have this name.
    return f"{name[:64]}%sha256-{hashlib.sha256(data).hexdigest()}"


def make_folder(folder: Path) -> None:
    """Make it and those above it, so that they are there after a crash too. Raises: CheckpointError."""
    try:
        if not folder.is_dir():
            make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
    except OSError as error:
        raise failed(f"make the folder {folder}", error) from error


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def date() -> str:
    """The time, for people."""
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")


def failed(doing: str, error: Exception, *, left: str = "") -> CheckpointError:
    """The error for what the disk refused. `left`: in which state it is."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    what = " ".join(filter(None, (f"Could not {doing}: {why}.", left)))
    return CheckpointError(f"{what} See that the place exists, has room, and that this process may write there.")


def unreadable(which: str, error: UnicodeDecodeError) -> CheckpointUnreadable:
    """The error for bytes that are no text."""
    return CheckpointUnreadable(f"{which} is not a checkpoint's text ({error}). Set it aside with `set_aside`.")
