"""Owns being called in a thread before the instructions of a tool's own code, from the moment somebody asks for it.

Python 3.12 and later have `sys.monitoring` for this. On 3.11 the thread gets a trace function, as a debugger would set
it, but from another thread: `_PyEval_SetTrace` is what `threading.settrace_all_threads` of 3.12 is made of. While
nobody asks, nothing is switched on and nobody pays. Knows nothing of interrupts and of where they are safe.
"""

import sys
import threading
from ctypes import PYFUNCTYPE, c_int, c_void_p, cast, py_object, pythonapi
from types import CodeType, FrameType
from typing import Any, Protocol

from .interrupt_safety import places

__all__ = ["Watched", "stop_watching", "thread_state", "watch"]


class Watched(Protocol):
    """A call in a thread."""

    thread_id: int | None
    thread_state: int
    ended: bool
    watched: bool
    cut: bool
    tracer: Any  # the trace function that the thread had

    def owns(self, frame: FrameType) -> bool: ...

    def before(self, frame: FrameType) -> None:
        """Called in the thread of the call before an instruction of its own code. What it raises is raised there."""


# Never held while code of a tool runs. Reentrant, because the garbage collector may run a finalizer of a tool anywhere,
# and that is code which is watched.
_lock = threading.RLock()
_RUN: set[CodeType] = set()  # of the function that calls the tool: there the frames of a call end


def frames_of(call: Watched, innermost: FrameType | None = None) -> list[FrameType] | None:
    """The frames of the call's own code, innermost first. None if the thread moved on while they were read."""
    found: list[FrameType] = []
    frame = innermost or sys._current_frames().get(call.thread_id or 0)
    while frame is not None:
        if frame.f_code in _RUN:
            return found
        if call.owns(frame):
            found.append(frame)
        frame = frame.f_back
    return None


if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _events = sys.monitoring.events
    _tool: int | None = None
    _calls: dict[int, list[Watched]] = {}  # by thread: a tool may run another one
    _codes: dict[int, CodeType] = {}  # by identity: different code objects may be equal
    _cut: list[Watched] = []  # the calls of which it is known that they are cut
    _generation = 0  # of the calls: what was decided for older ones must not be kept

    def thread_state() -> int:
        """Not needed on this version of Python."""
        return 0

    def watch(call: Watched, innermost: FrameType | None = None) -> bool:
        """Have `call.before(frame)` called in its thread from now on. False: it is not possible now.

        Args:
            call: The call.
            innermost: Its thread's innermost frame, read a moment ago. Of use for a call that is watched already: what
                has begun since then has been seen. The first time the frames are read here.
        """
        global _generation
        with _lock:
            if _tool is None and not _switch_on():
                return False
            assert _tool is not None
            calls = _calls.setdefault(call.thread_id or 0, [])
            if call not in calls:
                calls.append(call)
            known, call.watched = call.watched, True
            if call.ended:  # while this began: the thread has not seen `watched`, and does not come back
                stop_watching(call)
                return True
            if not known or (call.cut and call not in _cut):
                # What was of no interest to the others may be of interest now. It costs: each function that begins
                # anywhere in the process is asked about again. So not each time that somebody asks again.
                _generation += 1
                _monitoring.restart_events()
                if call.cut:
                    _cut.append(call)
            for attempt in range(10):
                frames = frames_of(call, None if attempt or not known else innermost)
                if frames is not None:
                    for frame in frames:
                        _watch_code(frame)
                    return True
            return call.ended

    def stop_watching(call: Watched) -> None:
        """Call it no more. The last one switches everything off."""
        global _tool
        with _lock:
            call.watched = False
            calls = _calls.get(call.thread_id or 0, [])
            for kept in (calls, _cut):
                if call in kept:
                    kept.remove(call)
            if not calls:
                _calls.pop(call.thread_id or 0, None)
            if not _calls and _tool is not None:
                _monitoring.set_events(_tool, 0)
                for code in _codes.values():
                    _monitoring.set_local_events(_tool, code, 0)
                _codes.clear()
                for event in (_events.PY_START, _events.PY_RESUME, _events.INSTRUCTION):
                    _monitoring.register_callback(_tool, event, None)
                _monitoring.free_tool_id(_tool)
                _tool = None

    def _switch_on() -> bool:
        global _tool
        for number in (4, 3, 5, 2, 1, 0):  # the others have names: debugger, coverage, profiler, optimizer
            if _monitoring.get_tool(number) is None:
                _monitoring.use_tool_id(number, "safepoint")
                _monitoring.register_callback(number, _events.PY_START, _on_start)
                _monitoring.register_callback(number, _events.PY_RESUME, _on_resume)
                _monitoring.register_callback(number, _events.INSTRUCTION, _on_instruction)
                _monitoring.set_events(number, _events.PY_START | _events.PY_RESUME)
                _tool = number
                return True
        return False

    def _watch_code(frame: FrameType) -> None:
        code = frame.f_code
        if id(code) not in _codes:
            with _lock:
                if _tool is not None:
                    _monitoring.set_local_events(_tool, code, _events.INSTRUCTION)
                    _codes[id(code)] = code

    def _no_more_of(generation: int) -> Any:
        """Do not tell of this place any more, until the next call is watched; if that has begun meanwhile, do."""
        return _monitoring.DISABLE if generation == _generation else None

    def _on_start(code: CodeType, offset: int) -> Any:
        generation, frame = _generation, sys._getframe(1)
        if not any(call.owns(frame) for call in _all_calls()):
            return _no_more_of(generation)  # of no interest to anybody
        for call in _calls_here(frame):
            _watch_code(frame)
            call.before(frame)
        return None

    def _on_resume(code: CodeType, offset: int) -> Any:
        generation, frame = _generation, sys._getframe(1)
        if not any(call.owns(frame) for call in _all_calls()):
            return _no_more_of(generation)
        if _calls_here(frame):
            _watch_code(frame)
        return None

    def _on_instruction(code: CodeType, offset: int) -> Any:
        generation, frame = _generation, sys._getframe(1)
        try:
            here = places(frame)
        except RecursionError:  # the tool has used up the stack
            return None
        if offset not in here.safe and not (offset in here.cut and any(call.cut for call in _all_calls())):
            return _no_more_of(generation)
        for call in _calls_here(frame):
            call.before(frame)
        return None

    def _all_calls() -> list[Watched]:
        return [call for calls in list(_calls.values()) for call in calls]

    def _calls_here(frame: FrameType) -> list[Watched]:
        """The calls that run in this thread and whose own code this is."""
        return [call for call in _calls.get(threading.get_ident(), ()) if call.owns(frame)]

