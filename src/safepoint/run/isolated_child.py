"""The child's side of an isolated call, and the messages between parent and child.

Parent and child exchange frames over a pair of sockets: eight bytes of length, then a pickle. The parent sends one
`ChildCall` and at most one abort reason; the child sends one `Answer`. The length tells a complete message from the
beginning of one whose sender was killed.
"""

import asyncio
import functools
import importlib
import inspect
import io
import os
import pickle
import selectors
import signal as os_signals
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias, cast

from ..abort.controller import AbortController
from ..abort.guard import Ambient
from ..abort.reason import AbortReason
from ..errors import RemoteError, UsageError, describe, name_of, shorten, text_of
from .time_limit import TimeLimit, deadline_from

__all__ = ["HEADER", "MAIN", "Answer", "CallExited", "CallRaised", "CallReturned", "Channel", "ChildCall", "main"]

HEADER = struct.Struct(">Q")
# The program's own module, and its name when it is loaded a second time. It is the name that multiprocessing uses, so
# that a process pool started by the function finds the module's functions as well.
MAIN = ("__main__", "__mp_main__")
# How long a call may go on, in order to clean up, when the parent process is gone.
ORPHAN_SECONDS = 2.0
# How often the child checks whether its parent still exists. The end of the socket is not enough: a process forked from
# the parent may hold it open.
PARENT_CHECK_SECONDS = 1.0
GONE = AbortReason("disconnected", "the process that asked for this call is gone", __name__)
CHUNK = 1 << 18
PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class ChildCall:
    """The function to call.

    Attributes:
        target: Its module and qualified name.
        steps: How many wrappers are around the function under that name.
        arguments: A pickle of its arguments.
        main: The file and the package of the program's own module.
        argv: The arguments of the program.
        limit: The deadline of the call.
    """

    target: str
    steps: int
    arguments: bytes
    main: tuple[str, str | None] | None
    argv: list[str]
    limit: TimeLimit | None


@dataclass(frozen=True, slots=True)
class CallReturned:
    """The function returned. `value` is a pickle."""

    value: bytes


@dataclass(frozen=True, slots=True)
class CallRaised:
    """The function, or the import of its module, raised. `error` is a pickle, or None if it cannot be pickled."""

    error: bytes | None
    type_name: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CallExited:
    """The function called `sys.exit()` with this code, which ends the process as well."""

    code: str


Answer: TypeAlias = CallReturned | CallRaised | CallExited


