"""Owns reading a node's definition: its function, its options, and what is wrong with them. Knows nothing of routes."""

import inspect
import typing
from collections.abc import Callable
from typing import Any, Unpack

from ..run.leaf import kind_of, name_of
from ..run.policy import Policy, PolicySettings
from ..run.retry import Retry
from .graph import FlowError, OnFailure, Step
from .step import adapted

__all__ = ["NodeOptions", "checked_name", "checked_policy", "field", "make_step"]


class NodeOptions(PolicySettings, total=False):
    """What can be said of a node: see `Flow.node`."""

    outputs: tuple[str, ...]
    retry: Retry | None
    final: bool | None


def make_step(name: str | None, fn: Callable[..., Any], **options: Unpack[NodeOptions]) -> Step:
    """A node that is a function. Raises: FlowError."""
    if not callable(fn):
        raise FlowError(f"node {name!r}: expected a function, not {type(fn).__name__}")
    name = checked_name(name_of(fn) if name is None else name, "node")
    outputs: Any = options.pop("outputs", ("done",))
    if isinstance(outputs, str) or not outputs or not all(isinstance(output, str) for output in outputs):
        raise FlowError(f"node {name!r}: outputs must be a tuple of names, such as ('found', 'empty'), not {outputs!r}")
    retry, final = options.pop("retry", None), options.pop("final", None)
    settings: Any = options  # what is left of them
    policy = Policy(**settings)
    final = policy.on_abort == "finish" if final is None else final
    return Step(name, fn, adapted(fn), tuple(outputs), policy, retry, final, kind_of(fn, policy), _result_type(fn))


def _result_type(fn: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(inspect.unwrap(fn)).get("return", Any)
    except (NameError, TypeError):
        return Any


def field(name: str) -> Callable[[Any], Any]:
    """A function that reads a field of the state."""
    return lambda state: state[name] if isinstance(state, dict) else getattr(state, name)


def checked_name(name: object, what: str) -> str:
    """Raises: FlowError for what cannot be part of a path."""
    if not isinstance(name, str) or not name or "/" in name:
        raise FlowError(f"a {what}'s name must be a text without '/', not {name!r}: paths are made of names")
    return name


def checked_policy(value: OnFailure) -> OnFailure:
    """Raises: FlowError."""
    if value not in ("interrupt", "collect"):
        raise FlowError(f"on_failure must be 'interrupt' or 'collect', not {value!r}")
    return value
