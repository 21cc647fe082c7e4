"""Owns a host under test: the agents of the conformance suite, and the access of a case to the host's surroundings."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...agent.agent import Agent
from ...agent.context import ToolContext
from ...agent.model import ModelRequest
from ...agent.tool import tool
from ...messages import UserMessage
from ...models.scripted import Answer, Call, ScriptedModel, Stall
from ...session.host import Host
from ...session.session import Session

__all__ = ["Cast", "Make", "Rig", "StoreGate"]


# How long the tool blocks its event loop at most, if something goes wrong.
STILL_SECONDS = 10.0


class Cast:
    """The agents of the suite: `child` does what its last message says; `parent` drives a turn with its tool.

    Attributes:
        still: Set by the tool that blocks its event loop, when it begins.
        moves: Set this to let that tool return.
    """

    def __init__(self) -> None:
        self.still, self.moves = threading.Event(), threading.Event()
        self.drive: Callable[[ToolContext], Awaitable[object]] = self._nothing

        @tool
        async def hold(ctx: ToolContext) -> str:
            """Wait until the turn is stopped."""
            await ctx.signal.wait_async()
            ctx.signal.raise_if_aborted()
            return "released"

        @tool
        async def stand_still() -> str:
            """Block the event loop, as a frozen process does."""
            self.still.set()
            self.moves.wait(STILL_SECONDS)
            return "moves again"

        @tool
        async def drive(ctx: ToolContext) -> str:
            """Run a turn of another session."""
            await self.drive(ctx)
            return "driven"

        self.agents: Mapping[str, Agent] = {
            "child": Agent(ScriptedModel(*[answer] * 100), name="child", tools=[hold, stand_still], ask_user=True),
            "parent": Agent(ScriptedModel([Call("drive")], "done"), name="parent", tools=[drive]),
        }

    async def _nothing(self, ctx: ToolContext) -> None:
        """The default until a case sets `drive`."""


def answer(request: ModelRequest) -> Answer:
    """The answer of the child: it obeys the last message of its user, and thanks for the result of a tool."""
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return "thanks"
    plays: dict[str, Answer] = {
        "wait": [Stall()],
        "talk": ["half an answer", Stall()],
        "tool": [Call("hold")],
        "freeze": [Call("stand_still")],
    }
    return {**plays, "ask": [Call("ask_user", question="Well?")]}.get(last.text, "done")


class StoreGate(NamedTuple):
    """A gate in front of the store of a host: while it is shut, what the session writes waits.

    Attributes:
        shut: Shuts the gate.
        reached: Waits until a write waits at the gate.
        open: Opens the gate.
    """

    shut: Callable[[], object]
    reached: Callable[[], Awaitable[object]]
    open: Callable[[], object]


@dataclass(kw_only=True)
class Rig:
    """A host under test, and the access to its surroundings.

    Attributes:
        host: The host.
        cast: The agents that it runs.
        elapse: Lets a number of seconds pass, for the host, too.
        again: Gives another host over the same store, which continues what this one has left when it was shut down.
            The rig closes it.
        session: Gives the session object. None for a host in another process, where some sources cannot be tried.
        elsewhere: Gives the same host for another event loop, as another process has it. Needed if there is no
            `session`; without both, one phase cannot be tried.
        store_gate: The gate in front of the store. None if there is none, and two phases cannot be tried.
        seconds: The time limit of a case.
        pace: The factor for timeouts and disconnects, to shorten them where time is real.
    """

    host: Host
    cast: Cast
    elapse: Callable[[float], Awaitable[object]]
    again: Callable[[], Awaitable[Host]]
    session: Callable[[str], Awaitable[Session]] | None = None
    elsewhere: Callable[[], AbstractAsyncContextManager[Host]] | None = None
    store_gate: StoreGate | None = None
    seconds: float = 20.0
    pace: float = 1.0


# Makes a rig with a host of its own over a new store. The arguments are the agents, and `on_disconnect` in seconds or
# None for the default.
Make: TypeAlias = Callable[[Cast, float | None], AbstractAsyncContextManager[Rig]]
