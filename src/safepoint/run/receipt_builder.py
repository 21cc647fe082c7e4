"""The builders of a receipt, which collect its entries during a run.

This module does not know how a leaf runs. It records what the leaf reports, and a leaf reports only what it has
evidence for.
"""

import threading
from collections import deque
from collections.abc import Callable

from ..abort import AbortReason, AbortSignal, Clock
from ..errors import TEXT_LIMIT, shorten
from ..receipt import NO_USAGE, Entry, Fate, LeafKind, Receipt

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
        self._receipt_builder: ReceiptBuilder | None = receipt_builder  # None once it has ended
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

    def end(self, fate: Fate, where: str | None = None, note: str = "") -> None:
        """Record how it ended. The first end is final; `still_running` is none, and may become an end later.

        Args:
            fate: How it ended.
            where: Where it is, if it may still run.
            note: What else a reader should know.
        """
        if note:
            note = shorten(note, NOTE_LIMIT)
        builder = self._receipt_builder
        if builder is None:
            return
        # Two threads may end one entry: the thread of a function that returns, and one that writes a receipt meanwhile.
        with builder.lock:
            if self.ended_at is None:
                self.fate, self.where, self.note = fate, where, note
                if fate != "still_running":
                    builder.ended(self)
                    self._receipt_builder = None  # no cycle with the builder, so that both need no garbage collection


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
        # Every run has a builder, and most runs end with few entries of one fate, so the rest is made when needed.
        self._ended: dict[Fate, deque[EntryBuilder]] = {}
        self._count = 0  # of the ends, which are listed in this order
        self._omitted: dict[Fate, int] = {}
        self.usage = NO_USAGE
        self.resume: str | None = None
        self.programs_since: int | None = None
        self._warnings: list[str] = []
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
        del self._warnings[:-LISTED]

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
        entry.number = self._count = self._count + 1
        fate = entry.fate
        entries = self._ended.get(fate)
        if entries is None:
            entries = self._ended[fate] = deque(maxlen=LIMITS[fate])
        elif len(entries) == entries.maxlen:  # the oldest one is dropped
            self._omitted[fate] = self._omitted.get(fate, 0) + 1
        entries.append(entry)

    def receipt(self, signal: AbortSignal, *, escalated: bool = False) -> Receipt:
        """Make a receipt of what is known now."""
        self.update()
        now, date, at = self._clock.monotonic(), self._clock.time(), signal.aborted_at
        requested_at = None if at is None else date - (now - at)
        entries = tuple(_entry(entry, at) for entry in self._entries())
        return self._receipt(signal.reason, requested_at, date, entries, escalated)

    def remaining(self, operation: str) -> Receipt:
        """Make a receipt of what still runs inside an operation that was not stopped and has ended."""
        if self._updaters:
            self.update()
        entries: tuple[Entry, ...] = ()
        if self._live:
            entries = tuple(_entry(entry, None) for entry in list(self._live) if entry.name.startswith(f"{operation}/"))
        return self._receipt(None, None, self._clock.time(), entries)

    def _receipt(
        self,
        reason: AbortReason | None,
        requested_at: float | None,
        settled_at: float,
        entries: tuple[Entry, ...],
        escalated: bool = False,
    ) -> Receipt:
        warnings: tuple[str, ...] = ()
        omitted = 0
        if self._warned or self._omitted or self._live:
            warnings = (*self.warnings, *self._unlisted())
            omitted = sum(count for fate, count in self._omitted.items() if fate != "unknown")
        return Receipt(reason, requested_at, settled_at, entries, self.usage, self.resume, warnings, omitted, escalated)

    def _entries(self) -> list[EntryBuilder]:
        """What finished, then what ended in another way, each in the order of the ends; then what runs."""
        ended = list(self._ended.items())
        others = [entry for fate, entries in ended if fate != "finished" for entry in list(entries)]
        others.sort(key=lambda entry: entry.number)
        return [*self._ended.get("finished", ()), *others, *list(self._live)[-LISTED_OF_INTEREST:]]

    def _unlisted(self) -> list[str]:
        """A warning if operations that may still run are not listed, so that nobody takes them for ended."""
        unlisted = self._omitted.get("unknown", 0) + max(0, len(self._live) - LISTED_OF_INTEREST)
        return [f"{unlisted} more operations may still run: they are not listed"] if unlisted else []


def _entry(entry: EntryBuilder, aborted_at: float | None) -> Entry:
    ended_at, seconds = entry.ended_at, None
    if ended_at is not None and aborted_at is not None and ended_at >= aborted_at:
        seconds = ended_at - aborted_at
    return Entry(entry.name, entry.kind, entry.fate, seconds, entry.where, entry.note, entry.pid, entry.pid_started)
