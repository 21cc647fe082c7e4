"""Owns finding the connection in which a thread is blocked, and unblocking the thread.

Python cannot interrupt a thread that waits in a system call for a socket. But `shutdown()` makes every read and write
on that socket return at once. The danger is to shut down a connection that other code uses: a leaf may have sockets of
a shared pool in its variables. So a socket may be shut down only if all of this holds:

- The thread waits for it at this moment. The system shows in which call a thread waits, and for which descriptor. If
  it waits for one of several descriptors (`poll`), or the system does not show it, the innermost frame must be a method
  of that socket, or the source of its current call must name it. A socket that is only in a variable is not touched.
- No frame of another thread holds it. Otherwise the other thread may use it, now or next.
- No frame belongs to HTTP/2, where one connection carries the requests of many callers.
- It was not connected inside `detached()`, which marks what belongs to the application.

A database query is interrupted under the same conditions, if the source of the current call names its connection or
cursor. For TLS, too, the method that is called is `socket.socket.shutdown`: `SSLSocket.shutdown` would remove the TLS
layer under the reader, whose next read would return encrypted bytes as data.

Name look-ups, libpq, gRPC and curl wait inside C code without a socket object. Their threads are named in the receipt,
not unblocked.
"""

import linecache
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, TypeGuard, cast

from ...process.group import PROC

if TYPE_CHECKING:
    import sqlite3

__all__ = ["ThreadFrames", "blocked_in", "leave_alone", "waits_for_a_lock"]

# In how many frames, from the innermost one outward, the connection is searched.
INNERMOST = 8
# How many sockets of the application are remembered.
LEFT_ALONE = 10_000
ATTRIBUTES = ("_sock", "sock", "_socket", "socket")
SHARED_BETWEEN_REQUESTS = ("h2.", "hpack.", "httpcore._sync.http2", "httpcore2._sync.http2", "http2")

# The numbers of system calls on each machine: calls whose first argument is the descriptor that they wait for, calls
# that wait for several descriptors, and the call that waits for a lock.
_ON_ONE = {
    "x86_64": {0, 1, 19, 20, 42, 43, 44, 45, 46, 47, 288, 299},
    "aarch64": {63, 64, 65, 66, 202, 203, 206, 207, 211, 212, 242, 243},
}
_ON_SEVERAL = {"x86_64": {7, 23, 270, 271}, "aarch64": {72, 73}}
_ON_A_LOCK = {"x86_64": 202, "aarch64": 98}
RUNNING = (-1, -1)

# Frames of generators and coroutines are skipped: in Python 3.13, their variables may be freed while another thread
# reads them.
_GENERATORS = 0x20 | 0x80 | 0x200
_FUNCTION = 0x1 | 0x2


def blocked_in(
    thread: int, native: int, frames: Mapping[int, FrameType], *, proc: str = PROC
) -> Callable[[], None] | None:
    """Find the connection in which a thread is blocked.

    Args:
        thread: The identifier of the thread (`threading.get_ident()`).
        native: Its native id, which the system uses.
        frames: The innermost frames of all threads.
        proc: Where the system shows its processes.

    Returns:
        A function that unblocks the thread; None if it waits for no connection, or for one that must not be touched.
    """
    frame = frames.get(thread)
    if frame is None:
        return None
    connection = _waited_for(frame, _system_call(native, proc))
    if connection is None or _is_multiplexed(frame) or _inode(connection) in _left_alone:
        return None
    holders = frames.holders() if isinstance(frames, ThreadFrames) else _holders(frames)
    return None if holders.get(id(connection), set()) - {thread} else _unblocking(connection)


def leave_alone(connection: object) -> None:
    """Never unblock a thread from this socket: it belongs to the application."""
    inode = _inode(connection)
    if inode is not None:
        _left_alone[inode] = None
        if len(_left_alone) > LEFT_ALONE:
            _left_alone.pop(next(iter(_left_alone)), None)


class ThreadFrames(dict[int, FrameType]):
    """The innermost frames of all threads at one moment, by thread identifier."""

    def holders(self) -> dict[int, set[int]]:
        """The threads whose frames hold each connection, by the identity of the connection. Computed once."""
        if self._holders is None:
            self._holders = _holders(self)
        return self._holders

    _holders: dict[int, set[int]] | None = None


