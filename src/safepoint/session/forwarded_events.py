"""Owns the number of events of each sub-agent on another machine that are in the log of this session already. Pure.

The events of a sub-agent have a fixed order. After a crash they are read again from the beginning, and as many as are
counted here are skipped.
"""

from ..events import Event, ToolCalled, ToolEnded

__all__ = ["ForwardedEvents"]


class ForwardedEvents:
    """The counts, made from the events of the log.

    Attributes:
        counts: The number of events in the log, by the idempotency key of the call in which the sub-agent runs.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        # The idempotency keys of the calls that have not ended, by the ids of the enclosing calls and their own.
        self._keys: dict[tuple[str, ...], str] = {}

    def apply(self, event: Event, own: bool) -> None:
        """Add one event of the log. `own` is true for events of this session's turns, which were not forwarded."""
        if not own:
            for depth in range(1, len(event.calls) + 1):
                key = self._keys.get(event.calls[:depth])
                if key is not None:
                    self.counts[key] = self.counts.get(key, 0) + 1
            return
        match event:
            case ToolCalled(call_id=call_id, idempotency_key=key) if key:
                self._keys[(*event.calls, call_id)] = key
            case ToolEnded(call_id=call_id, status="completed" | "failed"):
                self.counts.pop(self._keys.pop((*event.calls, call_id), ""), None)
            case _:
                pass
