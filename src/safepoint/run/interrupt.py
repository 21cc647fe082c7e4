"""Owns raising an exception in the thread of a synchronous function, as Ctrl-C would. Knows nothing of signals.

It is sent only while the thread's innermost Python frame is in the function's own file: sent blindly it would leave
the locks of libraries held. Looking and sending are one call into C, a chain of iterators that never lets go of the
GIL. The same chain takes the call's only permit: one is sent at most, none before the function, none after it.

Sent is not arrived. CPython raises it at the thread's next check: after a call, at the start of a function, when a
loop jumps back. Up to 3.12, a thread that lost the GIL in a check is in that check when it gets it back. From 3.13 on,
and in instructions that wait without a check (`for line in file`), it goes on to the next one, maybe in the `__exit__`
of the block it was seen in; and some jumps are outside the block they stand in (CPython issues 108214, 130279). So the
bytecode ahead is read, and a place from which it would slip out of its block is passed over, unless the thread is seen
to wait there in C, or no better one comes. What is left: a C function that waits, and then calls Python code of a
library, gets it in there; and where Python ignores exceptions (in a `__del__`), it is lost.
"""

import dis
import functools
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import PYFUNCTYPE, c_int, c_ulong, py_object, pythonapi
from itertools import pairwise, repeat, starmap
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

from safepoint.errors import UsageError

__all__ = ["AbortInterrupt", "InterruptibleCall"]

T = TypeVar("T")
# How long a place to slip from is passed over: if the thread hardly uses the processor, and at most.
WAITING_SECONDS, WAITING_SHARE, SLIPPERY_SECONDS = 0.1, 0.1, 2.0
EXACT = sys.version_info < (3, 13)


class AbortInterrupt(BaseException):
    """Raised inside a synchronous function whose run was aborted, as Ctrl-C would."""


class InterruptibleCall(Generic[T]):
    """One call of `fn`, which other threads can interrupt. `file` is where it is written, if that cannot be found."""

    def __init__(self, fn: Callable[[], T], *, file: str | None = None) -> None:
        self.thread_id: int | None = None  # in which it runs, or ran
        self.interrupted = False  # the exception was sent
        self.ended = False  # the thread has left the function
        self._fn = fn
        self._file = _source(fn) if file is None else _real(file)
        self._permit: dict[str, tuple[object, object]] = {}
        self._processor = -1  # the clock that shows how long the thread has been using it
        self._slippery: tuple[float, float] | None = None  # when it was first seen so, by both clocks

    def run(self) -> T:
        """Call the function in this thread. Raises: what it raised; AbortInterrupt only if the function let it out."""
        if self.thread_id is not None:
            raise UsageError("an InterruptibleCall runs once: make another one for another call")
        self.thread_id = threading.get_ident()
        self._processor = _processor_clock(self.thread_id)
        # By subscript: after a call CPython may raise what is pending, and the value would be lost; here it does not.
        value: defaultdict[None, T] = defaultdict(self._fn)
        self._permit["to"] = (c_ulong(self.thread_id), py_object(AbortInterrupt))
        try:
            return value[None]
        finally:
            try:
                self._end()
            except AbortInterrupt:  # it came too late for the function, and there is no second one
                self._end()

    def _end(self) -> None:
        if self._permit.pop("to", None) is None:
            self.interrupted = True
            time.sleep(0)  # and check. To take it back would leave Python 3.11 and 3.12 checking for ever
        self.ended = True

    def interrupt(self) -> bool:
        """Raise AbortInterrupt in the function. True: sent, by this call. False: not now, or never (again)."""
        frame = self._innermost()
        if frame is None or not self._permit or not self._owns(frame) or not _gil():
            return False
        at = frame.f_lasti
        if self._slips(frame, at) and not self._waits(frame.f_code, at):
            return False
        get: Callable[..., Any] = dict.get
        now = map(get, iter(sys._current_frames, None), repeat(self.thread_id))
        same = map(getattr, map(get, repeat({frame: frame}), now), repeat("f_lasti"), repeat(None))
        permit = map(self._permit.pop, map(get, repeat({at: "to"}), same), repeat(_NOBODY))
        if sent := bool(next(starmap(_raise_in, permit))):
            self.interrupted = True
        return sent

    def where(self) -> str | None:
        """`file:line in function` in the function's own file, with what that has called if it is elsewhere."""
        inner = frame = self._innermost()
        while frame is not None and frame.f_code is not _RUN and not self._owns(frame):
            frame = frame.f_back
        if inner is None or frame is None or frame.f_code is _RUN:
            return None
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return place if frame is inner else f"{place} (in {inner.f_code.co_filename}:{inner.f_lineno})"

    def _innermost(self) -> FrameType | None:
        return None if self.thread_id is None or self.ended else sys._current_frames().get(self.thread_id)

    def _owns(self, frame: FrameType) -> bool:
        return _real(frame.f_code.co_filename) == self._file

    def _slips(self, inner: FrameType, at: int) -> bool:
        """Whether an exception that is sent now may arrive outside the block that it was meant for, or in a library."""
        slips, frame = _slips(inner.f_code, at, EXACT), inner.f_back
        while slips is None and frame is not None and self._owns(frame):
            slips, frame = _slips(frame.f_code, frame.f_lasti, False), frame.f_back
        return (frame is None or frame.f_code is not _RUN) if slips is None else slips

    def _waits(self, code: CodeType, at: int) -> bool:
        """Whether the thread, seen where an exception would slip, most likely waits in a call, which checks."""
        now, used = time.monotonic(), float("inf")
        with suppress(OSError):  # no such clock, or no such thread any more
            used = time.clock_gettime(self._processor)
        self._slippery = since, before = self._slippery or (now, used)
        idle = now - since > WAITING_SECONDS and used - before < WAITING_SHARE * (now - since)
        return (idle and "CALL" in dis.opname[code.co_code[at]]) or now - since > SLIPPERY_SECONDS


