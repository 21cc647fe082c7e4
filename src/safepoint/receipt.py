"""The receipt: what a stop did, with one entry for each leaf. `run/receipt_builder.py` collects the entries."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeAlias, cast, get_args

from .abort import AbortReason
from .json_fields import Fields, parse
from .process.tree import ProcessId, descendants, end_processes, is_alive

__all__ = ["Entry", "Fate", "LeafKind", "Receipt", "Usage"]

Fate: TypeAlias = Literal["stopped", "finished", "not_started", "still_running", "unknown"]
# `program`: a program that a leaf started itself. `task`: an asyncio task that a leaf left behind.
LeafKind: TypeAlias = Literal["await", "thread", "process", "stream", "question", "wait", "child", "program", "task"]

FATES: frozenset[str] = frozenset(get_args(Fate))


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


NO_USAGE = Usage()


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
