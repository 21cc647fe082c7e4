"""The receipt: what a stop did, with one entry for each leaf, and the builders that collect the entries during a run.

This module does not know how a leaf runs. It records what the leaf reports, and a leaf reports only what it has
evidence for.
"""

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias, cast, get_args

from ..abort import AbortReason, AbortSignal, Clock
from ..abort.process_tree import ProcessId, descendants, end_processes, is_alive
from ..errors import TEXT_LIMIT, shorten
from .json_fields import Fields, parse

__all__ = ["Entry", "EntryBuilder", "Fate", "LeafKind", "Receipt", "ReceiptBuilder", "Usage"]

Fate: TypeAlias = Literal["stopped", "finished", "not_started", "still_running", "unknown"]
# `program`: a program that a leaf started itself. `task`: an asyncio task that a leaf left behind.
LeafKind: TypeAlias = Literal["await", "thread", "process", "stream", "question", "wait", "child", "program", "task"]

FATES: frozenset[str] = frozenset(get_args(Fate))
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


@dataclass(frozen=True, slots=True)
class Usage:
    """The requests and tokens used so far.

    Attributes:
        requests: Requests to models.
        input_tokens: Tokens sent.
        output_tokens: Tokens received.
        estimated: Whether part of it is an estimate, because an answer was cut off before its exact count arrived.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.estimated or other.estimated,
        )

    @classmethod
    def from_dict(cls, data: object) -> "Usage":
        """Read the JSON form back.

        Raises:
            WireError: The data does not describe a usage.
        """
        fields = Fields("usage", data)
        requests, tokens_in, tokens_out = (fields.count(n, 0) for n in ("requests", "input_tokens", "output_tokens"))
        return cls(requests, tokens_in, tokens_out, fields.flag("estimated", False))


@dataclass(frozen=True, slots=True)
class Entry:
    """What happened to one leaf or child run, or to something that a leaf started.

    Attributes:
        name: The operation, as a path from the run: `run/search`.
        kind: How it ran.
        fate: How it ended, or that it still runs.
        seconds: From the abort to its end; None if it did not end after an abort.
        where: The file and line at which it was last seen, if it may still run.
        note: What else a reader should know.
        pid: The process id, if the entry is about a process or a program.
        pid_started: When that process was started, in clock ticks since the machine's start (field 22 of
            `/proc/<pid>/stat`). The system reuses process ids, so only both together identify one process.
    """

    name: str
    kind: LeafKind
    fate: Fate
    seconds: float | None = None
    where: str | None = None
    note: str = ""
    pid: int | None = None
    pid_started: int | None = None

    @classmethod
    def from_dict(cls, data: object) -> "Entry":
        """Read the JSON form back.

        A fate that only a newer version knows is read as `unknown`, with its name in the note, so that the rest of the
        receipt can still be read.

        Raises:
            WireError: The data does not describe an entry.
        """
        fields = Fields("entry", data)
        fate, note = fields.text("fate"), fields.text("note", "")
        if fate not in FATES:
            fate, note = "unknown", f"[{fate}] {note}".rstrip()
        return cls(
            fields.text("name"),
            cast(LeafKind, fields.text("kind")),  # not checked: it is only shown to people
            cast(Fate, fate),
            fields.optional_number("seconds"),
            fields.optional_text("where"),
            note,
            fields.optional_count("pid"),
            fields.optional_count("pid_started"),
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a stop did: what stopped, what finished, what never started, what still runs.

    Attributes:
        reason: Why the run was stopped; None if it was not.
        requested_at: When the run was aborted, in seconds since 1970.
        settled_at: When the receipt was written, in seconds since 1970.
        entries: One for each leaf and child run, and for what they left running.
        usage: The requests and tokens used so far.
        resume: Where a resumed run would continue.
        warnings: What a person should look at.
        omitted: How many entries of operations that had ended are left out.
        escalated: Whether the stop was to wait for a safe point that was not reached in time.
    """

    reason: AbortReason | None
    requested_at: float | None
    settled_at: float
    entries: tuple[Entry, ...] = ()
    usage: Usage = field(default_factory=Usage)
    resume: str | None = None
    warnings: tuple[str, ...] = ()
    omitted: int = 0
    escalated: bool = False

    @property
    def still_running(self) -> tuple[Entry, ...]:
        """The entries of what goes on, or may go on, although the run is over."""
        return tuple(entry for entry in self.entries if entry.fate in ("still_running", "unknown"))

    def to_dict(self) -> dict[str, object]:
        """Return the JSON-ready form."""
        # Convert the reason separately: `asdict` copies deeply, and the exception that caused it may not be copyable.
        data = asdict(replace(self, reason=None))
        return {**data, "reason": None if self.reason is None else self.reason.to_dict()}

    def end_survivors(self, grace: float = 2.0, *, unknown: bool = False) -> tuple[int, ...]:
        """End the processes that are listed as still running: TERM, and KILL after `grace` seconds. Blocks the thread.

        A process is ended only if it is the one that was listed: a process that got the same pid later is not touched.

        Args:
            grace: Seconds between TERM and KILL.
            unknown: Also end the processes whose fate is `unknown`: those that began during the run, and that may have
                been started by another part of the program. Their entries say why they are listed.

        Returns:
            The pids of the processes that still run afterwards.
        """
        listed = [
            ProcessId(entry.pid, entry.pid_started)
            for entry in self.still_running
            if entry.pid is not None and entry.pid_started is not None and (unknown or entry.fate == "still_running")
        ]
        living = [process for process in listed if is_alive(process)]
        everything = {*living, *descendants(process.pid for process in living)}
        return tuple(process.pid for process in end_processes(everything, grace=grace))

    def to_json(self) -> str:
        """Return the receipt as JSON text, which `Receipt.from_json` reads back."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Read `to_json()` back. Unknown fields are ignored.

        Raises:
            WireError: The text is not a receipt; the message says what is wrong. It is also a ValueError.
        """
        return cls.from_dict(parse("receipt", text))

    @classmethod
    def from_dict(cls, data: object) -> "Receipt":
        """Read `to_dict()` back. Unknown fields are ignored.

        Raises:
            WireError: The data is not a receipt.
        """
        fields = Fields("receipt", data)
        reason = fields.optional_object("reason")
        return cls(
            None if reason is None else AbortReason.from_dict(reason),
            fields.optional_number("requested_at"),
            fields.number("settled_at"),
            tuple(Entry.from_dict(one) for one in fields.items("entries")),
            Usage.from_dict(fields.object("usage", {})),
            fields.optional_text("resume"),
            fields.texts("warnings"),
            fields.count("omitted", 0),
            fields.flag("escalated", False),
        )

    def __str__(self) -> str:
        took = None if self.requested_at is None else self.settled_at - self.requested_at
        head = f"Stopped: {self.reason}" if self.reason else "Ended without a stop"
        lines = [head if took is None else f"{head}, settled after {duration(took)}"]
        if self.escalated:
            lines.append("  the safe point was not reached in time: it was stopped at once")
        width = max((len(entry.name) for entry in self.entries), default=0)
        for entry in self.entries:
            after = "" if entry.seconds is None else f"after {duration(entry.seconds)}"
            process = "" if entry.pid is None else f"pid {entry.pid}"
            details = "  ".join(filter(None, (after, process, f"at {entry.where}" if entry.where else "", entry.note)))
            lines.append(
                f"  {entry.name:<{width}}  {entry.kind:<8}  {entry.fate.replace('_', ' '):<13}  {details}".rstrip()
            )
        if self.omitted:
            lines.append(f"  … and {self.omitted} more that had ended before")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        if self.usage.requests:
            about = "about " if self.usage.estimated else ""
            lines.append(
                f"  usage: {self.usage.requests} requests,"
                f" {about}{self.usage.input_tokens} tokens in, {self.usage.output_tokens} out"
            )
        if self.resume:
            lines.append(f"  resume: {self.resume}")
        return "\n".join(lines)


def duration(seconds: float) -> str:
    """Format a duration for people: `0.4 ms`, `120 ms`, `3.2 s`."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


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
