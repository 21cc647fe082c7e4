"""The primitive: one signal for awaits and threads, with the semantics of WHATWG's AbortController.

Owns signals, guards, clocks and what ends with them. Needs the standard library only. Knows nothing of agents.
"""

from typing import TYPE_CHECKING

from .ambient import checkpoint, current_signal, shield
from .clock import Clock, SystemClock, Timer, current_clock, use_clock
from .controller import AbortController
from .fence import fence
from .guard import Guard
from .listeners import Registration, on_abort_timeout
from .reason import AbortError, AbortReason, AbortTimeout, ReasonKind
from .signal import AbortSignal
from .stream import Stream
from .threads import AbandonedThreads, abandoned_threads, run_in_thread

if not TYPE_CHECKING:  # pragma: no branch
    from ..lazy_imports import lazy_imports as _lazy_imports

    __getattr__ = _lazy_imports(__name__, {}, moved={"ProcessResult": "..process", "run_process": "..process"})

__all__ = [
    "AbandonedThreads",
    "AbortController",
    "AbortError",
    "AbortReason",
    "AbortSignal",
    "AbortTimeout",
    "Clock",
    "Guard",
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
    "shield",
    "use_clock",
]
