"""The builders of a receipt, which collect its entries during a run.

This module does not know how a leaf runs. It records what the leaf reports, and a leaf reports only what it has
evidence for.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable

from ..abort import AbortSignal, Clock
from ..errors import TEXT_LIMIT, shorten
from ..receipt import Entry, Fate, LeafKind, Receipt, Usage

__all__ = ["EntryBuilder", "ReceiptBuilder"]

# A run of several days has thousands of leaves that have ended. Of each fate only the newest are listed, and the others
# are counted.
LISTED = 200
# The limit for the entries that a reader has to look at: what was stopped, what still runs, what is unknown. It is
# higher, so that the stop of a thousand leaves has a thousand entries.
LISTED_OF_INTEREST = 1_000
LIMITS: dict[Fate, int] = {
    "finished": LISTED,
    "not_started": LISTED,
    "stopped": LISTED_OF_INTEREST,
    "unknown": LISTED_OF_INTEREST,
}
NOTE_LIMIT = 2 * TEXT_LIMIT  # the shortened text of an error and some words around it


class EntryBuilder:
    """The entry of one leaf while the leaf runs.

    Attributes:
        owned: Whether the entry is about something that a leaf started, and not about a leaf.
        number: The position of its end among all ends.
        pid: The process id, and `pid_started` its start; both may be set at any time.
    """

    __slots__ = (
        "_receipt_builder",
        "ended_at",
        "fate",
        "kind",
        "name",
        "note",
        "number",
        "owned",
        "pid",
        "pid_started",
        "where",
    )

    def __init__(self, receipt_builder: "ReceiptBuilder", name: str, kind: LeafKind, owned: bool = False) -> None:
        self._receipt_builder = receipt_builder
        self.owned = owned
        self.name = name
        self.kind: LeafKind = kind
        self.fate: Fate = "unknown"  # until there is evidence
        self.ended_at: float | None = None
        self.where: str | None = None
        self.note = ""
        self.number = 0
        self.pid: int | None = None
        self.pid_started: int | None = None

    def end(self, fate: Fate, *, where: str | None = None, note: str = "") -> None:
        """Record how it ended. The first end is final; `still_running` is none, and may become an end later."""
        if note:
            note = shorten(note, NOTE_LIMIT)
        # Two threads may end one entry: the thread of a function that returns, and one that writes a receipt meanwhile.
        with self._receipt_builder.lock:
            if self.ended_at is None:
                self.fate, self.where, self.note = fate, where, note
                if fate != "still_running":
                    self._receipt_builder.ended(self)


class ReceiptBuilder:
    """The entries of one run and of its child runs. Only what still runs is kept without a limit.

    Attributes:
        usage: The requests and tokens used so far.
        resume: Where a resumed run would continue.
        programs_since: When a leaf of the run first started a program, in clock ticks since boot; None if none did.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lock = threading.RLock()  # held while an entry is ended; a signal handler may end one too
        self._live: dict[EntryBuilder, None] = {}
        self._ended: dict[Fate, deque[EntryBuilder]] = {fate: deque() for fate in LIMITS}
        self._numbers = itertools.count()  # of the ends, which are listed in this order
        self._omitted: dict[Fate, int] = dict.fromkeys(LIMITS, 0)
        self.usage = Usage()
        self.resume: str | None = None
        self.programs_since: int | None = None
        self._warnings: deque[str] = deque(maxlen=LISTED)
        self._warned = 0
        self._updaters: dict[object, Callable[[], bool]] = {}

    def begin(self, name: str, kind: LeafKind, *, owned: bool = False) -> EntryBuilder:
        """Add an entry: for a leaf, or for something that a leaf started (`owned`)."""
        entry = EntryBuilder(self, name, kind, owned)
        self._live[entry] = None
        return entry

    def warn(self, message: str) -> None:
        """Add a warning to the receipt. Only the newest are kept."""
        self._warned += 1
        self._warnings.append(shorten(message, NOTE_LIMIT))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings so far. If some were dropped, the first text says how many."""
        kept = tuple(self._warnings)
        dropped = self._warned - len(kept)
        return (f"{dropped} warnings came before these", *kept) if dropped else kept

    def has_running_part(self, name: str) -> bool:
        """Whether a leaf inside this operation runs, which has an entry of its own."""
        return any(entry.name.startswith(f"{name}/") and not entry.owned for entry in list(self._live))

    def add_updater(self, update: Callable[[], bool]) -> None:
        """Call `update` before each receipt, to bring entries up to date, until it returns False."""
        if len(self._updaters) >= LISTED:  # most of them have ended long ago
            self.update()
        self._updaters[object()] = update

    def update(self) -> None:
        """Bring the entries of what leaves started up to date."""
        # One at a time, without replacing the whole dict: another thread may add an updater meanwhile.
        for key, update in list(self._updaters.items()):
            if not update():
                self._updaters.pop(key, None)

    def ended(self, entry: EntryBuilder) -> None:
        """Move an entry to those that have ended."""
        entry.ended_at = self._clock.monotonic()
        self._live.pop(entry, None)
        entry.number = next(self._numbers)
        entries = self._ended[entry.fate]
        entries.append(entry)
        if len(entries) > LIMITS[entry.fate]:
            entries.popleft()
            self._omitted[entry.fate] += 1

    def receipt(self, signal: AbortSignal, *, escalated: bool = False) -> Receipt:
        """Make a receipt of what is known now."""
        self.update()
        return self._receipt(signal, self._entries(), escalated)

    def remaining(self, signal: AbortSignal, operation: str) -> Receipt:
        """Make a receipt of what still runs inside an operation that has ended."""
        self.update()
        return self._receipt(signal, [entry for entry in list(self._live) if entry.name.startswith(f"{operation}/")])

    def _receipt(self, signal: AbortSignal, entries: "list[EntryBuilder]", escalated: bool = False) -> Receipt:
        now, date = self._clock.monotonic(), self._clock.time()
        at = signal.aborted_at
        omitted = sum(count for fate, count in self._omitted.items() if fate != "unknown")
        return Receipt(
            signal.reason,
            None if at is None else date - (now - at),
            date,
            tuple(self._entry(entry, at) for entry in entries),
            self.usage,
            self.resume,
            (*self.warnings, *self._unlisted()),
            omitted,
            escalated,
        )

    def _entries(self) -> list[EntryBuilder]:
        """What finished, then what ended in another way, each in the order of the ends; then what runs."""
        others = [entry for fate, entries in self._ended.items() if fate != "finished" for entry in list(entries)]
        others.sort(key=lambda entry: entry.number)
        return [*self._ended["finished"], *others, *list(self._live)[-LISTED_OF_INTEREST:]]

    def _unlisted(self) -> list[str]:
        """A warning if operations that may still run are not listed, so that nobody takes them for ended."""
        unlisted = self._omitted["unknown"] + max(0, len(self._live) - LISTED_OF_INTEREST)
        return [f"{unlisted} more operations may still run: they are not listed"] if unlisted else []

    def _entry(self, entry: EntryBuilder, aborted_at: float | None) -> Entry:
        ended_at, seconds = entry.ended_at, None
        if ended_at is not None and aborted_at is not None and ended_at >= aborted_at:
            seconds = ended_at - aborted_at
        return Entry(entry.name, entry.kind, entry.fate, seconds, entry.where, entry.note, entry.pid, entry.pid_started)
