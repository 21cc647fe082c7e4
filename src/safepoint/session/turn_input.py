"""Owns the input of a turn of a session: the conversation with its new messages. Knows no queue and no log."""

import inspect
from collections.abc import Callable, Iterable, Sequence

from ..agent.conversation import AgentResult
from ..errors import UsageError
from ..messages import AssistantMessage, Message, SystemMessage
from ..run.context import Context
from ..run.leaf import leaf
from .session_state import SessionState
from .turn import SessionTurn, as_messages

__all__ = ["input_of"]


async def input_of(
    ctx: Context, turn: SessionTurn, state: SessionState, on_made: Callable[[tuple[Message, ...]], object]
) -> AgentResult | list[Message]:
    """Make the input of the agent: the whole conversation, or the result of the turn that continues.

    Args:
        ctx: The context of the turn.
        turn: The turn. Its `base_length` is set.
        state: The state of its session.
        on_made: Called with the messages of the turn if a function has made them.

    Raises:
        UsageError: The turn cannot go on, or a user message is missing before it.
    """
    if turn.continues is not None:
        last_turn = state.last_ended
        if last_turn is None or last_turn.id != turn.continues:
            raise UsageError(f"turn {turn.continues!r} cannot go on: the conversation has moved on since")
        value, turn.base_length = state.resume_point(turn.continues)
        return value
    history = state.messages
    messages = await _messages(ctx, turn, history, on_made)
    first, last = _first_spoken(messages), _first_spoken(reversed(history))
    if isinstance(first, AssistantMessage) and isinstance(last, AssistantMessage):
        raise UsageError("the conversation ends with an answer: a user message must come before the next one")
    turn.base_length = len(history)
    return [*history, *messages]


async def _messages(
    ctx: Context,
    turn: SessionTurn,
    history: tuple[Message, ...],
    on_made: Callable[[tuple[Message, ...]], object],
) -> tuple[Message, ...]:
    given = turn.messages
    if not callable(given):
        return given
    make = given

    async def call(leaf_ctx: Context, current: tuple[Message, ...]) -> Sequence[Message | str]:
        made = make(current)
        return await made if inspect.isawaitable(made) else made

    messages = as_messages(await leaf(ctx, call, history, name="messages"))
    if callable(messages):
        raise UsageError("the function of the messages returned a function: it must return messages")
    turn.messages = messages
    on_made(messages)
    return messages


def _first_spoken(messages: Iterable[Message]) -> Message | None:
    """Return the first message that is not a system message."""
    return next((message for message in messages if not isinstance(message, SystemMessage)), None)
