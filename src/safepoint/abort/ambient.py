"""Owns what code can ask without being handed a signal: the ambient one, and a shield against it.

A safety net: a signal that was handed over beats it. It follows context variables, so tasks and threads started
inside a guard have it too.
"""

from .clock import check_seconds
from .deadline import Deadline
from .guard import Guard, abort_error, enclosing
from .reason import caller
from .signal import AbortSignal

__all__ = ["checkpoint", "current_signal", "shield"]


def current_signal() -> AbortSignal:
    """The signal of the guards around the running code; one that is never aborted where there are none."""
    signals = [signal for signal in enclosing() if isinstance(signal, AbortSignal)]
    return signals[0] if len(signals) == 1 else AbortSignal.any(signals)


def checkpoint() -> None:
    """Raises: AbortError if a signal around the running code is aborted. For long loops without an await."""
    for signal in enclosing():
        if signal.aborted:
            raise abort_error(signal)


def shield(seconds: float) -> Guard:
    """`with shield(5):` lets clean-up await in peace: aborts from outside wait until the block is over.

    Bounded: after `seconds` the body gets AbortError (AbortTimeout). An outer task cancellation is not held back.
    """
    return Guard(Deadline(check_seconds("seconds", seconds), "timeout", caller(1)), shields=True)
