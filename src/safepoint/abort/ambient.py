"""Owns the ambient signal, which code finds without being passed one, and the shield against it.

The ambient signal is a fallback: a signal that is passed explicitly takes precedence. It is stored in a context
variable, so tasks and threads started inside a guard inherit it.
"""

from .clock import check_seconds
from .deadline import Deadline
from .guard import Guard, abort_error, enclosing
from .reason import caller
from .signal import AbortSignal

__all__ = ["checkpoint", "current_signal", "shield"]


def current_signal() -> AbortSignal:
    """The signal of the guards around the running code, or a signal that never aborts if there are none."""
    signals = [signal for signal in enclosing() if isinstance(signal, AbortSignal)]
    return signals[0] if len(signals) == 1 else AbortSignal.any(signals)


def checkpoint() -> None:
    """Check the ambient signal. For long loops without an await.

    Raises:
        AbortError: A signal around the running code is aborted.
    """
    for signal in enclosing():
        if signal.aborted:
            raise abort_error(signal)


def shield(seconds: float) -> Guard:
    """Protect clean-up from aborts: `with shield(5): await connection.close()`.

    Aborts of signals outside of the block wait until it is over. A cancellation of the task is not held back.

    Args:
        seconds: The time limit of the block, after which AbortTimeout is raised inside it.
    """
    return Guard(Deadline(check_seconds("seconds", seconds), "timeout", caller(1)), shields=True)
