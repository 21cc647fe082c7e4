"""Writing text to disk atomically, in files that are named by keys, and the errors of everything that is stored."""

import asyncio
import hashlib
import logging
import os
import secrets
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