def main() -> None:
    """Run one call, as the main function of the child. The first argument is the descriptor of its socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    _prepare_process()
    received = receive(connection)
    if received is None:
        return
    call: ChildCall = pickle.loads(received)
    sys.argv = call.argv
    parent = ParentConnection(connection, AbortController(None if call.limit is None else deadline_from(call.limit)))
    threading.Thread(target=parent.follow, name="safepoint-parent", daemon=True).start()
    try:
        answer = answer_to(call, parent)
    except SystemExit as error:
        _send_answer(connection, CallExited(shorten(repr(error.code))))
        raise
    _send_answer(connection, answer)


def _send_answer(connection: socket.socket, answer: Answer) -> None:
    try:
        connection.sendall(frame(answer))
    except OSError:  # the parent is gone, so nothing else would end what the function has started
        end_group()


def _prepare_process() -> None:
    # A child inherits that its parent ignores or blocks TERM, and could then only be killed.
    os_signals.signal(os_signals.SIGTERM, os_signals.SIG_DFL)
    os_signals.pthread_sigmask(os_signals.SIG_UNBLOCK, {os_signals.SIGTERM})
    with suppress(OSError, AttributeError):  # not available on this system
        # Processes that the function starts stay descendants of this process even when their own parent ends, so that
        # the supervisor finds them.
        CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that the output of a killed function is not lost


def answer_to(call: ChildCall, parent: "ParentConnection") -> Answer:
    """Run the function under the parent's signal.

    Raises:
        SystemExit: The function called `sys.exit()`. Every other error becomes an answer.
    """
    try:
        with Ambient(parent.signal):
            find_main = functools.partial(load_main, call.main)
            fn = find(call.target, call.steps, find_main)
            args, kwargs = loads(call.arguments, find_main)
            parent.raise_if_aborted()
            value = fn(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
    except SystemExit:
        raise
    except BaseException as error:
        return raised(error)
    try:
        return CallReturned(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        failure = UsageError(
            f"{call.target} returned a {type(value).__qualname__}, which cannot be sent back from its process"
            f" ({describe(error)}); return plain data"
        )
        failure.__cause__ = error
        return raised(failure)


def raised(error: BaseException) -> CallRaised:
    """Convert an exception into a message."""
    try:
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except Exception:
        pickled = None
    return CallRaised(pickled, name_of(error), text_of(error), "".join(traceback.format_exception(error)))


def revived(raised: CallRaised) -> Exception:
    """Convert the message back into the exception; into a RemoteError if it cannot be recreated."""
    try:
        error = None if raised.error is None else loads(raised.error)
    except Exception:
        error = None
    # Other exceptions, such as KeyboardInterrupt, would end the caller's loop or task.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RemoteError(raised.type_name, raised.message)


def find(target: str, steps: int, find_main: Callable[[], None]) -> Callable[..., Any]:
    """Import a function.

    Args:
        target: Its module and qualified name.
        steps: How many wrappers to remove.
        find_main: Loads the program's own module, if the function is in it.

    Raises:
        Exception: What the import of the module raised.
    """
    module, _, name = target.partition(":")
    if module in MAIN:
        find_main()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    for _ in range(steps):
        found = inner(found)
    return cast(Callable[..., Any], found)


def inner(wrapper: Any) -> object:
    """Return what a wrapper wraps.

    Raises:
        AttributeError: It is no wrapper.
    """
    found: object = wrapper.__func__ if inspect.ismethod(wrapper) else wrapper.__wrapped__
    return found


def main_source() -> tuple[str, str | None] | None:
    """Return the file and the package of the program's own module, if it may be loaded again.

    A `__main__.py` may not: loading it would start the program.
    """
    module = sys.modules["__main__"]
    path = getattr(module, "__file__", None)
    name = getattr(getattr(module, "__spec__", None), "name", "")
    if path is None or not os.path.isfile(path) or name.rpartition(".")[2] == "__main__":
        return None
    return os.path.abspath(path), module.__package__


_loading: list[str] = []


def loading_main() -> str | None:
    """Return the path of the program's file while it is being loaded a second time, or None."""
    return _loading[0] if _loading else None


@functools.cache
def load_main(source: tuple[str, str | None] | None) -> None:
    """Load the program's own file under another name than `__main__`, and make it the module `__main__`."""
    if source is None:
        return
    path, package = source
    module = ModuleType(MAIN[1])
    module.__file__, module.__package__ = path, package
    for name in MAIN:
        sys.modules[name] = module
    _loading.append(path)
    try:
        with io.open_code(path) as file:
            exec(compile(file.read(), path, "exec"), vars(module))
    finally:
        _loading.pop()


class _Unpickler(pickle.Unpickler):
    """Treats both names of the program's own module as one."""

    def __init__(self, data: bytes, find_main: Callable[[], None]) -> None:
        super().__init__(io.BytesIO(data))
        self._find_main = find_main

    def find_class(self, module: str, name: str) -> Any:
        if module in MAIN:
            self._find_main()
            module = MAIN[0]
        return super().find_class(module, name)


def loads(data: bytes, find_main: Callable[[], None] = lambda: None) -> Any:
    """Unpickle the data; `find_main` is called before a name of the program's own module is looked up."""
    return _Unpickler(data, find_main).load()


