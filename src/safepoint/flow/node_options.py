"""Owns reading a node's definition: its function, its options, and what is wrong with them. Knows nothing of routes."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from ..errors import UsageError
from ..run.leaf import kind_of, name_of
from ..run.policy import Policy, PolicySettings
from ..run.retry import Retry
from .graph import FlowError, OnFailure, Step
from .step import adapted

__all__ = ["NodeOptions", "checked_name", "checked_options", "checked_plain", "checked_policy", "field", "make_step"]


class NodeOptions(PolicySettings, total=False):
    """What can be said of a node: see `Flow.node`."""

    outputs: tuple[str, ...]
    retry: Retry | None
    final: bool | None


def make_step(name: str | None, fn: Callable[..., Any], **options: Unpack[NodeOptions]) -> Step:
    """A node that is a function. Raises: FlowError."""
    if not callable(fn):
        raise FlowError(f"node {name!r}: expected a function, not {type(fn).__name__}")
    if hasattr(fn, "graph"):
        raise FlowError(f"node {name!r}: a flow as a node is flow.subflow({name!r}, …)")
    name = checked_name(name_of(fn) if name is None else name, "node")
    for option in options.keys() - NodeOptions.__optional_keys__:
        raise FlowError(f"node {name!r}: there is no option {option!r}: there are {_listed(NodeOptions)}")
    outputs: Any = options.pop("outputs", ("done",))
    if isinstance(outputs, str) or not outputs or not all(isinstance(output, str) and output for output in outputs):
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


def checked_options(given: Mapping[str, object], options: Any) -> None:
    """Raises: UsageError for a name that is not among them, such as a misspelt one."""
    for name in given.keys() - options.__optional_keys__:
        raise UsageError(f"there is no option {name!r}: the options are {_listed(options)}")


def _listed(options: Any) -> str:
    return ", ".join(sorted(options.__optional_keys__))


def checked_plain(node: str, **functions: Callable[..., Any] | str | None) -> None:
    """Raises: FlowError for an async function where nobody would await it."""
    for name, fn in functions.items():
        if inspect.iscoroutinefunction(fn):
            raise FlowError(f"node {node!r}: {name}= is called, not awaited: give a plain function")


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
