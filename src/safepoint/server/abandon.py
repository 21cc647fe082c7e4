"""Owns how long a server waits for what ignores a stop. Knows nothing of HTTP.

In a program of your own a run waits, visibly, for a tool that goes on after the abort: hiding it would hide a bug. A
server has other people to serve: the tool is left behind, named in the receipt as still running, and whatever comes
from it later is dropped.
"""

from ..agent.agent import Agent

__all__ = ["with_abandon_after"]


def with_abandon_after(agent: Agent, after: float) -> Agent:
    """Return a copy of the agent whose tools are abandoned `after` seconds after a stop.

    A tool whose policy has an `abandon_after` of its own keeps it.
    """
    return agent.with_abandon_after(after)
