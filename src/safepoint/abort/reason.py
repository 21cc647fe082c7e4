"""Owns the reason of an abort, and the two errors that carry it. Knows nothing of signals."""

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
    """Why work was aborted. Two reasons are equal if their kind and message are.

    Attributes:
        kind: Who or what aborted it.
        message: A text for people. More than 2,000 characters are cut, with a note of the original length.
        origin: The `file:line` of the user's code that called `abort()` or set the timeout; None if unknown.
        cause: The exception behind a reason of kind `error`.
    """

    kind: ReasonKind = "user"
    message: str = ""
    origin: str | None = field(default=None, compare=False)
    cause: BaseException | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"AbortReason.kind must be one of {', '.join(sorted(KINDS))}, not {self.kind!r}")
        # The message is part of every record, receipt and event of the run.
        object.__setattr__(self, "message", shorten(self.message))

    def __str__(self) -> str:
        text = f"{self.kind}: {self.message}" if self.message else self.kind
        return f"{text} ({self.origin})" if self.origin else text

    @property
    def timed_out(self) -> bool:
        """Whether a time limit was reached, as opposed to a request."""
        return self.kind in TIMED_OUT

    def to_dict(self) -> dict[str, object]:
        """The reason as JSON data. The cause is reduced to the name of its type and its text."""
        cause = self.cause
        return {
            "kind": self.kind,
            "message": self.message,
            "origin": self.origin,
            "cause": None if cause is None else {"type": name_of(cause), "message": shorten(text_of(cause))},
        }

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> "AbortReason":
        """The reason that `to_dict()` has written. Unknown fields are ignored.

        An unknown kind becomes `error` and keeps its name in the message, so that a stop from a newer version of
        Safepoint is not lost.
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
    """The reason for `abort(given)`: kind `user` for a string or None, kind `error` for an exception.

    Args:
        given: The argument of `abort()`.
        origin: The origin for a reason that has none.

    Raises:
        TypeError: It is none of the accepted types.
    """
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
    """The `file:line` of the calling user code.

    Args:
        depth: How many levels above the function that asks to begin; frames that are not the user's are skipped.
    """
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:  # called directly from C: by a signal handler, or as the first frame of a thread
        return None
    return user_line(frame)


def called_by_safepoint(depth: int) -> bool:
    """Whether the code `depth` levels above the function that asks is part of Safepoint."""
    try:
        return _is_safepoint(sys._getframe(depth + 1).f_code.co_filename)
    except ValueError:  # called directly from C
        return False


@functools.cache
def _is_safepoint(file: str) -> bool:
    return os.path.realpath(file).startswith(_SAFEPOINT)


def user_line(frame: FrameType | None) -> str | None:
    """The `file:line` of the innermost frame of user code, beginning with `frame`.

    Frames of libraries are skipped, such as the event loop, a timer thread and Safepoint itself. If there is no user
    code on the stack, it is the line of `frame` if that is in an installed package, and None otherwise.
    """
    outer = frame
    while outer is not None:
        if owner_of(outer.f_code.co_filename) == "user":
            return _line(outer)
        outer = outer.f_back
    # An application may be an installed package, too.
    return _line(frame) if frame is not None and owner_of(frame.f_code.co_filename) == "package" else None


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@functools.cache
def owner_of(file: str) -> Literal["user", "package", "system"]:
    """Whose code a file is: the user's, an installed package's, or that of Python and Safepoint ("system").

    Cached, because every abort needs it.
    """
    if file.startswith("<"):  # not a file: code in `<string>` and `<stdin>` is the user's
        return "system" if file.startswith("<frozen ") else "user"
    path = os.path.realpath(file)
    if path.startswith(_SAFEPOINT):
        return "system"
    if not _INSTALLED.isdisjoint(path.split(os.sep)):  # before Python's own folder, which contains it
        return "package"
    return "system" if path.startswith(_PYTHON) else "user"


_SAFEPOINT = os.path.realpath(os.path.dirname(os.path.dirname(__file__))) + os.sep
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Not the whole installation prefix: with a prefix like /usr/local, it would contain the user's programs.
_PYTHON = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "scripts"))


class AbortError(SafepointError):
    """The work was aborted before it had a value.

    Attributes:
        reason: Why it was aborted.
        partial: What the work had produced until then, or None.
    """

    def __init__(self, reason: AbortReason, partial: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.partial = partial

    def __reduce__(self) -> tuple[type["AbortError"], tuple[AbortReason, object]]:
        # Not through `args`: AbortTimeout is an OSError, which would take a second argument for its own.
        return type(self), (self.reason, self.partial)

    def __str__(self) -> str:
        return f"aborted by {self.reason}"


class AbortTimeout(AbortError, TimeoutError):
    """The work was aborted because its time was up. It is also a `TimeoutError`, for code that catches that."""

    def __str__(self) -> str:
        return f"timed out by {self.reason}"


def error_from(reason: AbortReason, partial: object = None) -> AbortError:
    """The error that carries this reason."""
    return (AbortTimeout if reason.kind in TIMED_OUT else AbortError)(reason, partial)
