"""Owns reading a person's answer from the standard input, so that a stop can withdraw the question.

`input()` cannot be withdrawn: its thread stays in the read, and takes the next line that is typed, which is the answer
to another question. `read_line()` waits by `poll` for two things at once, a byte or the abort, and reads only what is
there. It reads byte by byte, so it never takes more than its own line: what follows is left for the next question, for
`input()` and for child processes. POSIX only. Knows nothing of runs and leaves.

Several questions at once take turns, first come first served; each is shown when its turn has come.
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

_INPUT = builtins.input  # as it was when this module was loaded: one that the application has put there is its own
# What reading says when there is nobody at the other end: the descriptor is closed, or the terminal has gone.
_NOBODY = {errno.EBADF, errno.EIO}


def read_line(question: str = "", *, signal: AbortSignal | None = None) -> str:
    """Show the question, and return the next line of the standard input without its end.

    Blocks its thread: give it to `ask()` or to an agent (`ask_user=read_line`), which run it in a thread of its own.
    Unlike `input()` it has no history and no cursor keys: a terminal's own editing (backspace, Ctrl-U, Ctrl-W) is what
    there is. What `input()` or `sys.stdin` has read ahead from a pipe or a file is in their buffers and not seen here.

    Args:
        question: what to show, as it is; `input()` shows its prompt in the same way.
        signal: what withdraws the question; by default the signal of the code around.

    Raises:
        AbortError: the signal was aborted. On a terminal, what had been typed of the answer is discarded, because the
            next question would get it; from a pipe or a file nothing is lost.
        EOFError: the input is at its end, or closed.
        UsageError: this is not a POSIX system.
    """
    if os.name != "posix":
        raise UsageError("read_line() needs a POSIX system: answer questions by run.answer(), or by an async callback")
    signal = signal if signal is not None else current_signal()
    signal.raise_if_aborted()
    if sys.stdin is None or getattr(sys.stdin, "closed", False):
        raise EOFError("the standard input is closed")
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, AttributeError):  # something that the application has put there: it is no file, and does not wait
        return _INPUT(question)
    waker = _free.pop() if _free else _Waker()
    _waiting.append(waker)
    try:
        with signal.add_listener(waker.wake):
            return _decode(_read(question, descriptor, signal, waker))
    except OSError as error:
        if error.errno in _NOBODY:
            raise EOFError("the standard input is closed") from error
        raise
    finally:
        _waiting.remove(waker)
        for following in list(_waiting)[:1]:
            following.wake()
        _free.append(waker)


def withdrawable(callback: object) -> bool:
    """True for the builtin `input`, where `read_line` does the same and can be withdrawn."""
    return callback is _INPUT and os.name == "posix"


class _Waker:
    """Wakes a thread that waits for a descriptor.

    It is never closed but used again: an abort may call `wake` a moment after the read is over, and would then write
    to whatever file has got the number of a closed descriptor.
    """

    def __init__(self) -> None:
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write_end, False)

    def wake(self) -> None:
        """From any thread. Once too often is harmless: who wakes up looks at the signal, and waits on."""
        with suppress(BlockingIOError):  # full, so it is awake already
            os.write(self._write_end, b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.descriptor, 4096)


_waiting: deque[_Waker] = deque()  # whose turn it is, then who comes next
_free: list[_Waker] = []
_begun: dict[tuple[int, int], bytearray] = {}  # by file: what has been read of a line that has not ended


def _after_fork() -> None:
    """The threads that waited are in the other process; sharing their pipes with it would lose calls."""
    _waiting.clear()
    _free.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read(question: str, descriptor: int, signal: AbortSignal, waker: _Waker) -> bytes:
    """The next line as bytes, without its end. First wait for the turn, then for the line."""
    while _waiting[0] is not waker:
        signal.raise_if_aborted()
        _wait(waker)
    signal.raise_if_aborted()
    status = os.fstat(descriptor)
    stdin = (status.st_dev, status.st_ino)
    entry = _begun.setdefault(stdin, bytearray())
    _show(question)
    while not signal.aborted:
        if not _wait(waker, descriptor):
            continue  # awake, but not by a byte: look at the signal first
        byte = os.read(descriptor, 1)
        if byte not in (b"", b"\n"):
            entry += byte
            continue
        del _begun[stdin]
        if not byte and not entry:
            raise EOFError("the standard input is at its end")
        return bytes(entry.removesuffix(b"\r"))
    if _discarded(descriptor):
        del _begun[stdin]
    raise abort_error(signal)


def _wait(waker: _Waker, descriptor: int | None = None) -> bool:
    """Until somebody wakes this thread, or the descriptor can be read. True: it can, and nobody has."""
    descriptors = [waker.descriptor] if descriptor is None else [waker.descriptor, descriptor]
    if sys.platform == "darwin":  # its poll() does not know terminals
        ready = select.select(descriptors, [], [])[0]
    else:  # any descriptor: select() ends at 1024
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
    """On a terminal: forget what was typed of the answer, and leave the line of the question. False: it is none."""
    if not os.isatty(descriptor):
        return False
    import termios

    if _may_control(descriptor):
        with suppress(termios.error):
            termios.tcflush(descriptor, termios.TCIFLUSH)
    _show("\n")
    return True


def _may_control(terminal: int) -> bool:
    """False for a process in the background: it would be suspended for trying."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the terminal that this process was started from: nothing to be suspended by
        return True


def _decode(entry: bytes) -> str:
    encoding, errors = getattr(sys.stdin, "encoding", None), getattr(sys.stdin, "errors", None)
    return entry.decode(encoding or "utf-8", errors or "strict")
