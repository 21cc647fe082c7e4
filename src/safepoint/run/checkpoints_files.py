"""Writing text to disk atomically, leasing a key to one process at a time, and the errors of both.

The stores of checkpoints that outlive the process are built on it.
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
    "read_back",
    "run_to_end",
    "write_atomically",
]

log = logging.getLogger("safepoint")
T = TypeVar("T")

# Any text of a model can be saved, even half of a surrogate pair, which plain UTF-8 refuses.
ENCODING = ("utf-8", "surrogatepass")

# Bytes that are not escaped in file names. Lower case only, because some file systems treat `A` and `a` as one name. No
# dot, because the endings of our files begin with one.
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
LONGEST_NAME = 150  # a file name may have 255 bytes; the rest is for endings

TEMPORARY = ".safepoint-*.tmp"


class CheckpointError(SafepointError):
    """A checkpoint could not be saved, loaded, moved or leased: the message says which one, where, and what to do."""


class CheckpointUnreadable(CheckpointError):
    """The stored checkpoint is not text. `set_aside` moves it out of the way without losing it."""


class CheckpointInUse(CheckpointError):
    """Another owner has leased this key.

    Attributes:
        key: The key.
        where: The store.
        holder: Who has leased it, and since when.
    """

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
    """Write a file so that at any moment, even after a crash, it has the whole old text or the whole new one.

    The text is written to a temporary file, which then replaces the old one: a rename is atomic. When this returns, the
    new text is on disk. It blocks, so call it in a thread from async code.

    Raises:
        CheckpointError: The disk refused.
    """
    target = Path(os.path.realpath(path))  # a symbolic link is kept, and its target is replaced
    # In the same folder, because a rename to another file system is not atomic.
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
        raise disk_error(f"write {target}", error, state="It has the whole old text or the whole new one.") from error


def read_back(path: str | os.PathLike[str]) -> str | None:
    """Return the text that `write_atomically` wrote; None if there is no such file.

    Raises:
        CheckpointUnreadable: The file does not contain text.
        CheckpointError: The file cannot be read.
    """
    try:
        return Path(path).read_bytes().decode(*ENCODING)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(f"read {path}", error) from error
    except UnicodeDecodeError as error:
        raise unreadable_error(str(path), error) from error


async def run_to_end(fn: Callable[..., T], *args: object, on_interrupt: Callable[[], None] = lambda: None) -> T:
    """Run disk work in a thread and wait for its end, even if the caller is cancelled meanwhile.

    The cancellation is raised afterwards. Otherwise the work would go on without its caller: a save could overwrite a
    later one, or outlive its lease.

    Args:
        fn: The work.
        args: Its arguments.
        on_interrupt: Called when the caller is cancelled. Work that only waits may give up then.
    """
    ended = start_in_thread(fn, *args)
    interruption: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            interruption = error
            on_interrupt()
    if interruption is None:
        return ended.result()
    failure = ended.exception()
    if failure is not None:
        log.warning("While its caller was being stopped: %s", failure)
    try:
        raise interruption from failure
    finally:
        del interruption, failure  # break the cycle between this frame and the traceback of the exception


class FileLease:
    """Exclusive use of a key among processes: a lock (`flock`) on a file, which the kernel drops when the process ends.

    **The protocol.** The file is removed with the lease, so that folders do not fill up. But a lock belongs to the
    opened file, not to its name: a process may open the file, then its holder removes it and unlocks, and the process
    gets a lock on a file without a name, while another one creates a new file and locks that. So:

    - `take` opens or creates the file, locks it, and *then* checks that the name still refers to the locked file. If it
      does not, the lock is worthless, and `take` tries again with the file that has the name now.
    - `release` removes the file *before* it unlocks. In the other order another process could get the lock in between,
      with the check above passed, and then lose its file: a third one would lock a new file of the same name.

    **Forks.** A lock also belongs to all copies of the descriptor. A forked child closes its copies at once
    (`drop_inherited`), so that the lock of a parent that has died does not live on in the child. And `release` unlocks
    explicitly instead of only closing, because a program that is just being started has a copy until its `exec`.
    """

    def __init__(self, key: str, folder: Path, where: str) -> None:
        self._key = key
        self._where = where
        self._path = folder / f"{file_name(key)}.lease"
        self._file: int | None = None

    def take(self) -> None:
        """Take the lease.

        Raises:
            CheckpointInUse: Another owner has it.
            CheckpointError: The disk refused.
        """
        try:
            make_folder(self._path.parent)
            while self._file is None:
                self._try()
        except BlockingIOError:
            raise CheckpointInUse(self._key, self._where, self._holder()) from None
        except OSError as error:
            raise disk_error(f"lock {self._path}", error) from error

    def release(self) -> None:
        """Release the lease. It does nothing if the lease was not taken."""
        _held_leases.discard(self)
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._is_current(file):
                self._path.unlink()
        except OSError as error:
            log.debug("The file of a lease could not be removed: %s", error)
        # Closing is not enough: see the class.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)

    def drop_inherited(self) -> None:
        """Close the copy of a forked child: the lease belongs to the parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current(file):
                holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": timestamp()}
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(holder).encode(), 0)
                self._file = file
                _held_leases.add(self)
        finally:
            if self._file is None:
                os.close(file)

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False

    def _holder(self) -> str:
        try:
            owner = json.loads(self._path.read_bytes())
            pid, host, since = owner["pid"], owner["host"], owner["since"]
        except (OSError, ValueError, KeyError, TypeError):
            return "another owner, who was just taking or releasing it"
        if (pid, host) == (os.getpid(), socket.gethostname()):
            return f"this process (pid {pid}) since {since}"
        return f"process {pid} on {host} since {since}"


