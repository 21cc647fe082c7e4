"""Owns the root of every error Safepoint raises. Knows nothing of what went wrong.

SafepointError
├── UsageError        the caller's mistake: what was wrong, which argument, what to do; also a ValueError
├── AbortError        you asked for a value, the work was aborted; .reason, .partial   (abort.reason)
│   └── AbortTimeout  … because its time was up; also a TimeoutError
└── RemoteError       an exception that happened elsewhere, known by its name and text
"""

__all__ = ["RemoteError", "SafepointError", "UsageError"]


class SafepointError(Exception):
    """Root of every error that Safepoint raises by itself."""


class UsageError(SafepointError, ValueError):
    """The call was wrong: the message says what, which argument, and what to do instead."""


class RemoteError(SafepointError):
    """An exception from another process or machine, of which only the type's name and the text are known."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name