else:
    # PYFUNCTYPE, because that keeps the GIL.
    thread_state = PYFUNCTYPE(c_void_p)(("PyThreadState_Get", pythonapi))
    _set_trace = PYFUNCTYPE(c_int, c_void_p, c_void_p, py_object)(("_PyEval_SetTrace", pythonapi))
    # A trace function in C is called with an object, the frame, and two arguments more; -1 means that it has raised.
    # This one calls `frame in object`, and so `_Tracer.__contains__`. (ctypes cannot make one that raises.)
    _TRACE = cast(pythonapi.PySequence_Contains, c_void_p).value
    _calls: dict[int, list[Watched]] = {}

    class _Tracer:
        def __contains__(self, frame: FrameType) -> bool:
            own = False
            for call in tuple(_calls.get(threading.get_ident(), ())):
                if call.owns(frame):
                    own = frame.f_trace_opcodes = True
                    call.before(frame)
            if not own:
                frame.f_trace_lines = False  # of no interest in this frame
            return False

    _tracer = _Tracer()

    def watch(call: Watched, innermost: FrameType | None = None) -> bool:
        """Have `call.before(frame)` called in its thread from now on. False: it is not possible now.

        Args:
            call: The call.
            innermost: Its thread's innermost frame, read a moment ago. Of use for a call that is watched already: what
                has begun since then has been seen. The first time the frames are read here.
        """
        with _lock:
            known = call.watched
            if not known:
                call.watched = True
                if call.ended:  # while this began: the thread has not seen `watched`, and its state may be gone
                    call.watched = False
                    return True
                # The thread cannot end before the lock is free: at its end it sees `watched`, and waits for the lock.
                _calls.setdefault(call.thread_id or 0, []).append(call)
                _set_trace(call.thread_state, _TRACE, _tracer)
            for attempt in range(10):
                frames = frames_of(call, None if attempt or not known else innermost)
                if frames is not None:
                    for frame in frames:
                        frame.f_trace_opcodes = True  # `while True: pass` never begins another line
                    return True
            return call.ended

    def stop_watching(call: Watched) -> None:
        """Call it no more. Must be called in its thread."""
        with _lock:
            call.watched = False
            calls = _calls.get(call.thread_id or 0, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                _calls.pop(call.thread_id or 0, None)
        if not calls:
            sys.settrace(call.tracer)
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code not in _RUN:
                frame.f_trace_opcodes, frame.f_trace_lines = False, True
                frame = frame.f_back
