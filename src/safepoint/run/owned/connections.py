"""Owns finding the connection in which a thread is blocked, and freeing the thread from it.

Python cannot interrupt a thread that waits in the system for a socket. But the other side of that wait can be ended:
`shutdown()` makes every read and write on the socket return at once. These rules keep this from hurting anybody else:

- Only a socket that the thread waits for at this moment. The system says in which call it waits, and for which
  descriptor; where it waits for one of several, the innermost frame must be a method of that very socket, or the call
  at which it stands must name it. A connection that merely lies in a variable is not touched.
- A query is interrupted only where the call at which the innermost frame stands names its connection or cursor.
- Nothing that another thread's frames hold as well, and nothing under HTTP/2, where one connection carries the requests
  of many.
- `socket.socket.shutdown`, also for TLS: `SSLSocket`'s own method would drop the TLS layer under the reader, whose next
  read would then return plain bytes.

Name look-ups, libpq, gRPC and curl wait inside C code that holds no socket object: they are named, not reached.
"""

import linecache
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any

from ...abort.process_group import PROC

__all__ = ["Reading", "blocked_in", "waits_for_a_lock"]

# How many frames, from the innermost one outward, may hold the connection that the thread waits for.
INNERMOST = 8
ATTRIBUTES = ("_sock", "sock", "_socket", "socket")
SHARED_BETWEEN_REQUESTS = ("h2.", "hpack.", "httpcore._sync.http2", "httpcore2._sync.http2", "http2")

# System calls by machine: those whose first argument is the descriptor waited for, those that wait for several
# descriptors, and the one that waits for a lock.
_ON_ONE = {
    "x86_64": {0, 1, 19, 20, 42, 43, 44, 45, 46, 47, 288, 299},
    "aarch64": {63, 64, 65, 66, 202, 203, 206, 207, 211, 212, 242, 243},
}
_ON_SEVERAL = {"x86_64": {7, 23, 270, 271}, "aarch64": {72, 73}}
_ON_A_LOCK = {"x86_64": 202, "aarch64": 98}
RUNNING = (-1, -1)

# Frames of generators and coroutines: their variables may be freed while another thread reads them (Python 3.13).
_GENERATORS = 0x20 | 0x80 | 0x200
_FUNCTION = 0x1 | 0x2


def blocked_in(thread: int, native: int, frames: Mapping[int, FrameType]) -> Callable[[], None] | None:
    """What frees the thread from the connection it waits for, or None if it waits for none that may be touched.

    Args:
        thread: The thread's identifier, as `threading.get_ident()` gives it.
        native: Its native id, by which the system knows it.
        frames: The innermost frames of all threads.
    """
    frame = frames.get(thread)
    if frame is None:
        return None
    connection = _waited_for(frame, _system_call(native))
    if connection is None or _carries_many(frame):
        return None
    holders = frames.holders() if isinstance(frames, Reading) else _holders(frames)
    return None if holders.get(id(connection), set()) - {thread} else _freeing(connection)


class Reading(dict[int, FrameType]):
    """The innermost frames of all threads at one moment. Who holds which connection is found once, when first asked."""

    def holders(self) -> dict[int, set[int]]:
        """The threads whose frames hold a connection, by its identity."""
        if self._holders is None:
            self._holders = _holders(self)
        return self._holders

    _holders: dict[int, set[int]] | None = None