_RUN = InterruptibleCall.run.__code__
_NOBODY = (c_ulong(-1), py_object(AbortInterrupt))  # not 0: that is the id of every thread that is about to start
_real: Callable[[str], str] = functools.cache(os.path.realpath)
_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
_processor_clock: Callable[[int], int] = getattr(time, "pthread_getcpuclockid", lambda _: -1)
# Of our own, because everybody shares `pythonapi`'s; and a PYFUNCTYPE, because that keeps the GIL.
_raise_in = PYFUNCTYPE(c_int, c_ulong, py_object)(("PyThreadState_SetAsyncExc", pythonapi))
# Instructions that check, or call what begins with a check.
_JUMPS = re.compile("JUMP_BACKWARD(?!_NO_INTERRUPT)")
_CHECKS = re.compile(f"{_JUMPS.pattern}|RESUME|CALL(?!_INTRINSIC)(?!.*_(LEN|ISINSTANCE|LIST_APPEND|TYPE_1)$)")


def _source(fn: Any) -> str | None:
    """The file in which a function is written, beneath what it is wrapped in."""
    for _ in range(100):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, MethodType):
            fn = fn.__func__
        elif isinstance(fn, FunctionType) and not hasattr(fn, "__wrapped__"):
            return _real(fn.__code__.co_filename)
        else:
            fn = vars(fn).get("__init__") if isinstance(fn, type) else getattr(fn, "__wrapped__", type(fn).__call__)
    return None


@functools.lru_cache(maxsize=256)
def _slips(code: CodeType, at: int, exact: bool) -> bool | None:
    """Whether the next check from an instruction on is outside its `with` or `try`. None: it is in the caller."""
    bytecode = dis.Bytecode(code, adaptive=True)
    steps = {step.offset: step for step in bytecode}
    after = dict(pairwise(steps))

    def handlers(offset: int) -> Iterator[int | None]:
        for entry in bytecode.exception_entries:  # type: ignore[attr-defined]
            if entry.start <= offset < entry.end and "INTRINSIC" not in steps[entry.target].opname:
                yield entry.target
                yield from handlers(entry.target)
        yield None

    def block(step: dis.Instruction) -> int | None:
        return next(handlers(step.argval if _JUMPS.search(step.opname) else step.offset))

    def keeps(step: dis.Instruction) -> bool:
        arrives = step.argval - 2 if EXACT and _JUMPS.search(step.opname) else step.offset
        return {block(here), block(step)} <= {*handlers(arrives)}

    def ways(step: dis.Instruction) -> list[Any]:
        on = [] if step.opname.startswith(("JUMP_F", "JUMP_B")) else [after.get(step.offset)]
        return [*on, step.argval] if step.argrepr.startswith("to ") else on

    here = steps[max((offset for offset in steps if offset <= at), default=0)]
    if exact and _CHECKS.search(here.opname):
        return not keeps(here)
    todo, ahead, found = ways(here), dict(steps), set()
    while todo:
        if (step := ahead.pop(todo.pop(), None)) is None:
            continue
        if re.search("RETURN|YIELD|RAISE", step.opname):
            found.add("slips" if block(here) else "returns")
        elif not _CHECKS.search(step.opname):
            todo += ways(step)[:1] if "FOR_ITER" in step.opname else ways(step)
        elif not _JUMPS.search(step.opname):
            found.add("stays" if keeps(step) else "slips")
        elif not keeps(step):
            return True
        elif "FOR_ITER" not in here.opname:
            found.add("goes round")
    if "goes round" in found:  # which loops do more often than they end
        return False
    return True if "slips" in found else None if "returns" in found else False
