"""Owns the work of one turn of a session: make its input, record its start, run the agent. Knows no queue."""

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..agent.context import AskingContext
from ..agent.conversation import AgentResult
from ..errors import UsageError
from ..events import TurnEdited, TurnStarted
from ..messages import AssistantMessage, Message, SystemMessage
from ..run.context import Context
from ..run.leaf import leaf
from .admission import as_messages
from .session_state import conversation_id
from .turn import SessionTurn
from .wait_cycles import RUNNING

if TYPE_CHECKING:
    from .engine import SessionEngine

__all__ = ["TurnWork"]


class TurnWork:
    """The Work that the loop of a session runs for each turn.

    It is an object and not a function because of `handles_abort`: it runs its own leaves under the signal, so that the
    loop does not interrupt it from outside.
    """

    handles_abort = True

    def __init__(self, engine: "SessionEngine") -> None:
        self._engine = engine
        self.name = engine.agent.name

    async def __call__(self, ctx: Context, turn: SessionTurn, /) -> AgentResult:
        """Run one turn.

        Raises:
            AbortError: It was stopped. The error has the partial result.
        """
        engine = self._engine
        turn.begin(ctx)
        token = RUNNING.set(turn)
        try:
            value = await self._input(ctx, turn)
            started = TurnStarted(**engine.stamp(turn.id), turn_id=turn.id, items=1)
            # From here on there may be effects. After a crash the log must say that the turn had begun.
            await engine.log.flushed(engine.add(started, durable=True))
            key = conversation_id(engine.id, turn.id, engine.agent.name)
            asking = AskingContext(ctx, ask=engine.questions.ask, idempotency_key=key, journal=engine.journal)
            return await engine.agent(asking, value)  # it looks at the signal first, and keeps the messages
        finally:
            RUNNING.reset(token)

    async def _input(self, ctx: Context, turn: SessionTurn) -> AgentResult | list[Message]:
        """Make the input of the agent: the whole conversation, or the result of the turn that continues."""
        state = self._engine.state
        if turn.continues is not None:
            last_turn = state.last_ended
            if last_turn is None or last_turn.id != turn.continues:
                raise UsageError(f"turn {turn.continues!r} cannot go on: the conversation has moved on since")
            value, turn.base_length = state.resume_point(turn.continues)
            return value
        history = state.messages
        messages = await self._messages(ctx, turn, history)
        first, last = _first_spoken(messages), _first_spoken(reversed(history))
        if isinstance(first, AssistantMessage) and isinstance(last, AssistantMessage):
            raise UsageError("the conversation ends with an answer: a user message must come before the next one")
        turn.base_length = len(history)
        return [*history, *messages]

    async def _messages(self, ctx: Context, turn: SessionTurn, history: tuple[Message, ...]) -> tuple[Message, ...]:
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
        edited = TurnEdited(**self._engine.stamp(turn.id), turn_id=turn.id, messages=messages)
        self._engine.add(edited, durable=True)
        return messages


def _first_spoken(messages: Iterable[Message]) -> Message | None:
    """Return the first message that is not a system message."""
    return next((message for message in messages if not isinstance(message, SystemMessage)), None)