_held_leases: set[FileLease] = set()


def _drop_inherited_leases() -> None:
    for lease in _held_leases:
        lease.drop_inherited()
    _held_leases.clear()


os.register_at_fork(after_in_child=_drop_inherited_leases)


def check_key(key: str) -> bytes:
    """Return the bytes of the key.

    Raises:
        UsageError: It is no string, or cannot be written as UTF-8.
    """
    if not isinstance(key, str):
        raise UsageError(f"A checkpoint's key is a string, not {type(key).__name__}: {key!r}")
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The key {key!r} cannot be written as UTF-8: use one without lone surrogates") from error


def file_name(key: str) -> str:
    """Encode a key as a part of a file name: unique, safe on every file system, and readable where possible."""
    data = check_key(key)
    name = "".join(chr(byte) if byte in PLAIN else f"%{byte:02x}" for byte in data) or "%empty"
    if len(name) <= LONGEST_NAME:
        return name
    # No escaped key contains `%s`, so no other key can have this name.
    return f"{name[:64]}%sha256-{hashlib.sha256(data).hexdigest()}"


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, so that they survive a crash.

    Raises:
        CheckpointError: The disk refused.
    """
    try:
        if not folder.is_dir():
            make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
    except OSError as error:
        raise disk_error(f"make the folder {folder}", error) from error


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def timestamp() -> str:
    """Return the present time as text for people."""
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")


def disk_error(doing: str, error: Exception, *, state: str = "") -> CheckpointError:
    """Make the error for something that the disk refused.

    Args:
        doing: What was tried.
        error: The error of the system or the database.
        state: A sentence about the state of the data now.
    """
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    what = " ".join(filter(None, (f"Could not {doing}: {why}.", state)))
    return CheckpointError(f"{what} See that the place exists, has room, and that this process may write there.")


def unreadable_error(which: str, error: UnicodeDecodeError) -> CheckpointUnreadable:
    """Make the error for bytes that are not text."""
    return CheckpointUnreadable(f"{which} is not a checkpoint's text ({error}). Set it aside with `set_aside`.")
