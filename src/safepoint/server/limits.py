"""Owns how much one server takes on. Knows nothing of HTTP."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server: what is beyond them is refused with a clear answer."""

    body_bytes: int = 1_000_000
    sessions: int = 1_000
    queued_turns: int = 100
    streams: int = 500
