"""Sessions: conversations with an agent, whose turns can be stopped at any time and are recorded in a store.

Owns live sessions and their stores. Knows nothing of the network.
"""

from .host import (
    ChangeAck,
    Host,
    NotFound,
    SessionAccess,
    SessionView,
    SessionViews,
    TurnChanges,
    TurnCommands,
    TurnView,
)
from .local_host import LocalHost
from .log import LoggedEvent
from .session import Session, SessionBusy, SessionEnded
from .sqlite import SqliteStore
from .store import LogRecord, MemoryStore, SessionInfo, SessionInUse, Store, StoreError
from .turn import SessionTurn, TurnResult

__all__ = [
    "ChangeAck",
    "Host",
    "LocalHost",
    "LogRecord",
    "LoggedEvent",
    "MemoryStore",
    "NotFound",
    "Session",
    "SessionAccess",
    "SessionBusy",
    "SessionEnded",
    "SessionInUse",
    "SessionInfo",
    "SessionTurn",
    "SessionView",
    "SessionViews",
    "SqliteStore",
    "Store",
    "StoreError",
    "TurnChanges",
    "TurnCommands",
    "TurnResult",
    "TurnView",
]
