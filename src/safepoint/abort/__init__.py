"""The primitive: one signal for awaits, threads and processes, with the semantics of WHATWG's AbortController.

Owns signals, guards, clocks and what ends with them. Needs the standard library only. Knows nothing of agents.
"""

from .ambient import checkpoint, current_signal, shield
from .clock import Clock, SystemClock, Timer, current_clock, use_clock
from .controller import AbortController
from .fence import fence
from .guard import Guard
from .listeners import Registration, on_abort_timeout
from .processes import ProcessResult, run_process
from .reason import AbortError, AbortReason, AbortTimeout, ReasonKind
from .signal import AbortSignal
from .stream import Stream
from .threads import AbandonedThreads, abandoned_threads, run_in_thread

__all__ = [
    "AbandonedThreads",
    "AbortController",
    "AbortError",
    "AbortReason",
    "AbortSignal",
    "AbortTimeout",
    "Clock",
    "Guard",
    "ProcessResult",
    "ReasonKind",
    "Registration",
    "Stream",
    "SystemClock",
    "Timer",
    "abandoned_threads",
    "checkpoint",
    "current_clock",
    "current_signal",
    "fence",
    "on_abort_timeout",
    "run_in_thread",
    "run_process",
    "shield",
    "use_clock",
]
