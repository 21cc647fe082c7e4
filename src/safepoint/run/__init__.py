"""Work under a signal: contexts, leaves, outcomes and receipts.

This layer runs single operations under a signal, and records how each of them ended. It does not know agents, flows and
sessions.
"""

from typing import TYPE_CHECKING

from ..outcome import Aborted, Completed, Failed, Outcome, Status, TimedOut
from ..process.isolate import ChildDied
from ..receipt import Entry, Fate, Receipt, Usage
from ..storage.checkpoints import (
    CheckpointError,
    CheckpointInUse,
    Checkpoints,
    CheckpointUnreadable,
    FolderCheckpoints,
    MemoryCheckpoints,
)
from ..storage.sqlite_checkpoints import SqliteCheckpoints
from .ask import ask
from .context import Context, Work
from .interrupt import AbortInterrupt
from .leaf import LeafExit, LeafTimeout, leaf, wait
from .owned import detached
from .policy import Policy
from .receipt_builder import ReceiptBuilder
from .retry import Retry
from .settle import settle
from .stop import Stop, StopAck, StopAt, StopRequest
from .stream import LeafStream, stream
from .terminal import read_line

if not TYPE_CHECKING:
    from .. import events as _events
    from .. import messages as _messages
    from ..lazy_imports import lazy_imports as _lazy_imports

    __getattr__ = _lazy_imports(
        __name__, {}, elsewhere={"safepoint.events": _events.__all__, "safepoint.messages": _messages.__all__}
    )

__all__ = [
    "AbortInterrupt",
    "Aborted",
    "CheckpointError",
    "CheckpointInUse",
    "CheckpointUnreadable",
    "Checkpoints",
    "ChildDied",
    "Completed",
    "Context",
    "Entry",
    "Failed",
    "Fate",
    "FolderCheckpoints",
    "LeafExit",
    "LeafStream",
    "LeafTimeout",
    "MemoryCheckpoints",
    "Outcome",
    "Policy",
    "Receipt",
    "ReceiptBuilder",
    "Retry",
    "SqliteCheckpoints",
    "Status",
    "Stop",
    "StopAck",
    "StopAt",
    "StopRequest",
    "TimedOut",
    "Usage",
    "Work",
    "ask",
    "detached",
    "leaf",
    "read_line",
    "settle",
    "stream",
    "wait",
]