def _holders(frames: Mapping[int, FrameType]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for thread, innermost in frames.items():
        for _, connection in _connections_in(innermost, INNERMOST):
            found.setdefault(id(connection), set()).add(thread)
    return found


def waits_for_a_lock(native: int) -> bool:
    """Whether a thread waits for another thread of this process, such as for a lock, a queue or an event."""
    call = _system_call(native)
    return call is not None and call[0] == _ON_A_LOCK.get(platform.machine())


def _waited_for(frame: FrameType, call: tuple[int, int] | None) -> object | None:
    """The connection that a thread with this innermost frame waits for, in this system call."""
    machine = platform.machine()
    number, descriptor = call or RUNNING
    if machine in _ON_ONE and number in _ON_ONE[machine]:
        for _, connection in _connections_in(frame, INNERMOST):
            if _is_socket(connection) and connection.fileno() == descriptor:
                return connection
    is_known = call is not None and machine in _ON_ONE
    may_poll = not is_known or number in _ON_SEVERAL[machine]
    for name, connection in _connections_in(frame, 1):
        if _is_socket(connection):
            if may_poll and (name == "self" or _calls_method_of(frame, name)):
                return connection
        elif _calls_method_of(frame, name):
            return connection
    return None


def _calls_method_of(frame: FrameType, name: str) -> bool:
    """Whether the current call of the frame is a method call on the variable or attribute with this name."""
    spans = islice(frame.f_code.co_positions(), max(frame.f_lasti, 0) // 2, None)
    entry, end_line, _, _ = next(spans, (None, None, None, None))
    if entry is None or end_line is None:
        return False
    text = "".join(linecache.getline(frame.f_code.co_filename, number) for number in range(entry, end_line + 1))
    return re.search(rf"(?<![\w.]){re.escape(name)}\s*\.\s*\w+\s*\(", text) is not None


def _system_call(native: int, proc: str = PROC) -> tuple[int, int] | None:
    """The number of the system call in which a thread waits, and its first argument; None if that is unknown."""
    try:
        with open(f"{proc}/self/task/{native}/syscall", encoding="ascii") as file:
            words = file.read().split()
    except OSError:
        return None
    return RUNNING if len(words) < 2 or words[0] == "running" else (int(words[0]), int(words[1], 16))


def _connections_in(frame: FrameType | None, count: int) -> Iterator[tuple[str, object]]:
    """The connections in the variables of `count` frames, from this one outward, each with the name used for it."""
    while frame is not None and count:
        if not frame.f_code.co_flags & _GENERATORS:
            for name, value in _variables(frame):
                yield from _connections_of(name, value)
        frame, count = frame.f_back, count - 1


def _variables(frame: FrameType) -> list[tuple[str, object]]:
    """The variables of another thread's frame, without keeping their values alive in the frame."""
    variables = frame.f_locals
    found = list(variables.items())
    is_function = frame.f_code.co_flags & _FUNCTION == _FUNCTION
    # Up to Python 3.12, the frame keeps this copy until it ends, and so keeps values alive that its function deletes
    # meanwhile. A copy that was cleared is filled again at the next access. It must not be cleared while a debugger
    # works with it, or while other code has a reference to it.
    if sys.version_info < (3, 13) and is_function and frame.f_trace is None and sys.getrefcount(variables) <= 3:
        variables.clear()
    return found


def _connections_of(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The value if it is a socket or database connection, or those in its attributes. Runs no code of the value."""
    kind = type(value)
    if _is_connection(kind):
        yield name, value
        return
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # it has no `__dict__`
        return
    if type(attributes) is dict:
        for attribute, inner in attributes.copy().items():  # a copy, because its thread may add attributes
            if _is_connection(type(inner)) and (attribute in ATTRIBUTES or not issubclass(type(inner), socket.socket)):
                yield f"{name}.{attribute}", inner


def _is_connection(kind: type) -> bool:
    # By the type. `isinstance` would also read `__class__` of the object, which runs code of proxies.
    sqlite = sys.modules.get("sqlite3")
    return issubclass(kind, socket.socket) or (
        sqlite is not None and issubclass(kind, sqlite.Connection | sqlite.Cursor)
    )


def _is_socket(value: object) -> TypeGuard[socket.socket]:
    return issubclass(type(value), socket.socket)


def _is_multiplexed(frame: FrameType | None) -> bool:
    """Whether the stack belongs to HTTP/2, where one connection carries several requests."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if isinstance(module, str) and any(
            module.startswith(name) or module.endswith(f".{name}") for name in SHARED_BETWEEN_REQUESTS
        ):
            return True
        frame = frame.f_back
    return False


# The inodes of these sockets, newest last. Not the objects: TLS replaces a connected socket by one of its own.
_left_alone: dict[int, None] = {}


def _inode(connection: object) -> int | None:
    try:
        return os.fstat(connection.fileno()).st_ino if _is_socket(connection) else None
    except (OSError, ValueError):  # it was closed meanwhile
        return None


def _unblocking(connection: object) -> Callable[[], None]:
    def unblock() -> None:
        try:
            if _is_socket(connection):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            else:  # an sqlite3 connection, or a cursor, which has its connection as an attribute
                cast("sqlite3.Connection", getattr(connection, "connection", connection)).interrupt()
        except Exception:
            pass  # the connection was closed meanwhile, or never connected, so the thread does not wait for it

    return unblock
