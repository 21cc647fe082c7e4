"""Leases of keys among the processes of one machine."""

import fcntl
import json
import logging
import os
import socket
from pathlib import Path

from .files import CheckpointInUse, disk_error, file_name, make_folder, timestamp

__all__ = ["FileLease"]

log = logging.getLogger("safepoint")


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
