"""Reading a person's answer from the standard input, so that a stop can withdraw the question. POSIX only.

`input()` cannot be withdrawn: its thread stays in the read, and takes the next line that is typed, which is the answer
to another question. `read_line()` waits with `poll` for a byte or the abort, and reads only what is there. It reads
byte by byte, so it never takes more than its own line: what follows is left for the next question, for `input()` and
for child processes.

Several questions at once take turns, first come, first served; each is shown when it is its turn.
"""

import builtins
import errno
import os
import select
import sys
from collections import deque
from contextlib import suppress

from ..abort import AbortSignal, current_signal
from ..abort.guard import abort_error
from ..errors import UsageError

__all__ = ["read_line", "withdrawable"]

# The builtin, as it was when this module was loaded. A replacement set by the application is not treated as `input`.
_INPUT = builtins.input
# Errors of a read when there is no other end: the descriptor is closed, or the terminal has gone.
_DISCONNECTED = {errno.EBADF, errno.EIO}


def read_line(question: str = "", *, signal: AbortSignal | None = None) -> str:
    """Show the question, and return the next line of the standard input without its line end.

    It blocks its thread: pass it to `ask()` or to an agent (`ask_user=read_line`), which run it in a thread of its own.
    Unlike `input()` it has no history and no cursor keys, only the terminal's own editing (backspace, Ctrl-U, Ctrl-W).
    It does not see what `input()` or `sys.stdin` has already read ahead from a pipe or a file.

    Args:
        question: The text to show, unchanged, as `input()` shows its prompt.
        signal: The signal that withdraws the question; by default the ambient signal.

    Raises:
        AbortError: The signal was aborted. On a terminal, what had been typed of the answer is discarded, because the
            next question would get it; from a pipe or a file nothing is lost.
        EOFError: The input is at its end, or closed.
        UsageError: This is not a POSIX system.
    """
    if os.name != "posix":
        raise UsageError("read_line() needs a POSIX system: answer with run.answer() or an async callback instead")
    signal = signal if signal is not None else current_signal()
    signal.raise_if_aborted()
    if sys.stdin is None or getattr(sys.stdin, "closed", False):
        raise EOFError("the standard input is closed")
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, AttributeError):  # the application has replaced it by an object that is no file and does not block
        return _INPUT(question)
    waker = _free.pop() if _free else _Waker()
    _waiting.append(waker)
    try:
        with signal.add_listener(waker.wake):
            return _decode(_read(question, descriptor, signal, waker))
    except OSError as error:
        if error.errno in _DISCONNECTED:
            raise EOFError("the standard input is closed") from error
        raise
    finally:
        _waiting.remove(waker)
        for following in list(_waiting)[:1]:
            following.wake()
        _free.append(waker)


def withdrawable(callback: object) -> bool:
    """Whether the callback is the builtin `input`, and `read_line` can be used in its place."""
    return callback is _INPUT and os.name == "posix"


class _Waker:
    """Wakes a thread that waits for a descriptor.

    It is never closed but reused. An abort may call `wake` a moment after the read is over; if the pipe had been closed
    by then, the byte would go to whatever file has been given the same descriptor number.
    """

    def __init__(self) -> None:
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write_end, False)

    def wake(self) -> None:
        """Wake the thread, from any thread. An extra call is harmless: the woken thread checks the signal."""
        with suppress(BlockingIOError):  # the pipe is full, so the thread is awake already
            os.write(self._write_end, b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.descriptor, 4096)


_waiting: deque[_Waker] = deque()  # the first one reads, the others wait for their turn
_free: list[_Waker] = []
_partial_lines: dict[tuple[int, int], bytearray] = {}  # by file: the part of a line that has been read so far


def _after_fork() -> None:
    """Forget the waiting threads, which exist only in the parent. Sharing their pipes with it would lose wake-ups."""
    _waiting.clear()
    _free.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read(question: str, descriptor: int, signal: AbortSignal, waker: _Waker) -> bytes:
    """Wait for the turn, then read the next line as bytes, without its line end."""
    while _waiting[0] is not waker:
        signal.raise_if_aborted()
        _wait(waker)
    signal.raise_if_aborted()
    status = os.fstat(descriptor)
    stdin = (status.st_dev, status.st_ino)
    line = _partial_lines.setdefault(stdin, bytearray())
    _show(question)
    while not signal.aborted:
        if not _wait(waker, descriptor):
            continue  # woken without a byte: check the signal first
        byte = os.read(descriptor, 1)
        if byte not in (b"", b"\n"):
            line += byte
            continue
        del _partial_lines[stdin]
        if not byte and not line:
            raise EOFError("the standard input is at its end")
        return bytes(line.removesuffix(b"\r"))
    if _discarded(descriptor):
        del _partial_lines[stdin]
    raise abort_error(signal)


def _wait(waker: _Waker, descriptor: int | None = None) -> bool:
    """Wait until the thread is woken or the descriptor can be read. True if it can be read and no wake-up came."""
    descriptors = [waker.descriptor] if descriptor is None else [waker.descriptor, descriptor]
    if sys.platform == "darwin":  # its poll() does not support terminals
        ready = select.select(descriptors, [], [])[0]
    else:  # select() cannot handle descriptors above 1023
        poll = select.poll()
        for each in descriptors:
            poll.register(each, select.POLLIN)
        ready = [each for each, _ in poll.poll()]
    if waker.descriptor in ready:
        waker.clear()
        return False
    return True


def _show(text: str) -> None:
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _discarded(descriptor: int) -> bool:
    """Discard what was typed of the answer, and end the line of the question. False if this is not a terminal."""
    if not os.isatty(descriptor):
        return False
    import termios

    if _may_control(descriptor):
        with suppress(termios.error):
            termios.tcflush(descriptor, termios.TCIFLUSH)
    _show("\n")
    return True


def _may_control(terminal: int) -> bool:
    """Whether this process may control the terminal. A background process would be suspended if it tried."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it is not the controlling terminal of this process, so it cannot suspend the process
        return True


def _decode(line: bytes) -> str:
    encoding, errors = getattr(sys.stdin, "encoding", None), getattr(sys.stdin, "errors", None)
    return line.decode(encoding or "utf-8", errors or "strict")
