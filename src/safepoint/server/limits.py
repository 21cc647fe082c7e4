"""The limits of a server. Knows nothing of HTTP."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server. Requests beyond them are refused with status 413 or 429.

    Attributes:
        body_bytes: The largest request body.
        sessions: How many sessions may be live.
        queued_turns: How many turns of one session may wait.
        streams: How many event streams may be open.
    """

    body_bytes: int = 1_000_000
    sessions: int = 1_000
    queued_turns: int = 100
    streams: int = 500
