"""Owns how many events of a sub-agent on another machine are in the log, by the call that it is the work of.

The events of a sub-agent come in one order, for ever: whoever follows it again after a crash leaves out so many. Pure.
"""

from ..run.events import Event, ToolCalled, ToolEnded

__all__ = ["ForwardedEvents"]


class ForwardedEvents:
    """What the log says of it.

    Attributes:
        counts: How many there are, by the idempotency key of the call.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._keys: dict[
            tuple[str, ...], str
        ] = {}  # of the calls that have not ended, by the ids of it and those around

    def apply(self, event: Event, own: bool) -> None:
        """One more event. `own`: it is of a turn of this session, and was not forwarded."""
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
