"""Calls of a Python function before each instruction of a tool's own code, in the tool's thread, on request.

Python 3.12 and later have `sys.monitoring` for this. On 3.11 the thread gets a trace function, as a debugger sets it,
but from another thread: `_PyEval_SetTrace` is the function behind `threading.settrace_all_threads` of 3.12. Without a
request nothing is switched on, so there is no overhead. This module does not decide where an interrupt is safe.

**Why the GIL must be kept on 3.11.** `_PyEval_SetTrace` changes the state of another thread, which that thread reads
whenever it holds the GIL, and which is freed when the thread ends. Two things make this safe. The function is declared
with PYFUNCTYPE, which keeps the GIL during the call, where the functions of a `CDLL` would release it. And `_lock` is
held: a thread that ends its call finds `watched` set and waits for the lock in `stop_watching`, so it cannot end before
the change is over.
"""

import sys
import threading
from ctypes import PYFUNCTYPE, c_int, c_void_p, cast, py_object, pythonapi
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Protocol

from .positions import safe_positions

if TYPE_CHECKING:
    from _typeshed import TraceFunction

__all__ = ["CALL_BOUNDARIES", "Watched", "stop_watching", "thread_state", "watch"]


class Watched(Protocol):
    """A call in a thread, as this module sees it.

    Attributes:
        thread_id: The thread of the call.
        thread_state: The address of the thread's state; used on Python 3.11 only.
        ended: Whether the thread has left the call.
        watched: Whether `before_instruction` is called.
        cut: Whether an exception may also come at the safe_positions in `SafePositions.cut`.
        tracer: The trace function that the thread had before.
    """

    thread_id: int | None
    thread_state: int
    ended: bool
    watched: bool
    cut: bool
    tracer: "TraceFunction | None"

    def owns(self, frame: FrameType) -> bool: ...

    def before_instruction(self, frame: FrameType) -> None:
        """Called in the thread of the call before an instruction of its own code. What it raises is raised there."""


# Never held while code of a tool runs. It is reentrant, because the garbage collector may run a finalizer of a tool at
# any point, also while this thread holds the lock, and the finalizer is watched code.
_lock = threading.RLock()
# The code of the function that calls the tool. Its frame is the outermost of a call.
CALL_BOUNDARIES: set[CodeType] = set()


def frames_of(call: Watched, innermost: FrameType | None = None) -> list[FrameType] | None:
    """Return the frames of the call's own code, innermost first. None if the thread moved on while they were read."""
    found: list[FrameType] = []
    frame = innermost or sys._current_frames().get(call.thread_id or 0)
    while frame is not None:
        if frame.f_code in CALL_BOUNDARIES:
            return found
        if call.owns(frame):
            found.append(frame)
        frame = frame.f_back
    return None


