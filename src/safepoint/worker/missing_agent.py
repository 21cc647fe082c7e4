"""Owns the stand-in for an agent that a worker does not have: its turns fail, and say which agent is missing.

It exists so that the session can be opened as usual: what was accepted is read from the inbox, stopped turns are ended
as stopped, and each of the others gets its one recorded end. Without it a session that is pinned to a worker which came
back without the agent would keep its turns open for ever.
"""

from collections.abc import AsyncIterator, Sequence

from ..abort import AbortSignal
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..agent.model import Chunk, ModelRequest
from ..errors import UsageError
from ..run.context import Context
from ..run.messages import Message

__all__ = ["MissingAgent"]


class MissingAgent(Agent):
    """An agent by name only. Its turns end as failed, with the conversation as it was given to them."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(_NoModel(why), name=name)
        self._why = why

    async def __call__(self, ctx: Context, value: "str | Sequence[Message] | AgentResult", /) -> AgentResult:
        """Fail. The conversation stays as it is, also where tool calls are open: there are no tools to run them.

        Raises:
            UsageError: always; it names the missing agent, and has the conversation as its `partial`.
        """
        error = UsageError(self._why)
        if not isinstance(value, AgentResult):
            value = AgentResult("", () if isinstance(value, str) else tuple(value))
        object.__setattr__(error, "partial", value)  # the boundary of the run looks for it
        raise error


class _NoModel:
    """The model of an agent that is not there. An agent needs one; this one is never asked by a session."""

    name = "none"

    def __init__(self, why: str) -> None:
        self._why = why

    def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
        """Raises: UsageError."""
        raise UsageError(self._why)
