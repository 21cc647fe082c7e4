"""Stores of checkpoints: text under a key, saved whole or not at all, and leased to one user at a time.

The meaning of the text is known only to flows and turn loops, which write it. The store in a database is in
`sqlite_checkpoints.py`.
"""

import logging
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from ..abort.threads import start_in_thread
from ..errors import UsageError
from .files import (
    TEMPORARY,
    CheckpointError,
    CheckpointInUse,
    CheckpointUnreadable,
    check_key,
    disk_error,
    file_name,
    make_folder,
    read_back,
    run_to_end,
    sync_folder,
    timestamp,
    write_atomically,
)
from .lease import FileLease

__all__ = [
    "CheckpointError",
    "CheckpointInUse",
    "CheckpointUnreadable",
    "Checkpoints",
    "FolderCheckpoints",
    "MemoryCheckpoints",
    "read_back",
    "write_atomically",
]

log = logging.getLogger("safepoint")

OLD_SECONDS = 3600.0  # the writer of a temporary file of this age is gone: saving takes milliseconds


class Checkpoints(Protocol):
    """A store of checkpoints: text under a key. Any text may be a key. Every method may raise CheckpointError."""

    async def save(self, key: str, text: str) -> None:
        """Store the text in place of the old one. When this returns, the text is on disk.

        A save that has begun is not cut in half: an abort is raised only when the store durably has the old text or the
        new one.
        """
        ...

    async def load(self, key: str) -> str | None:
        """Return the text that was saved last, or None.

        Raises:
            CheckpointUnreadable: What is stored is not text.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Delete the checkpoint. False if there was none."""
        ...

    async def set_aside(self, key: str, why: str) -> str:
        """Move a checkpoint that cannot be used out of the way, and return where it is now. It is never deleted."""
        ...

    def lease(self, key: str) -> AbstractAsyncContextManager[None]:
        """Lease the key for the block `async with store.lease(key):`. There is only one lease at a time.

        Raises:
            CheckpointInUse: Another owner has leased the key.
        """
        ...


class MemoryCheckpoints:
    """Checkpoints that live as long as this object.

    Attributes:
        aside: What was set aside: key, text and reason.
    """

    def __init__(self) -> None:
        self.aside: list[tuple[str, str, str]] = []
        self._texts: dict[str, str] = {}
        self._leases: dict[str, str] = {}

    async def save(self, key: str, text: str) -> None:
        """Store the text."""
        check_key(key)
        self._texts[key] = check_text(key, text)

    async def load(self, key: str) -> str | None:
        """Return the text, or None."""
        check_key(key)
        return self._texts.get(key)

    async def delete(self, key: str) -> bool:
        """Delete the checkpoint. False if there was none."""
        check_key(key)
        return self._texts.pop(key, None) is not None

    async def set_aside(self, key: str, why: str) -> str:
        """Move the checkpoint to `aside`."""
        check_key(key)
        if key not in self._texts:
            raise missing_error(key, "memory")
        self.aside.append((key, self._texts.pop(key), why))
        return f"`.aside[{len(self.aside) - 1}]` of this {type(self).__name__}"

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[None]:
        """Lease the key among all users of this object."""
        check_key(key)
        if key in self._leases:
            raise CheckpointInUse(key, "memory", self._leases[key])
        self._leases[key] = f"this process (pid {os.getpid()}) since {timestamp()}"
        try:
            yield
        finally:
            del self._leases[key]


class FolderCheckpoints:
    """Checkpoints in a folder, one file per key. The folder is created by the first save."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()  # the working directory may change
        self._swept_at: float | None = None

    def __repr__(self) -> str:
        return f"FolderCheckpoints({str(self._folder)!r})"

    async def save(self, key: str, text: str) -> None:
        """Store the text: a new file replaces the old one."""
        await run_to_end(self._save, self._path(key), check_text(key, text))

    async def load(self, key: str) -> str | None:
        """Return the text, or None."""
        return await start_in_thread(read_back, self._path(key))

    async def delete(self, key: str) -> bool:
        """Delete the checkpoint. False if there was none."""
        return await run_to_end(self._delete, self._path(key))

    async def set_aside(self, key: str, why: str) -> str:
        """Move the file to the folder `aside`, with the reason in a file next to it."""
        return await run_to_end(self._set_aside, key, self._path(key), why)

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[None]:
        """Lease the key among all processes on this machine."""
        lease = FileLease(key, self._folder, str(self._folder))
        try:
            await run_to_end(lease.take)
            yield
        finally:
            await run_to_end(lease.release)

    def _path(self, key: str) -> Path:
        return self._folder / f"{file_name(key)}.checkpoint"

    def _save(self, path: Path, text: str) -> None:
        make_folder(self._folder)
        self._sweep()
        write_atomically(path, text)

    def _delete(self, path: Path) -> bool:
        try:
            path.unlink()
            sync_folder(self._folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_error(f"delete {path}", error) from error
        return True

    def _set_aside(self, key: str, path: Path, why: str) -> str:
        aside = self._folder / "aside"
        target = aside / f"{path.stem}.{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.checkpoint"
        try:
            if not path.exists():
                raise missing_error(key, str(self._folder))
            make_folder(aside)
            path.rename(target)
            sync_folder(aside)
            sync_folder(self._folder)
        except OSError as error:
            raise disk_error(f"set {path} aside", error) from error
        try:
            write_atomically(target.with_suffix(".why"), f"{why}\n")
        except CheckpointError as error:  # the checkpoint itself is out of the way, which is what matters
            log.warning("%s was set aside (%s), but the reason could not be written: %s", target, why, error)
        return str(target)

    def _sweep(self) -> None:
        """Remove temporary files of processes that were killed while saving. It reads the folder, so it runs rarely."""
        now = time.time()  # real time, because it is compared with the times of files
        if self._swept_at is not None and now - self._swept_at < OLD_SECONDS:
            return
        self._swept_at = now
        for path in self._folder.glob(TEMPORARY):
            try:
                if now - path.stat().st_mtime > OLD_SECONDS:
                    path.unlink()
            except OSError as error:
                log.debug("An old temporary file could not be removed: %s", error)


def check_text(key: str, text: str) -> str:
    """Return the text.

    Raises:
        UsageError: It is no text.
    """
    if not isinstance(text, str):
        raise UsageError(f"Checkpoint {key!r} must be text, not {type(text).__name__}: turn it into JSON first")
    return text


def missing_error(key: str, where: str) -> CheckpointError:
    """Make the error for setting aside a checkpoint that does not exist."""
    return CheckpointError(f"There is no checkpoint {key!r} in {where} to set aside: it may have been moved already")
