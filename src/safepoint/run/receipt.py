"""Owns the receipt: what a stop did, entry by entry, and the ledger in which leaves write it down.

Knows nothing of how a leaf runs; believes what the leaf has evidence for.
"""

import itertools
import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from ..abort import AbortReason, AbortSignal, Clock
from ..abort.process_tree import ProcessId, descendants, end_processes, is_alive
from ..errors import TEXT_LIMIT, shorten
from .json_fields import Fields, parse

__all__ = ["Entry", "EntryBuilder", "Fate", "LeafKind", "Receipt", "ReceiptBuilder", "Usage"]

Fate: TypeAlias = Literal["stopped", "finished", "not_started", "still_running", "unknown"]
# `program`: a program that a leaf had started itself. `task`: an asyncio task that a leaf had left behind.
LeafKind: TypeAlias = Literal["await", "thread", "process", "stream", "question", "wait", "child", "program", "task"]

FATES: frozenset[str] = frozenset(get_args(Fate))
# A run of days has thousands of leaves that have ended; of each fate the newest are listed and the others counted.
LISTED = 200
# More of those that a reader has to look at: what was stopped, what still runs, what nobody knows of. A stop of a
# thousand leaves has a thousand entries.
LISTED_OF_INTEREST = 1_000
LIMITS: dict[Fate, int] = {
    "finished": LISTED,
    "not_started": LISTED,
    "stopped": LISTED_OF_INTEREST,
    "unknown": LISTED_OF_INTEREST,
}
NOTE_LIMIT = 2 * TEXT_LIMIT  # a shortened text of an error and some words around it


