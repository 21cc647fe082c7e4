"""Owns why something was aborted, and the two errors that carry it. Knows nothing of signals."""

import sys
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from ..errors import RemoteError, SafepointError

__all__ = ["AbortError", "AbortReason", "AbortTimeout", "ReasonKind"]

ReasonKind: TypeAlias = Literal[
    "user", "deadline", "timeout", "parent", "preempted", "shutdown", "disconnected", "lease_lost", "error"
]
KINDS: frozenset[str] = frozenset(get_args(ReasonKind))
TIMED_OUT = ("deadline", "timeout")


@dataclass(frozen=True, slots=True)
class AbortReason:
    """Why work was aborted. Two reasons are equal when kind and message are: origin and cause only explain.

    `origin` is the `file:line` that called `abort()` (or made the timeout); `cause` the exception behind an `error`.
    """

    kind: ReasonKind = "user"
    message: str = ""
    origin: str | None = field(default=None, compare=False)
    cause: BaseException | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"AbortReason.kind must be one of {', '.join(sorted(KINDS))}, not {self.kind!r}")

    def __str__(self) -> str:
        text = f"{self.kind}: {self.message}" if self.message else self.kind
        return f"{text} ({self.origin})" if self.origin else text

    @property
    def timed_out(self) -> bool:
        """True when time ran out, as opposed to somebody asking."""
        return self.kind in TIMED_OUT

    def to_dict(self) -> dict[str, object]:
        """The JSON-ready form; a cause travels as its type's name and text."""
        cause = self.cause
        return {
            "kind": self.kind,
            "message": self.message,
            "origin": self.origin,
            "cause": None if cause is None else {"type": name_of(cause), "message": text_of(cause)},
        }

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> "AbortReason":
        """Read `to_dict()` back. Unknown fields are ignored.

        An unknown kind becomes `error` and keeps its name in the message: a stop sent by a newer peer must never
        be lost because its word for it is new.
        """
        kind, message, origin, cause = (data.get(key) for key in ("kind", "message", "origin", "cause"))
        text = message if isinstance(message, str) else ""
        if not isinstance(kind, str) or kind not in KINDS:
            kind, text = "error", f"[{kind}] {text}".rstrip()
        return cls(
            kind,  # type: ignore[arg-type]  # checked against KINDS just above
            text,
            origin if isinstance(origin, str) else None,
            RemoteError(str(cause.get("type")), str(cause.get("message"))) if isinstance(cause, dict) else None,
        )


def name_of(error: BaseException) -> str:
    return error.type_name if isinstance(error, RemoteError) else type(error).__name__


def text_of(error: BaseException) -> str:
    return error.message if isinstance(error, RemoteError) else str(error)


def reason_from(given: object, origin: str | None) -> AbortReason:
    """What `abort(given)` means: a string is a user's, nothing is a silent user's, an exception is an error."""
    match given:
        case AbortReason():
            return given if given.origin else replace(given, origin=origin)
        case None:
            return AbortReason("user", "", origin)
        case str():
            return AbortReason("user", given, origin)
        case BaseException():
            return AbortReason("error", f"{type(given).__name__}: {given}", origin, given)
        case _:
            raise TypeError(
                f"reason must be a string, an AbortReason, an exception or None, not {type(given).__name__}"
            )


def caller(depth: int) -> str | None:
    """`file:line` of the frame `depth` levels above the function that asks, or None where there is no such frame."""
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:  # called straight from C: a signal handler, a thread's first frame
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class AbortError(SafepointError):
    """The work was aborted before it had a value; `.reason` says why, `.partial` is what there was so far."""

    def __init__(self, reason: AbortReason, partial: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.partial = partial

    def __reduce__(self) -> tuple[type["AbortError"], tuple[AbortReason, object]]:
        # Not through `args`: OSError, under AbortTimeout, would read a second argument as its own.
        return type(self), (self.reason, self.partial)

    def __str__(self) -> str:
        return f"aborted by {self.reason}"


class AbortTimeout(AbortError, TimeoutError):
    """The work was aborted because its time was up. Also a `TimeoutError`, so plain timeout handling sees it."""

    def __str__(self) -> str:
        return f"timed out by {self.reason}"


def error_from(reason: AbortReason, partial: object = None) -> AbortError:
    """The error that carries this reason."""
    return (AbortTimeout if reason.kind in TIMED_OUT else AbortError)(reason, partial)
