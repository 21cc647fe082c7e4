"""Owns the inside of an isolated call, and the words it has in common with the outside.

Knows nothing of who waits for the answer and of who ends this process. Parent and child talk over a pair of sockets, in
frames: eight bytes of length, then a pickle. Down go one `ChildCall` and at most one abort reason; up goes one
`Answer`.
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
# The program's own module, and the name it has where it is loaded a second time. The name is multiprocessing's, so
# that functions which a function gives to a process pool are found there too.
MAIN = ("__main__", "__mp_main__")
# How long a call may go on, to tidy up, when the process that asked for it is gone.
ORPHAN_SECONDS = 2.0
# A process forked from the parent may hold its end of the line open. So now and then one looks whose child one is.
LOOK_SECONDS = 1.0
GONE = AbortReason("disconnected", "the process that asked for this call is gone", __name__)
CHUNK = 1 << 18
PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class ChildCall:
    """What to run: a function by its name, under `steps` wrappers, and a pickle of its arguments."""

    target: str
    steps: int
    arguments: bytes
    main: tuple[str, str | None] | None
    argv: list[str]
    limit: TimeLimit | None


@dataclass(frozen=True, slots=True)
class CallReturned:
    """The function returned; `value` is a pickle."""

    value: bytes


@dataclass(frozen=True, slots=True)
class CallRaised:
    """The function, or what led to it, raised; `error` is a pickle, or None where there cannot be one."""

    error: bytes | None
    type_name: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CallExited:
    """The function called `sys.exit()` with this, which ends the process too."""

    code: str


Answer: TypeAlias = CallReturned | CallRaised | CallExited


def main() -> None:
    """The life of the child. The number of its end of the line is its first argument."""
    entry = socket.socket(fileno=int(sys.argv[1]))
    entry.set_inheritable(False)
    _prepare_process()
    received = receive(entry)
    if received is None:
        return
    call: ChildCall = pickle.loads(received)
    sys.argv = call.argv
    parent = ParentConnection(entry, AbortController(None if call.limit is None else deadline_from(call.limit)))
    threading.Thread(target=parent.follow, name="safepoint-parent", daemon=True).start()
    try:
        answer = answer_to(call, parent)
    except SystemExit as error:
        _tell(entry, CallExited(shorten(repr(error.code))))
        raise
    _tell(entry, answer)


def _tell(entry: socket.socket, answer: Answer) -> None:
    try:
        entry.sendall(frame(answer))
    except OSError:  # nobody is there to hear it, and nobody else would end what the function has started
        end_group()


def _prepare_process() -> None:
    # A parent that ignores or blocks TERM hands that down, and then the child could only be killed.
    os_signals.signal(os_signals.SIGTERM, os_signals.SIG_DFL)
    os_signals.pthread_sigmask(os_signals.SIG_UNBLOCK, {os_signals.SIGTERM})
    with suppress(OSError, AttributeError):  # not on this system
        # What the function starts stays a descendant of this process, also when its own parent ends: so it is found.
        CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a function has printed is seen, also if it is killed


def answer_to(call: ChildCall, parent: "ParentConnection") -> Answer:
    """Run the function under the parent's signal. Only `sys.exit()` passes: that is an end without an answer."""
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
    """An exception, made ready to travel."""
    try:
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except Exception:
        pickled = None
    return CallRaised(pickled, name_of(error), text_of(error), "".join(traceback.format_exception(error)))


def revived(raised: CallRaised) -> Exception:
    """The exception as it was; or, where it cannot be made again, its name and text."""
    try:
        error = None if raised.error is None else loads(raised.error)
    except Exception:
        error = None
    # Others, such as KeyboardInterrupt, would end the caller's loop or task instead of telling it.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RemoteError(raised.type_name, raised.message)


def find(target: str, steps: int, find_main: Callable[[], None]) -> Callable[..., Any]:
    """The function of this name, out of its wrappers. Raises: what the import of its module raises."""
    module, _, name = target.partition(":")
    if module in MAIN:
        find_main()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    for _ in range(steps):
        found = inner(found)
    return cast(Callable[..., Any], found)


def inner(wrapper: Any) -> Any:
    """What lies directly under a wrapper. Raises: AttributeError where nothing does."""
    return wrapper.__func__ if inspect.ismethod(wrapper) else wrapper.__wrapped__


def main_source() -> tuple[str, str | None] | None:
    """File and package of the program's own module, if one may load it again; a `__main__.py` starts the program."""
    module: Any = sys.modules["__main__"]
    path = getattr(module, "__file__", None)
    name = getattr(getattr(module, "__spec__", None), "name", "")
    if path is None or not os.path.isfile(path) or name.rpartition(".")[2] == "__main__":
        return None
    return os.path.abspath(path), module.__package__


