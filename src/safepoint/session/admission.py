"""Owns what may become a turn: messages in all their forms, and stops that came before their turn. Knows no loop."""

from collections import OrderedDict
from collections.abc import Sequence

from ..abort import AbortReason, Clock
from ..errors import UsageError
from ..run.messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from .turn import MessagesFn

__all__ = ["Tombstones", "as_messages"]

# How long, and how many, stops for turns that nobody has seen yet are remembered.
REMEMBER_SECONDS = 600.0
REMEMBER_COUNT = 1000


def as_messages(given: "str | Message | Sequence[str | Message] | MessagesFn") -> tuple[Message, ...] | MessagesFn:
    """Messages from what callers give: a text, a message, several, or a function of the current ones."""
    if callable(given):
        return given
    if isinstance(given, str | SystemMessage | UserMessage | AssistantMessage | ToolResult):
        given = [given]
    messages = tuple(UserMessage(text=one) if isinstance(one, str) else one for one in given)
    for message in messages:
        if isinstance(message, UserMessage) and not message.text.strip():
            raise UsageError("the message is empty")
    if not messages:
        raise UsageError("there is no message")
    return messages


class Tombstones:
    """Stops for turns that nobody has seen yet: when such a turn comes, it does not begin."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stops: OrderedDict[str, tuple[float, AbortReason]] = OrderedDict()

    def remember(self, turn_id: str, reason: AbortReason) -> None:
        """A stop came first."""
        self._stops.setdefault(turn_id, (self._clock.monotonic() + REMEMBER_SECONDS, reason))
        while len(self._stops) > REMEMBER_COUNT:
            self._stops.popitem(last=False)

    def take(self, turn_id: str) -> AbortReason | None:
        """The reason, if this turn was stopped before it came."""
        until, reason = self._stops.pop(turn_id, (0.0, None))
        return reason if until > self._clock.monotonic() else None
