"""Owns the receipt: what a stop did, entry by entry, and the ledger in which leaves write it down.

Knows nothing of how a leaf runs; believes what the leaf has evidence for.
"""

import json
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from ..abort import AbortReason, AbortSignal, Clock

__all__ = ["Entry", "Fate", "LeafKind", "Ledger", "Line", "Receipt", "Usage"]

Fate: TypeAlias = Literal["stopped", "finished", "not_started", "still_running", "unknown"]
LeafKind: TypeAlias = Literal["await", "thread", "process", "stream", "question", "wait", "child"]

# A run of days has thousands of finished leaves; of those the newest are listed and the others counted.
LISTED = 200


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


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of one leaf or child. `seconds`: from the abort to its end; None if it did not end after one."""

    name: str
    kind: LeafKind
    fate: Fate
    seconds: float | None = None
    where: str | None = None
    note: str = ""


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

    def to_json(self) -> str:
        """As JSON text; `Receipt.from_json` reads it back."""
        data = {**asdict(self), "reason": None if self.reason is None else self.reason.to_dict()}
        return json.dumps(data, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Read `to_json()` back. Raises: ValueError that says what is wrong."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("a receipt is a JSON object")
        reason = data.get("reason")
        return cls(
            None if reason is None else AbortReason.from_dict(reason),
            data.get("requested_at"),
            data["settled_at"],
            tuple(Entry(**_known(Entry, entry)) for entry in data.get("entries", ())),
            Usage(**_known(Usage, data.get("usage", {}))),
            data.get("resume"),
            tuple(data.get("warnings", ())),
            data.get("omitted", 0),
            data.get("escalated", False),
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
            told = "  ".join(filter(None, (after, f"at {entry.where}" if entry.where else "", entry.note)))
            lines.append(
                f"  {entry.name:<{width}}  {entry.kind:<8}  {entry.fate.replace('_', ' '):<13}  {told}".rstrip()
            )
        if self.omitted:
            lines.append(f"  … and {self.omitted} more that had finished before")
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


def _known(kind: type[Entry] | type[Usage], data: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that a newer writer has added."""
    return {name: value for name, value in data.items() if name in kind.__dataclass_fields__}


def duration(seconds: float) -> str:
    """Short, for people: `0.4 ms`, `120 ms`, `3.2 s`."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


class Line:
    """One leaf's line in the ledger, while it is being written."""

    __slots__ = ("_ledger", "ended_at", "fate", "kind", "name", "note", "where")

    def __init__(self, ledger: "Ledger", name: str, kind: LeafKind) -> None:
        self._ledger = ledger
        self.name = name
        self.kind: LeafKind = kind
        self.fate: Fate = "unknown"  # until somebody has evidence
        self.ended_at: float | None = None
        self.where: str | None = None
        self.note = ""

    def end(self, fate: Fate, *, where: str | None = None, note: str = "") -> None:
        """Write down what became of it. `still_running` may later become `stopped` or `finished`; an end stays."""
        if self.ended_at is None:
            self.fate, self.where, self.note = fate, where, note
            if fate != "still_running":
                self._ledger.ended(self)


class Ledger:
    """What the leaves of one run, and of its children, have written down."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._live: dict[Line, None] = {}
        self._finished: deque[Line] = deque()
        self._stopped: list[Line] = []
        self._omitted = 0
        self.usage = Usage()
        self.resume: str | None = None  # where a resumed run would go on
        self.warnings: list[str] = []

    def begin(self, name: str, kind: LeafKind) -> Line:
        """Open a line."""
        line = Line(self, name, kind)
        self._live[line] = None
        return line

    def runs_inside(self, name: str) -> bool:
        """True: something inside this operation runs, which has a line of its own."""
        return any(line.name.startswith(f"{name}/") for line in list(self._live))

    def ended(self, line: Line) -> None:
        """Close a line."""
        line.ended_at = self._clock.monotonic()
        self._live.pop(line, None)
        if line.fate != "finished":
            self._stopped.append(line)
            return
        self._finished.append(line)
        if len(self._finished) > LISTED:
            self._finished.popleft()
            self._omitted += 1

    def receipt(self, signal: AbortSignal, *, escalated: bool = False) -> Receipt:
        """What is known now."""
        now, date = self._clock.monotonic(), self._clock.time()
        at = signal.aborted_at
        lines = [*self._finished, *self._stopped, *self._live]
        return Receipt(
            signal.reason,
            None if at is None else date - (now - at),
            date,
            tuple(self._entry(line, at) for line in lines),
            self.usage,
            self.resume,
            tuple(self.warnings),
            self._omitted,
            escalated,
        )

    def _entry(self, line: Line, aborted_at: float | None) -> Entry:
        after = line.ended_at is not None and aborted_at is not None and line.ended_at >= aborted_at
        seconds = line.ended_at - aborted_at if after and line.ended_at is not None and aborted_at is not None else None
        return Entry(line.name, line.kind, line.fate, seconds, line.where, line.note)
