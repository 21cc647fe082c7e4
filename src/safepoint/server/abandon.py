"""How long a server waits for tools that ignore a stop. Knows nothing of HTTP.

By default a run waits for a tool that goes on after the abort, because hiding such a tool would hide a bug. A server
has other users to serve: it abandons the tool, names it in the receipt as still running, and drops its late result.
"""

from ..agent.agent import Agent

__all__ = ["with_abandon_after"]


def with_abandon_after(agent: Agent, after: float) -> Agent:
    """Return a copy of the agent whose tools are abandoned `after` seconds after a stop.

    A tool whose policy has an `abandon_after` of its own keeps it.
    """
    return agent.with_abandon_after(after)
