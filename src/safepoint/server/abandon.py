"""Owns how long a server waits for what ignores a stop. Knows nothing of HTTP.

In a program of your own a run waits, visibly, for a tool that goes on after the abort: hiding it would hide a bug. A
server has other people to serve: the tool is left behind, named in the receipt as still running, and whatever comes
from it later is dropped.
"""

import copy
from dataclasses import replace

from ..abort.clock import check_seconds
from ..agent.agent import Agent

__all__ = ["with_abandon_after"]


def with_abandon_after(agent: Agent, after: float) -> Agent:
    """The same agent; its tools are left behind `after` seconds after a stop, but for those that say otherwise."""
    check_seconds("after", after)
    patient = copy.copy(agent)
    patient._tools = {
        name: tool
        if tool.policy.abandon_after is not None
        else replace(tool, policy=replace(tool.policy, abandon_after=after))
        for name, tool in agent._tools.items()
    }
    return patient
