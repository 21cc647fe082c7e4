"""Owns a host under test: the agents of the conformance suite, and how a case gets at what surrounds the host."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..agent.agent import Agent
from ..agent.model import ModelRequest
from ..agent.tool import ToolContext, tool
from ..models.scripted import Call, ScriptedModel, Stall
from ..run.messages import UserMessage
from ..session.host import Host
from ..session.session import Session

__all__ = ["Cast", "Make", "Rig"]


# How long an event loop stands still at most, if something goes wrong.
STILL_SECONDS = 10.0


class Cast:
    """The agents of the suite: `child` does what its last message says; `parent` drives a turn with its tool.

    Attributes:
        still: Set when a tool lets its event loop stand still.
        moves: Set this, and the tool returns at once.
    """

    def __init__(self) -> None:
        self.still, self.moves = threading.Event(), threading.Event()
        self.drive: Callable[[ToolContext], Awaitable[object]] = self._nothing

        @tool
        async def hold(ctx: ToolContext) -> str:
            """Never ends by itself."""
            await ctx.signal.wait_async()
            ctx.signal.raise_if_aborted()
            return "released"

        @tool
        async def stand_still() -> str:
            """Holds up everything in its event loop, as a frozen process does."""
            self.still.set()
            self.moves.wait(STILL_SECONDS)
            return "moves again"

        @tool
        async def drive(ctx: ToolContext) -> str:
            """Have a turn of another session done."""
            await self.drive(ctx)
            return "driven"

        self.agents: Mapping[str, Agent] = {
            "child": Agent(ScriptedModel(*[answer] * 100), name="child", tools=[hold, stand_still], ask_user=True),
            "parent": Agent(ScriptedModel([Call("drive")], "done"), name="parent", tools=[drive]),
        }

    async def _nothing(self, ctx: ToolContext) -> None:
        """Until a case says what to do."""


def answer(request: ModelRequest) -> Any:
    """What the child says: it obeys the last message of its user, and thanks for whatever a tool has brought."""
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return "thanks"
    plays = {
        "wait": [Stall()],
        "talk": ["half an answer", Stall()],
        "tool": [Call("hold")],
        "freeze": [Call("stand_still")],
    }
    return {**plays, "ask": [Call("ask_user", question="Well?")]}.get(last.text, "done")


@dataclass(kw_only=True)
class Rig:
    """A host under test, with the agents of `cast`, and how to get at what surrounds it.

    elapse   lets so many seconds pass, for the host too
    again    another host over the same store, which goes on with what this one has left when it was shut down; the
             rig closes it
    session  the session itself; None: a host far away has none to show, and some sources cannot be tried
    elsewhere
             the same host as another process has it, for another event loop; needed where there is no `session`, and
             None: one phase cannot be tried
    pace     by so much deadlines and disconnects are shortened, where time is real
    hold     (shut, reached, open) of a gate before the store; None: there is none, and two phases cannot be tried
    """

    host: Host
    cast: Cast
    elapse: Callable[[float], Awaitable[object]]
    again: Callable[[], Awaitable[Host]]
    session: Callable[[str], Awaitable[Session]] | None = None
    elsewhere: Callable[[], AbstractAsyncContextManager[Host]] | None = None
    hold: tuple[Callable[[], object], Callable[[], Awaitable[object]], Callable[[], object]] | None = None
    seconds: float = 20.0
    pace: float = 1.0


# Given the agents and `on_disconnect` (None: it means nothing), a rig with a host of its own, over a new store.
Make: TypeAlias = Callable[[Cast, float | None], AbstractAsyncContextManager[Rig]]
