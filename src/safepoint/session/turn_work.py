"""Owns the work of one turn of a session: its messages, its record, then the agent. Knows nothing of the queue."""

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..agent.conversation import AgentResult
from ..agent.tool import AskUserFn
from ..errors import UsageError
from ..run.context import Context
from ..run.events import TurnEdited, TurnStarted
from ..run.leaf import leaf
from ..run.messages import AssistantMessage, Message, SystemMessage
from .admission import as_messages
from .session_state import conversation_id
from .turn import SessionTurn
from .wait_cycles import RUNNING

if TYPE_CHECKING:
    from .engine import SessionEngine

__all__ = ["TurnWork"]


class AskingContext(Context):
    """The context of a turn: questions go to the session.

    Attributes:
        idempotency_key: The keys of its tool calls begin with this.
    """

    __slots__ = ("_ask", "idempotency_key")
    _ask: AskUserFn
    idempotency_key: str


class TurnWork:
    """What a session's loop runs. An object, because it guards its own leaves: from outside it is not interrupted."""

    handles_abort = True

    def __init__(self, engine: "SessionEngine") -> None:
        self._engine = engine
        self.name = engine.agent.name

    async def __call__(self, ctx: Context, turn: SessionTurn, /) -> AgentResult:
        """Raises: AbortError with a partial; what failed."""
        engine = self._engine
        turn.begin(ctx)
        token = RUNNING.set(turn)
        try:
            value = await self._input(ctx, turn)
            started = TurnStarted(**engine.stamp(turn.id), turn_id=turn.id, items=1)
            # From here on there may be effects: a crash must find that it had begun.
            await engine.log.flushed(engine.add(started, keep=True))
            asking = ctx.child("", context_class=AskingContext)
            assert isinstance(asking, AskingContext)  # for the type checker: it was asked for
            asking.path, asking.is_run, asking._ask = ctx.path, True, engine.questions.ask
            asking.journal = engine.journal
            asking.idempotency_key = conversation_id(engine.id, turn.id, engine.agent.name)
            return await engine.agent(asking, value)  # which looks at the signal first, and keeps what was said
        finally:
            RUNNING.reset(token)

    async def _input(self, ctx: Context, turn: SessionTurn) -> Any:
        """What the agent is given: the whole conversation, or the turn that goes on."""
        state = self._engine.state
        if turn.continues is not None:
            last = state.last_ended
            if last is None or last.id != turn.continues:
                raise UsageError(f"turn {turn.continues!r} cannot go on: the conversation has moved on since")
            value, turn.base = state.resumed(turn.continues)
            return value
        history = state.messages
        messages = await self._messages(ctx, turn, history)
        first, last_said = _spoken(messages), _spoken(reversed(history))
        if isinstance(first, AssistantMessage) and isinstance(last_said, AssistantMessage):
            raise UsageError("the conversation ends with an answer: a user message must come before the next one")
        turn.base = len(history)
        return [*history, *messages]

    async def _messages(self, ctx: Context, turn: SessionTurn, history: tuple[Message, ...]) -> tuple[Message, ...]:
        given = turn.messages
        if not callable(given):
            return given
        make = given

        async def call(leaf_ctx: Context, current: tuple[Message, ...]) -> Any:
            made = make(current)
            return await made if inspect.isawaitable(made) else made

        messages = as_messages(await leaf(ctx, call, history, name="messages"))
        if callable(messages):
            raise UsageError("the function of the messages returned a function: it must return messages")
        turn.messages = messages
        edited = TurnEdited(**self._engine.stamp(turn.id), turn_id=turn.id, messages=messages)
        self._engine.add(edited, keep=True)
        return messages


def _spoken(messages: Iterable[Message]) -> Message | None:
    """The first that is no instruction."""
    return next((message for message in messages if not isinstance(message, SystemMessage)), None)