class ParentConnection:
    """The abort reasons that the parent sends.

    A thread receives them all the time (`follow`). The main thread receives once more before the function begins
    (`raise_if_aborted`), in case the thread has not run yet. A lock makes sure that each message is received by one of
    them, and `_reasons` that both act on it.
    """

    def __init__(self, connection: socket.socket, controller: AbortController) -> None:
        self.signal = controller.signal
        self._socket = connection
        self._controller = controller
        self._pid = os.getppid()
        self._receive_lock = threading.Lock()
        self._reasons: list[AbortReason] = []

    def follow(self) -> None:
        """Abort when the parent sends a reason or is gone. If it is gone, soon end this process and its group."""
        while GONE not in self._reasons:
            if self._receive_next(PARENT_CHECK_SECONDS):
                # In a thread of its own: a listener that hangs, added by the function, must not keep this one from
                # ending the process.
                threading.Thread(target=self._apply, daemon=True).start()
        time.sleep(ORPHAN_SECONDS)
        end_group()

    def raise_if_aborted(self) -> None:
        """Raise AbortError if a reason has arrived by now, even if the thread in `follow` has not seen it."""
        self._receive_next(0)
        self._apply()
        self.signal.raise_if_aborted()

    def _receive_next(self, seconds: float) -> bool:
        """Wait at most this long for the next reason; the end of the parent counts as one.

        Returns:
            True if a reason was added to `_reasons`.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.select(seconds)
            with self._receive_lock:  # the second thread finds the socket empty, and the reason in `_reasons`
                if selector.select(0):
                    received = receive(self._socket)
                    self._reasons.append(GONE if received is None else AbortReason.from_dict(pickle.loads(received)))
                    return True
                if os.getppid() != self._pid:
                    self._reasons.append(GONE)
                    return True
        return False

    def _apply(self) -> None:
        for reason in self._reasons:
            self._controller.abort(reason)


def end_group() -> None:
    """Kill this process and its whole group."""
    os.killpg(os.getpgrp(), os_signals.SIGKILL)


def frame(message: object) -> bytes:
    """Encode a message as a frame."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def receive(connection: socket.socket) -> bytearray | None:
    """Receive the body of the next frame; None if the other side is gone."""
    header = _receive_exactly(connection, HEADER.size)
    return None if header is None else _receive_exactly(connection, HEADER.unpack(header)[0])


def _receive_exactly(connection: socket.socket, size: int) -> bytearray | None:
    received = bytearray(size)
    view = memoryview(received)
    while view:
        try:
            count = connection.recv_into(view)
        except ConnectionError:
            return None
        if not count:
            return None
        view = view[count:]
    return received


class Channel:
    """The parent's end of the socket. It never blocks: what cannot be transferred now waits for the selector."""

    def __init__(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ, self)
        self._end = end
        self._selector = selector
        self._open = True
        self._outbox = bytearray()
        self._inbox = bytearray()

    def send(self, message: object) -> None:
        """Send a message, now or as soon as the other side accepts it."""
        self._outbox += frame(message)
        self.transfer()

    def transfer(self) -> None:
        """Send and receive what is possible now."""
        while self._open and (self._transmit() or self._receive()):
            pass
        if self._open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            self._selector.modify(self._end, wanted, self)

    @property
    def answered(self) -> bool:
        """Whether a whole answer has arrived."""
        size = len(self._inbox) - HEADER.size
        return size >= 0 and size >= HEADER.unpack_from(self._inbox)[0]

    def answer(self) -> Answer | None:
        """Return the answer once the whole of it has arrived."""
        return cast(Answer, pickle.loads(memoryview(self._inbox)[HEADER.size :])) if self.answered else None

    def _transmit(self) -> bool:
        try:
            sent = self._end.send(self._outbox)
        except BlockingIOError:
            return False
        except OSError:  # the child no longer reads; its answer or its end will follow
            sent = len(self._outbox)
        del self._outbox[:sent]
        return sent > 0

    def _receive(self) -> bool:
        try:
            received = self._end.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # the child ended without having read everything
            received = b""
        self._inbox += received
        if not received:
            self._open = False
            self._selector.unregister(self._end)
        return bool(received)