@dataclass(frozen=True, slots=True)
class Usage:
    """What was spent so far. `estimated`: some of it could not be counted exactly, because it was cut off."""

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
        """Read the JSON form back. Raises: WireError."""
        fields = Fields("usage", data)
        requests, tokens_in, tokens_out = (fields.count(n, 0) for n in ("requests", "input_tokens", "output_tokens"))
        return cls(requests, tokens_in, tokens_out, fields.flag("estimated", False))


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of one leaf or child, or of something a leaf had started.

    Attributes:
        name: The operation, as a path from the run: `run/search`.
        kind: How it ran.
        fate: What became of it.
        seconds: From the abort to its end; None if it did not end after one.
        where: The file and line at which it was last seen, if it may still run.
        note: What else a reader should know.
        pid: The process id, where the entry stands for a process or a program.
        pid_started: When that process was started, in clock ticks since the machine's start (field 22 of
            `/proc/<pid>/stat`). The system uses process ids again, so only both together name one process.
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
        """Read the JSON form back. Raises: WireError.

        A fate that this reader does not know, from a newer writer, is read as `unknown` with the word in the note: what
        else the receipt says must not be lost by it.
        """
        fields = Fields("entry", data)
        fate, note = fields.text("fate"), fields.text("note", "")
        if fate not in FATES:
            fate, note = "unknown", f"[{fate}] {note}".rstrip()
        return cls(
            fields.text("name"),
            cast(LeafKind, fields.text("kind")),  # any word: it is only shown
            cast(Fate, fate),
            fields.optional_number("seconds"),
            fields.optional_text("where"),
            note,
            fields.optional_count("pid"),
            fields.optional_count("pid_started"),
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a stop did: what stopped, what finished, what never started, what still runs. Times are dates.

    `escalated`: it was to wait for a safe point, which was not reached in time.
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
        """What goes on although the run is over."""
        return tuple(entry for entry in self.entries if entry.fate in ("still_running", "unknown"))

    def to_dict(self) -> dict[str, Any]:
        """The JSON-ready form."""
        # Without the reason: `asdict` copies deeply, and an exception behind the reason may hold what has no copy.
        data = asdict(replace(self, reason=None))
        return {**data, "reason": None if self.reason is None else self.reason.to_dict()}

    def end_survivors(self, grace: float = 2.0) -> tuple[int, ...]:
        """End the processes that are listed here as still running: TERM, and KILL after `grace` seconds. Blocks.

        A process is ended only if it is the one that was listed: a pid that has passed to another is not touched.

        Returns:
            The pids of those that still run afterwards.
        """
        listed = [
            ProcessId(entry.pid, entry.pid_started)
            for entry in self.still_running
            if entry.pid is not None and entry.pid_started is not None
        ]
        living = [process for process in listed if is_alive(process)]
        everything = {*living, *descendants(process.pid for process in living)}
        return tuple(process.pid for process in end_processes(everything, grace=grace))

    def to_json(self) -> str:
        """As JSON text; `Receipt.from_json` reads it back. Works with any exception as the cause of the reason."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Read `to_json()` back. Fields it does not know are ignored.

        Raises:
            WireError: It is not a receipt: the message says what is wrong. Also a ValueError.
        """
        return cls.from_dict(parse("receipt", text))

    @classmethod
    def from_dict(cls, data: object) -> "Receipt":
        """Read `to_dict()` back. Raises: WireError."""
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
            told = "  ".join(filter(None, (after, process, f"at {entry.where}" if entry.where else "", entry.note)))
            lines.append(
                f"  {entry.name:<{width}}  {entry.kind:<8}  {entry.fate.replace('_', ' '):<13}  {told}".rstrip()
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
    """Short, for people: `0.4 ms`, `120 ms`, `3.2 s`."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


class EntryBuilder:
    """One leaf's line in the ledger, while it is being written. `pid` and `pid_started` may be set at any time."""

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
        self.owned = owned  # it is no leaf, but something that a leaf has started
        self.name = name
        self.kind: LeafKind = kind
        self.fate: Fate = "unknown"  # until somebody has evidence
        self.ended_at: float | None = None
        self.where: str | None = None
        self.note = ""
        self.number = 0
        self.pid: int | None = None
        self.pid_started: int | None = None

    def end(self, fate: Fate, *, where: str | None = None, note: str = "") -> None:
        """Write down what became of it. `still_running` may later become `stopped` or `finished`; an end stays."""
        if self.ended_at is None:
            self.fate, self.where, self.note = fate, where, shorten(note, NOTE_LIMIT)
            if fate != "still_running":
                self._receipt_builder.ended(self)


class ReceiptBuilder:
    """What the leaves of one run, and of its children, have written down. Its size is bounded, except by what runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._live: dict[EntryBuilder, None] = {}
        self._ended: dict[Fate, deque[EntryBuilder]] = {fate: deque() for fate in LIMITS}
        self._numbers = itertools.count()  # of ends: the order in which they are listed
        self._omitted: dict[Fate, int] = dict.fromkeys(LIMITS, 0)
        self.usage = Usage()
        self.resume: str | None = None  # where a resumed run would go on
        self._warnings: deque[str] = deque(maxlen=LISTED)
        self._warned = 0
        self._sources: list[Callable[[], bool]] = []

    def begin(self, name: str, kind: LeafKind, *, owned: bool = False) -> EntryBuilder:
        """Open a line: of a leaf, or of something that a leaf `owns`."""
        line = EntryBuilder(self, name, kind, owned)
        self._live[line] = None
        return line

    def warn(self, message: str) -> None:
        """A warning for the receipt. Of thousands the newest are kept."""
        self._warned += 1
        self._warnings.append(shorten(message, NOTE_LIMIT))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings so far; where some were dropped, the first one says how many."""
        kept = tuple(self._warnings)
        dropped = self._warned - len(kept)
        return (f"{dropped} warnings came before these", *kept) if dropped else kept

    def runs_inside(self, name: str) -> bool:
        """True: a leaf inside this operation runs, which has a line of its own."""
        return any(line.name.startswith(f"{name}/") and not line.owned for line in list(self._live))

    def add_source(self, write_down: Callable[[], bool]) -> None:
        """Call this before each receipt: it brings lines up to date. False from it: it has nothing more to say."""
        if len(self._sources) >= LISTED:  # most of them have ended long ago
            self.bring_up_to_date()
        self._sources.append(write_down)

    def bring_up_to_date(self) -> None:
        """Write down what has become of what leaves started."""
        self._sources = [write_down for write_down in self._sources if write_down()]

    def ended(self, line: EntryBuilder) -> None:
        """Close a line."""
        line.ended_at = self._clock.monotonic()
        self._live.pop(line, None)
        line.number = next(self._numbers)
        lines = self._ended[line.fate]
        lines.append(line)
        if len(lines) > LIMITS[line.fate]:
            lines.popleft()
            self._omitted[line.fate] += 1

    def receipt(self, signal: AbortSignal, *, escalated: bool = False) -> Receipt:
        """What is known now."""
        self.bring_up_to_date()
        return self._receipt(signal, self._lines(), escalated)

    def goes_on(self, signal: AbortSignal, operation: str) -> Receipt:
        """What has not ended inside of this operation, which has."""
        self.bring_up_to_date()
        return self._receipt(signal, [line for line in list(self._live) if line.name.startswith(f"{operation}/")])

    def _receipt(self, signal: AbortSignal, lines: "list[EntryBuilder]", escalated: bool = False) -> Receipt:
        now, date = self._clock.monotonic(), self._clock.time()
        at = signal.aborted_at
        omitted = sum(count for fate, count in self._omitted.items() if fate != "unknown")
        return Receipt(
            signal.reason,
            None if at is None else date - (now - at),
            date,
            tuple(self._entry(line, at) for line in lines),
            self.usage,
            self.resume,
            (*self.warnings, *self._unlisted()),
            omitted,
            escalated,
        )

    def _lines(self) -> list[EntryBuilder]:
        """What finished, then what ended in another way, each in the order of their ends; then what runs."""
        others = [line for fate, lines in self._ended.items() if fate != "finished" for line in list(lines)]
        others.sort(key=lambda line: line.number)
        return [*self._ended["finished"], *others, *list(self._live)[-LISTED_OF_INTEREST:]]

    def _unlisted(self) -> list[str]:
        """A warning about what may still run and is not listed: it must not be taken for ended."""
        unlisted = self._omitted["unknown"] + max(0, len(self._live) - LISTED_OF_INTEREST)
        return [f"{unlisted} more operations may still run: they are not listed"] if unlisted else []

    def _entry(self, line: EntryBuilder, aborted_at: float | None) -> Entry:
        after = line.ended_at is not None and aborted_at is not None and line.ended_at >= aborted_at
        seconds = line.ended_at - aborted_at if after and line.ended_at is not None and aborted_at is not None else None
        return Entry(line.name, line.kind, line.fate, seconds, line.where, line.note, line.pid, line.pid_started)
