"""A substitute for an agent that a worker does not have: its turns fail, and their error names the missing agent.

With it the session can be opened as usual: messages are taken from the inbox, stopped turns are ended as stopped, and
every other turn is ended as failed. Otherwise a session that is pinned to a worker that was restarted without the agent
would keep its turns open for ever.
"""

from collections.abc import AsyncIterator, Sequence

from ..abort import AbortSignal
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..agent.model import Chunk, ModelRequest
from ..errors import UsageError
from ..messages import Message
from ..run.context import Context

__all__ = ["MissingAgent"]


class MissingAgent(Agent):
    """An agent without a model. Its turns end as failed and leave the conversation unchanged."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(_NoModel(why), name=name)
        self._why = why

    async def __call__(self, ctx: Context, value: "str | Sequence[Message] | AgentResult", /) -> AgentResult:
        """Fail. The conversation is not changed even if it has open tool calls, because there are no tools to run them.

        Raises:
            UsageError: Always. It names the missing agent. The conversation is the partial of the run.
        """
        error = UsageError(self._why)
        if not isinstance(value, AgentResult):
            value = AgentResult("", () if isinstance(value, str) else tuple(value))
        ctx.keep_partial(error, value)
        raise error


class _NoModel:
    """An agent needs a model; a session never calls this one."""

    name = "none"

    def __init__(self, why: str) -> None:
        self._why = why

    def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
        """Raises: UsageError."""
        raise UsageError(self._why)
