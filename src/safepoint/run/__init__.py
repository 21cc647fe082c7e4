"""Work under a signal: leaves, outcomes, receipts. The layer that turns a signal into "it stopped, and here is how".

Owns contexts, leaves and what becomes of them. Knows nothing of agents, flows and sessions.
"""

from .ask import ask
from .context import Context, Work
from .interrupt import AbortInterrupt
from .isolate import ChildDied
from .leaf import LeafTimeout, leaf, wait
from .outcome import Aborted, Completed, Failed, Outcome, Status, TimedOut
from .policy import Policy
from .receipt import Entry, Fate, Ledger, Receipt, Usage
from .retry import Retry
from .settle import settle
from .stream import LeafStream, stream

__all__ = [
    "AbortInterrupt",
    "Aborted",
    "ChildDied",
    "Completed",
    "Context",
    "Entry",
    "Failed",
    "Fate",
    "LeafStream",
    "LeafTimeout",
    "Ledger",
    "Outcome",
    "Policy",
    "Receipt",
    "Retry",
    "Status",
    "TimedOut",
    "Usage",
    "Work",
    "ask",
    "leaf",
    "settle",
    "stream",
    "wait",
]
