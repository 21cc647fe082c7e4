"""Owns what is checked before a turn is accepted: its messages, and stops that came before it. Knows no loop."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from ..abort import AbortReason, Clock
from ..errors import UsageError
from ..messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from .turn import MessagesFn

__all__ = ["EarlyStops", "as_messages"]

# How long stops for unknown turns are kept, and how many.
REMEMBER_SECONDS = 600.0
REMEMBER_COUNT = 1000
MESSAGE = str | SystemMessage | UserMessage | AssistantMessage | ToolResult


def as_messages(given: "str | Message | Sequence[str | Message] | MessagesFn") -> tuple[Message, ...] | MessagesFn:
    """Turn what a caller gives into messages.

    Args:
        given: A text, a message, several of them, or a function of the current messages, which is returned as it is.

    Raises:
        UsageError: It is none of these, or there is no message, or a message is empty.
    """
    if callable(given):
        return given
    several: object = [given] if isinstance(given, MESSAGE) else given  # callers without a type checker give anything
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
    """Stops for turns that do not exist yet. A turn that comes within ten minutes of its stop does not begin.

    The number of stops is limited, so that a client cannot fill the memory with ids: the oldest are dropped.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stops: OrderedDict[str, tuple[float, AbortReason]] = OrderedDict()

    def remember(self, turn_id: str, reason: AbortReason) -> None:
        """Keep the stop of a turn that does not exist yet. The first reason for an id stays."""
        self._stops.setdefault(turn_id, (self._clock.monotonic() + REMEMBER_SECONDS, reason))
        while len(self._stops) > REMEMBER_COUNT:
            self._stops.popitem(last=False)

    def find(self, turn_id: str) -> AbortReason | None:
        """Return the reason if this turn was stopped before it came. The stop is kept, for a message sent again."""
        until, reason = self._stops.get(turn_id, (0.0, None))
        return reason if until > self._clock.monotonic() else None

    def forget(self, turn_id: str) -> None:
        """Drop the stop of a turn that has come meanwhile and was stopped itself."""
        self._stops.pop(turn_id, None)