if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _events = sys.monitoring.events
    _tool: int | None = None
    _calls: dict[int, list[Watched]] = {}  # by thread, innermost last: a tool may run another tool
    _codes: dict[int, CodeType] = {}  # by identity, because different code objects may be equal
    _cut: list[Watched] = []  # the calls that were already cut when events were last restarted
    # Raised whenever a watched call is added. A location is disabled only for the generation for which it was judged.
    _generation = 0

    def thread_state() -> int:
        """Return 0: the state of the thread is not needed on this version of Python."""
        return 0

    def watch(call: Watched, innermost: FrameType | None = None) -> bool:
        """Call `call.before_instruction(frame)` in its thread from now on.

        Args:
            call: The call.
            innermost: Its thread's innermost frame, read a moment ago. It is enough for a call that is watched already,
                because functions that have begun since then were noticed. The first time the frames are read here.

        Returns:
            False if it is not possible now.
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
            if call.ended:  # meanwhile: the thread has not seen `watched`, and will not stop the calls itself
                stop_watching(call)
                return True
            if not known or (call.cut and call not in _cut):
                # Locations that were disabled for the other calls may matter for this one. Restarting events is costly,
                # because each function that begins anywhere in the process is judged again, so a repeated request for
                # the same call does not do it.
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
        """Stop calling `before_instruction`. The last call switches everything off."""
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
        for number in (4, 3, 5, 2, 1, 0):  # unassigned ids first, then those of optimizer, profiler, coverage, debugger
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

    def _disable_here(generation: int) -> object:
        """Disable the event at this location until the next call is watched.

        The caller has read the generation before it judged the location. If a call was added since then, the judgement
        did not consider it, and the location stays enabled.
        """
        return _monitoring.DISABLE if generation == _generation else None

    def _on_start(code: CodeType, offset: int) -> object:
        generation, frame = _generation, sys._getframe(1)
        if not any(call.owns(frame) for call in _all_calls()):
            return _disable_here(generation)
        for call in _calls_here(frame):
            _watch_code(frame)
            call.before_instruction(frame)
        return None

    def _on_resume(code: CodeType, offset: int) -> object:
        generation, frame = _generation, sys._getframe(1)
        if not any(call.owns(frame) for call in _all_calls()):
            return _disable_here(generation)
        if _calls_here(frame):
            _watch_code(frame)
        return None

    def _on_instruction(code: CodeType, offset: int) -> object:
        generation, frame = _generation, sys._getframe(1)
        try:
            here = safe_positions(frame)
        except RecursionError:  # the tool has used up the stack
            return None
        if offset not in here.safe and not (offset in here.cut and any(call.cut for call in _all_calls())):
            return _disable_here(generation)
        for call in _calls_here(frame):
            call.before_instruction(frame)
        return None

    def _all_calls() -> list[Watched]:
        return [call for calls in list(_calls.values()) for call in calls]

    def _calls_here(frame: FrameType) -> list[Watched]:
        """The calls in this thread to whose own code the frame belongs."""
        return [call for call in _calls.get(threading.get_ident(), ()) if call.owns(frame)]

else:
    # PYFUNCTYPE keeps the GIL during the call: see the module.
    thread_state = PYFUNCTYPE(c_void_p)(("PyThreadState_Get", pythonapi))
    _set_trace = PYFUNCTYPE(c_int, c_void_p, c_void_p, py_object)(("_PyEval_SetTrace", pythonapi))
    # A trace function in C gets an object, the frame and two more arguments, and returns -1 if it has raised. So does
    # `PySequence_Contains`: it ignores the last two, evaluates `frame in object`, which calls `_Tracer.__contains__`,
    # and returns -1 if that raised. A callback made by ctypes could not raise an exception into the tool.
    _TRACE = cast(pythonapi.PySequence_Contains, c_void_p).value
    _calls: dict[int, list[Watched]] = {}

    class _Tracer:
        def __contains__(self, frame: FrameType) -> bool:
            own = False
            for call in tuple(_calls.get(threading.get_ident(), ())):
                if call.owns(frame):
                    own = frame.f_trace_opcodes = True
                    call.before_instruction(frame)
            if not own:
                frame.f_trace_lines = False  # no further calls for this frame
            return False

    _tracer = _Tracer()

    def watch(call: Watched, innermost: FrameType | None = None) -> bool:
        """Call `call.before_instruction(frame)` in its thread from now on.

        Args:
            call: The call.
            innermost: Its thread's innermost frame, read a moment ago. It is enough for a call that is watched already,
                because functions that have begun since then were noticed. The first time the frames are read here.

        Returns:
            False if it is not possible now.
        """
        with _lock:
            known = call.watched
            if not known:
                call.watched = True
                if call.ended:  # meanwhile: the thread has not seen `watched`, and its state may be freed already
                    call.watched = False
                    return True
                # Now the thread cannot end before the lock is free: it sees `watched`, and waits in `stop_watching`.
                _calls.setdefault(call.thread_id or 0, []).append(call)
                _set_trace(call.thread_state, _TRACE, _tracer)
            for attempt in range(10):
                frames = frames_of(call, None if attempt or not known else innermost)
                if frames is not None:
                    for frame in frames:
                        frame.f_trace_opcodes = True  # not lines: `while True: pass` never begins another one
                    return True
            return call.ended

    def stop_watching(call: Watched) -> None:
        """Stop calling `before_instruction`. Must be called in the thread of the call."""
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
            while frame is not None and frame.f_code not in CALL_BOUNDARIES:
                frame.f_trace_opcodes, frame.f_trace_lines = False, True
                frame = frame.f_back
