"""Owns importing the agent that a command line names as `module:agent`. Knows nothing of how the agent is used."""

import importlib
import os
import sys

from ..agent.agent import Agent
from ..errors import UsageError, describe

__all__ = ["load_agent"]


def load_agent(target: str) -> Agent:
    """Import an agent.

    Args:
        target: `module:name`. The name is that of an agent, or of a function without parameters that returns one.

    Raises:
        UsageError: The module cannot be imported, has no such name, or the name is not an agent. The text says which.
    """
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or not name.isidentifier():
        raise UsageError(f"{target!r} is not module:agent, such as my_agents:helper")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"there is no module {error.name!r}: start it where that can be imported") from error
    except Exception as error:
        raise UsageError(f"module {module_name!r} cannot be imported: {describe(error)}") from error
    if not hasattr(module, name):
        raise UsageError(f"module {module_name!r} has no {name!r}")
    return _as_agent(target, getattr(module, name))


def _as_agent(target: str, found: object) -> Agent:
    if callable(found) and not isinstance(found, Agent):
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"{target} was called and failed: {describe(error)}") from error
    if not isinstance(found, Agent):
        raise UsageError(f"{target} is {type(found).__name__}, not an Agent")
    return found
