"""Owns where checkpoints are kept: text under a key, saved whole or not at all, used by one at a time.

Knows nothing of what the text means, nor of flows and turn loops, which write it. The store in a database is in
`checkpoints_sqlite.py`.
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
from .checkpoints_files import (
    TEMPORARY,
    CheckpointError,
    CheckpointInUse,
    CheckpointUnreadable,
    FileLease,
    check_key,
    date,
    failed,
    file_name,
    finish,
    make_folder,
    read_back,
    sync_folder,
    write_atomically,
)

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

OLD_SECONDS = 3600.0  # a temporary file of this age belongs to nobody: saving takes milliseconds


class Checkpoints(Protocol):
    """Where checkpoints are kept, as text under a key. Any text may be a key. Raises: CheckpointError."""

    async def save(self, key: str, text: str) -> None:
        """Keep the text in place of what was there. When it returns, the text is on disk.

        Once begun it is not cut in half: an abort comes out when the store has the old text or the new one, for good.
        """
        ...

    async def load(self, key: str) -> str | None:
        """The text that was saved last; None: there is none. Raises: CheckpointUnreadable."""
        ...

    async def delete(self, key: str) -> bool:
        """Forget it. False: there was none."""
        ...

    async def set_aside(self, key: str, why: str) -> str:
        """Move what nobody can read out of the way, and say where it is now. It is never deleted."""
        ...

    def lease(self, key: str) -> AbstractAsyncContextManager[None]:
        """`async with store.lease(key):` nobody else has one meanwhile. Raises: CheckpointInUse."""
        ...


class MemoryCheckpoints:
    """Checkpoints that live as long as this object. `aside` has what was set aside: key, text, why."""

    def __init__(self) -> None:
        self.aside: list[tuple[str, str, str]] = []
        self._texts: dict[str, str] = {}
        self._leases: dict[str, str] = {}

    async def save(self, key: str, text: str) -> None:
        """Keep the text."""
        check_key(key)
        self._texts[key] = check_text(key, text)

    async def load(self, key: str) -> str | None:
        """The text, or None."""
        check_key(key)
        return self._texts.get(key)

    async def delete(self, key: str) -> bool:
        """Forget it. False: there was none."""
        check_key(key)
        return self._texts.pop(key, None) is not None

    async def set_aside(self, key: str, why: str) -> str:
        """Move it to `aside`."""
        check_key(key)
        if key not in self._texts:
            raise nothing_there(key, "memory")
        self.aside.append((key, self._texts.pop(key), why))
        return f"`.aside[{len(self.aside) - 1}]` of this {type(self).__name__}"

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[None]:
        """Exclusive use of the key among all who have this object."""
        check_key(key)
        if key in self._leases:
            raise CheckpointInUse(key, "memory", self._leases[key])
        self._leases[key] = f"this process (pid {os.getpid()}) since {date()}"
        try:
            yield
        finally:
            del self._leases[key]


class FolderCheckpoints:
    """Checkpoints in a folder, one file per key. The folder is made when the first one is saved."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()  # the working directory may change
        self._swept_at: float | None = None

    def __repr__(self) -> str:
        return f"FolderCheckpoints({str(self._folder)!r})"

    async def save(self, key: str, text: str) -> None:
        """Keep the text: a new file takes the old one's place."""
        await finish(self._save, self._path(key), check_text(key, text))

    async def load(self, key: str) -> str | None:
        """The text, or None."""
        return await start_in_thread(read_back, self._path(key))

    async def delete(self, key: str) -> bool:
        """Forget it. False: there was none."""
        return await finish(self._delete, self._path(key))

    async def set_aside(self, key: str, why: str) -> str:
        """Move its file to the folder `aside`, with the reason in a file next to it."""
        return await finish(self._set_aside, key, self._path(key), why)

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[None]:
        """Exclusive use of the key among all processes on this machine."""
        lease = FileLease(key, self._folder, str(self._folder))
        try:
            await finish(lease.take)
            yield
        finally:
            await finish(lease.release)

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
            raise failed(f"delete {path}", error) from error
        return True

    def _set_aside(self, key: str, path: Path, why: str) -> str:
        aside = self._folder / "aside"
        target = aside / f"{path.stem}.{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.checkpoint"
        try:
            if not path.exists():
                raise nothing_there(key, str(self._folder))
            make_folder(aside)
            path.rename(target)
            sync_folder(aside)
            sync_folder(self._folder)
        except OSError as error:
            raise failed(f"set {path} aside", error) from error
        try:
            write_atomically(target.with_suffix(".why"), f"{why}\n")
        except CheckpointError as error:  # it is out of the way, and that is what counts
            log.warning("%s was set aside (%s), but the reason could not be written: %s", target, why, error)
        return str(target)

    def _sweep(self) -> None:
        """Remove what savers that were killed have left behind. Once in a while: it looks at every file."""
        now = time.time()  # the time of files
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
    """The text itself. Raises: UsageError."""
    if not isinstance(text, str):
        raise UsageError(f"Checkpoint {key!r} must be text, not {type(text).__name__}: turn it into JSON first")
    return text


def nothing_there(key: str, where: str) -> CheckpointError:
    """The error for setting aside what is not there."""
    return CheckpointError(f"There is no checkpoint {key!r} in {where} to set aside: it may have been moved already")
