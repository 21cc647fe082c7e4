"""The child's side of an isolated call, and the messages between parent and child.

The parent sends one `ChildCall` and at most one abort reason; the child sends one `Answer`. All of them are pickles.
"""

import asyncio
import functools
import inspect
import io
import os
import pickle
import signal as os_signals
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass
from typing import TypeAlias

from ..abort.controller import AbortController
from ..abort.guard import Ambient
from ..abort.reason import AbortReason
from ..abort.time_limit import TimeLimit, deadline_from
from ..errors import RemoteError, UsageError, describe, name_of, shorten, text_of
from .frames import FrameSocket
from .group import kill_own_processes
from .import_target import find, load_main, loads

__all__ = ["Answer", "CallExited", "CallRaised", "CallReturned", "ChildCall", "dumps", "main"]

# How long a call may go on, in order to clean up, when the parent process is gone.
ORPHAN_SECONDS = 2.0
# How often the child checks whether its parent still exists. The end of the socket is not enough: a process forked from
# the parent may hold it open.
PARENT_CHECK_SECONDS = 1.0
GONE = AbortReason("disconnected", "the process that asked for this call is gone", __name__)
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
    frames = FrameSocket(connection)
    received = frames.receive()
    if received is None:
        return
    call: ChildCall = pickle.loads(received)
    sys.argv = call.argv
    parent = ParentConnection(frames, AbortController(None if call.limit is None else deadline_from(call.limit)))
    threading.Thread(target=parent.follow, name="safepoint-parent", daemon=True).start()
    try:
        answer = answer_to(call, parent)
    except SystemExit as error:
        _send_answer(frames, CallExited(shorten(repr(error.code))))
        raise
    _send_answer(frames, answer)


def _send_answer(frames: FrameSocket, answer: Answer) -> None:
    if not frames.send(dumps(answer)):  # the parent is gone, so nothing else would end what the function has started
        kill_own_processes()


def dumps(message: object) -> bytes:
    """Pickle a message."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


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
        return CallReturned(dumps(value))
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
        pickled = dumps(error)
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


class ParentConnection:
    """The abort reasons that the parent sends.

    A thread receives them all the time (`follow`). The main thread receives once more before the function begins
    (`raise_if_aborted`), in case the thread has not run yet. A lock makes sure that each message is received by one of
    them, and `_reasons` that both act on it.
    """

    def __init__(self, frames: FrameSocket, controller: AbortController) -> None:
        self.signal = controller.signal
        self._frames = frames
        self._controller = controller
        self._pid = os.getppid()
        self._receive_lock = threading.Lock()
        self._reasons: list[AbortReason] = []

    def follow(self) -> None:
        """Abort when the parent sends a reason or is gone. If it is gone, soon kill all that runs here."""
        while GONE not in self._reasons:
            if self._receive_next(PARENT_CHECK_SECONDS):
                # In a thread of its own: a listener that hangs, added by the function, must not keep this one from
                # ending the process.
                threading.Thread(target=self._apply, daemon=True).start()
        time.sleep(ORPHAN_SECONDS)
        kill_own_processes()

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
        self._frames.wait(seconds)
        with self._receive_lock:  # the second thread finds the socket empty, and the reason in `_reasons`
            try:
                received = self._frames.receive(0.0)
            except TimeoutError:
                if os.getppid() == self._pid:
                    return False
                received = None
            self._reasons.append(GONE if received is None else AbortReason.from_dict(pickle.loads(received)))
            return True

    def _apply(self) -> None:
        for reason in self._reasons:
            self._controller.abort(reason)