def _holders(frames: Mapping[int, FrameType]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for thread, innermost in frames.items():
        for _, connection in _held(innermost, INNERMOST):
            found.setdefault(id(connection), set()).add(thread)
    return found


def waits_for_a_lock(native: int) -> bool:
    """Whether a thread waits for another thread of this process: for a lock, a queue, an event."""
    call = _system_call(native)
    return call is not None and call[0] == _ON_A_LOCK.get(platform.machine())


def _waited_for(frame: FrameType, call: tuple[int, int] | None) -> Any:
    machine = platform.machine()
    number, descriptor = call or RUNNING
    if machine in _ON_ONE and number in _ON_ONE[machine]:
        for _, connection in _held(frame, INNERMOST):
            if isinstance(connection, socket.socket) and connection.fileno() == descriptor:
                return connection
    told = call is not None and machine in _ON_ONE
    polls = not told or number in _ON_SEVERAL[machine]
    for name, connection in _held(frame, 1):
        if issubclass(type(connection), socket.socket):
            if polls and (name == "self" or _names(frame, name)):
                return connection
        elif _names(frame, name):
            return connection
    return None


def _names(frame: FrameType, name: str) -> bool:
    """Whether the call at which the frame stands is made on the variable or attribute of this name."""
    spans = islice(frame.f_code.co_positions(), max(frame.f_lasti, 0) // 2, None)
    entry, end_line, _, _ = next(spans, (None, None, None, None))
    if entry is None or end_line is None:
        return False
    text = "".join(linecache.getline(frame.f_code.co_filename, number) for number in range(entry, end_line + 1))
    return re.search(rf"(?<![\w.]){re.escape(name)}\s*\.\s*\w+\s*\(", text) is not None


def _system_call(native: int) -> tuple[int, int] | None:
    """The system call in which a thread of this process waits, and its first argument. None: it cannot be known."""
    try:
        with open(f"{PROC}/self/task/{native}/syscall", encoding="ascii") as file:
            words = file.read().split()
    except OSError:
        return None
    return RUNNING if len(words) < 2 or words[0] == "running" else (int(words[0]), int(words[1], 16))


def _held(frame: FrameType | None, count: int) -> Iterator[tuple[str, Any]]:
    """The connections in the variables of the innermost `count` frames, each with the name by which it is used."""
    while frame is not None and count:
        if not frame.f_code.co_flags & _GENERATORS:
            for name, value in _variables(frame):
                yield from _connections(name, value)
        frame, count = frame.f_back, count - 1


def _variables(frame: FrameType) -> list[tuple[str, object]]:
    """The variables of another thread's frame, without keeping what they hold alive there."""
    variables = frame.f_locals
    found = list(variables.items())
    is_function = frame.f_code.co_flags & _FUNCTION == _FUNCTION
    # Up to 3.12 the frame keeps this copy until it ends, and with it what its owner may delete meanwhile. Emptied it is
    # filled anew when it is next asked for. Not while a debugger works with it, nor if somebody else holds it.
    if sys.version_info < (3, 13) and is_function and frame.f_trace is None and sys.getrefcount(variables) <= 3:
        variables.clear()
    return found


def _connections(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """The socket or database connection that this is, or that it is a thin layer over. Runs no code of the value."""
    kind = type(value)
    if _is_connection(kind):
        yield name, value
        return
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none
        return
    if type(attributes) is dict:
        for attribute, inner in attributes.copy().items():  # its owner may be filling it
            if _is_connection(type(inner)) and (attribute in ATTRIBUTES or not issubclass(type(inner), socket.socket)):
                yield f"{name}.{attribute}", inner


def _is_connection(kind: type) -> bool:
    # By the type, never by `isinstance`: that asks the object, and proxies answer by running their own code.
    sqlite = sys.modules.get("sqlite3")
    return issubclass(kind, socket.socket) or (
        sqlite is not None and issubclass(kind, sqlite.Connection | sqlite.Cursor)
    )


def _carries_many(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if isinstance(module, str) and any(
            module.startswith(name) or module.endswith(f".{name}") for name in SHARED_BETWEEN_REQUESTS
        ):
            return True
        frame = frame.f_back
    return False


def _freeing(connection: Any) -> Callable[[], None]:
    def free() -> None:
        try:
            if issubclass(type(connection), socket.socket):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            else:  # of a cursor, its connection
                getattr(connection, "connection", connection).interrupt()
        except Exception:
            pass  # it was closed, or never connected, in this very moment: then the thread is free anyway

    return free
