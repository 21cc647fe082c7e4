"""Owns what may become a turn: messages in all their forms, and stops that came before their turn. Knows no loop."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..abort import AbortReason, Clock
from ..errors import UsageError
from ..run.messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from .turn import MessagesFn

__all__ = ["EarlyStops", "as_messages"]

# How long, and how many, stops for turns that nobody has seen yet are remembered.
REMEMBER_SECONDS = 600.0
REMEMBER_COUNT = 1000
MESSAGE = str | SystemMessage | UserMessage | AssistantMessage | ToolResult


def as_messages(given: "str | Message | Sequence[str | Message] | MessagesFn") -> tuple[Message, ...] | MessagesFn:
    """Messages from what callers give: a text, a message, several, or a function of the current ones."""
    if callable(given):
        return given
    several: Any = [given] if isinstance(given, MESSAGE) else given  # whatever it is: callers need not use types
    if not isinstance(several, Iterable) or isinstance(several, bytes | Mapping):
        raise UsageError(f"a message must be a text, a Message, or several of them, not {given!r}")
    messages = tuple(UserMessage(text=one) if isinstance(one, str) else one for one in several)
    for message in messages:
        if not isinstance(message, MESSAGE):
            raise UsageError(f"a message must be a text or a Message, not {message!r}")
        if isinstance(message, UserMessage) and not message.text.strip():
            raise UsageError("the message is empty")
    if not messages:
        raise UsageError("there is no message")
    return messages


class EarlyStops:
    """Stops for turns that nobody has seen yet: when such a turn comes, it does not begin."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stops: OrderedDict[str, tuple[float, AbortReason]] = OrderedDict()

    def remember(self, turn_id: str, reason: AbortReason) -> None:
        """A stop came first."""
        self._stops.setdefault(turn_id, (self._clock.monotonic() + REMEMBER_SECONDS, reason))
        while len(self._stops) > REMEMBER_COUNT:
            self._stops.popitem(last=False)

    def find(self, turn_id: str) -> AbortReason | None:
        """The reason, if this turn was stopped before it came. It is kept: the message may be sent again."""
        until, reason = self._stops.get(turn_id, (0.0, None))
        return reason if until > self._clock.monotonic() else None

    def forget(self, turn_id: str) -> None:
        """The turn has come meanwhile: it was stopped itself."""
        self._stops.pop(turn_id, None)
