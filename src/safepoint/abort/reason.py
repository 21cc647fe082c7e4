"""Owns why something was aborted, and the two errors that carry it. Knows nothing of signals."""

import functools
import os
import sys
import sysconfig
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Literal, TypeAlias, get_args

from ..errors import RemoteError, SafepointError, describe, name_of, shorten, text_of

__all__ = ["AbortError", "AbortReason", "AbortTimeout", "ReasonKind"]

ReasonKind: TypeAlias = Literal[
    "user", "deadline", "timeout", "parent", "preempted", "shutdown", "disconnected", "lease_lost", "error"
]
KINDS: frozenset[str] = frozenset(get_args(ReasonKind))
TIMED_OUT = ("deadline", "timeout")


@dataclass(frozen=True, slots=True)
class AbortReason:
    """Why work was aborted. Two reasons are equal when kind and message are: origin and cause only explain.

    A message of more than 2,000 characters is cut, and says how long it was.

    `origin` is the `file:line` of the user's code that called `abort()` (or made the timeout), None where no code of
    the user's is known to have; `cause` is the exception behind an `error`.
    """

    kind: ReasonKind = "user"
    message: str = ""
    origin: str | None = field(default=None, compare=False)
    cause: BaseException | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"AbortReason.kind must be one of {', '.join(sorted(KINDS))}, not {self.kind!r}")
        # It goes into every record, receipt and event of the run.
        object.__setattr__(self, "message", shorten(self.message))

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
            "cause": None if cause is None else {"type": name_of(cause), "message": shorten(text_of(cause))},
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
            return AbortReason("error", describe(given), origin, given)
        case _:
            raise TypeError(
                f"reason must be a string, an AbortReason, an exception or None, not {type(given).__name__}"
            )


def caller(depth: int) -> str | None:
    """`file:line` of the user's code that called: `depth` levels above the function that asks, or further out."""
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:  # called straight from C: a signal handler, a thread's first frame
        return None
    return user_line(frame)


def called_by_safepoint(depth: int) -> bool:
    """Whether the code that called is Safepoint's own: `depth` levels above the function that asks."""
    try:
        return _is_safepoint(sys._getframe(depth + 1).f_code.co_filename)
    except ValueError:  # called straight from C
        return False


@functools.cache
def _is_safepoint(file: str) -> bool:
    return os.path.realpath(file).startswith(_SAFEPOINT)


def user_line(frame: FrameType | None) -> str | None:
    """`file:line` of this frame, or of the next one further out that is the user's.

    Libraries are skipped: it is the event loop, a timer thread or Safepoint itself that calls for somebody. Where no
    code of the user's is on the stack, it is an installed package that called, or None: then nobody knows.
    """
    outer = frame
    while outer is not None:
        if owner_of(outer.f_code.co_filename) == "user":
            return _line(outer)
        outer = outer.f_back
    # An application may be an installed package as well.
    return _line(frame) if frame is not None and owner_of(frame.f_code.co_filename) == "package" else None


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@functools.cache
def owner_of(file: str) -> Literal["user", "package", "system"]:
    """Whose code a file is: the user's, an installed package's, or that of Python and Safepoint.

    Cached, because it is asked at every abort.
    """
    if file.startswith("<"):  # not a file: `<string>` and `<stdin>` are what a user has typed
        return "system" if file.startswith("<frozen ") else "user"
    path = os.path.realpath(file)
    if path.startswith(_SAFEPOINT):
        return "system"
    if not _INSTALLED.isdisjoint(path.split(os.sep)):  # inside of Python's own folder, so it is looked at first
        return "package"
    return "system" if path.startswith(_PYTHON) else "user"


_SAFEPOINT = os.path.realpath(os.path.dirname(os.path.dirname(__file__))) + os.sep
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Not the whole installation: programs may stand next to it, as in /usr/local.
_PYTHON = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "scripts"))


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