_loading: list[str] = []


def loading_main() -> str | None:
    """The program whose file is being loaded a second time at this moment, or None."""
    return _loading[0] if _loading else None


@functools.cache
def load_main(source: tuple[str, str | None] | None) -> None:
    """Load the program's own file, under another name than `__main__`, and put it in that place."""
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
    """Takes both names of the program's own module for one."""

    def __init__(self, data: bytes, find_main: Callable[[], None]) -> None:
        super().__init__(io.BytesIO(data))
        self._find_main = find_main

    def find_class(self, module: str, name: str) -> Any:
        if module in MAIN:
            self._find_main()
            module = MAIN[0]
        return super().find_class(module, name)


def loads(data: bytes, find_main: Callable[[], None] = lambda: None) -> Any:
    """Unpickle; `find_main` is called before the program's own module is looked into."""
    return _Unpickler(data, find_main).load()


class ParentConnection:
    """What the parent says. A thread listens all the time, and the main thread once more before the function begins."""

    def __init__(self, entry: socket.socket, controller: AbortController) -> None:
        self.signal = controller.signal
        self._line = entry
        self._controller = controller
        self._pid = os.getppid()
        self._listening = threading.Lock()
        self._said: list[AbortReason] = []

    def follow(self) -> None:
        """Abort when the parent says so, or is gone; then this process and its group end, soon after."""
        while GONE not in self._said:
            if self._hear(LOOK_SECONDS):
                # In a thread of its own: a listener of the function's that hangs must not keep us from ending.
                threading.Thread(target=self._obey, daemon=True).start()
        time.sleep(ORPHAN_SECONDS)
        end_group()

    def raise_if_aborted(self) -> None:
        """Raise if the parent has said so by now, also if the thread that follows it has not come to that yet."""
        self._hear(0)
        self._obey()
        self.signal.raise_if_aborted()

    def _hear(self, seconds: float) -> bool:
        """Wait at most so long for the next that the parent says; or for its end, which is said for it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._line, selectors.EVENT_READ)
            selector.select(seconds)
            with self._listening:  # whoever comes second finds that it has been taken, and what it was
                if selector.select(0):
                    received = receive(self._line)
                    self._said.append(GONE if received is None else AbortReason.from_dict(pickle.loads(received)))
                    return True
                if os.getppid() != self._pid:
                    self._said.append(GONE)
                    return True
        return False

    def _obey(self) -> None:
        for reason in self._said:
            self._controller.abort(reason)


def end_group() -> None:
    """End this process and all that it has started, at once."""
    os.killpg(os.getpgrp(), os_signals.SIGKILL)


def frame(message: object) -> bytes:
    """A message as it goes over the line."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def receive(entry: socket.socket) -> bytearray | None:
    """The body of the next frame; None when the other side is gone."""
    header = _exactly(entry, HEADER.size)
    return None if header is None else _exactly(entry, HEADER.unpack(header)[0])


def _exactly(entry: socket.socket, size: int) -> bytearray | None:
    received = bytearray(size)
    view = memoryview(received)
    while view:
        try:
            count = entry.recv_into(view)
        except ConnectionError:
            return None
        if not count:
            return None
        view = view[count:]
    return received


class Channel:
    """The parent's end of the line, which never blocks: what cannot be moved now is moved when the selector says so."""

    def __init__(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ, self)
        self._end = end
        self._selector = selector
        self._open = True
        self._outbox = bytearray()
        self._inbox = bytearray()

    def send(self, message: object) -> None:
        """Send it, now or as soon as the other side takes it."""
        self._outbox += frame(message)
        self.carry()

    def carry(self) -> None:
        """Move what can be moved now."""
        while self._open and (self._transmit() or self._receive()):
            pass
        if self._open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            self._selector.modify(self._end, wanted, self)

    @property
    def answered(self) -> bool:
        """Whether all of an answer has come."""
        size = len(self._inbox) - HEADER.size
        return size >= 0 and size >= HEADER.unpack_from(self._inbox)[0]

    def answer(self) -> Answer | None:
        """The answer, once all of it has come."""
        return cast(Answer, pickle.loads(memoryview(self._inbox)[HEADER.size :])) if self.answered else None

    def _transmit(self) -> bool:
        try:
            sent = self._end.send(self._outbox)
        except BlockingIOError:
            return False
        except OSError:  # it does not listen any more: its answer or its end will tell
            sent = len(self._outbox)
        del self._outbox[:sent]
        return sent > 0

    def _receive(self) -> bool:
        try:
            received = self._end.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # it ended without having read all that it was sent
            received = b""
        self._inbox += received
        if not received:
            self._open = False
            self._selector.unregister(self._end)
        return bool(received)
