"""Owns reading the definition of a node: its function, its options, and what is wrong with them.

Knows nothing of routes.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

from ..errors import UsageError
from ..run.leaf import kind_of, name_of
from ..run.policy import Policy, PolicySettings
from ..run.retry import Retry
from .graph import FlowError, Items, OnFailure, Step
from .state import return_type
from .step import as_work

__all__ = [
    "NodeOptions",
    "checked_name",
    "checked_on_failure",
    "field_reader",
    "make_step",
    "require_known_options",
    "require_sync",
]


class NodeOptions(PolicySettings, total=False):
    """The options of a node: see `Flow.node`."""

    outputs: tuple[str, ...]
    retry: Retry | None
    final: bool | None


def make_step(name: str | None, fn: Callable[..., object], **options: Unpack[NodeOptions]) -> Step:
    """Make a node of a function.

    Raises:
        FlowError: The name, the function or an option is wrong.
    """
    if not callable(fn):
        raise FlowError(f"node {name!r}: expected a function, not {type(fn).__name__}")
    if hasattr(fn, "graph"):
        raise FlowError(f"node {name!r}: a flow as a node is flow.subflow({name!r}, …)")
    name = checked_name(name_of(fn) if name is None else name, "node")
    for option in options.keys() - NodeOptions.__optional_keys__:
        raise FlowError(f"node {name!r}: there is no option {option!r}: there are {_listed(NodeOptions)}")
    outputs: object = options.pop("outputs", ("done",))
    retry, final = options.pop("retry", None), options.pop("final", None)
    settings: Any = options  # without the options of a node these are settings of a policy
    policy = Policy(**settings)
    return Step(
        name,
        fn,
        as_work(fn),
        _checked_outputs(name, outputs),
        policy,
        retry,
        policy.on_abort == "finish" if final is None else final,
        kind_of(fn, policy),
        return_type(fn),
    )


def _checked_outputs(name: str, outputs: object) -> tuple[str, ...]:
    names = () if isinstance(outputs, str) or not isinstance(outputs, Iterable) else tuple(outputs)
    if not names or not all(isinstance(output, str) and output for output in names):
        raise FlowError(f"node {name!r}: outputs must be a tuple of names, such as ('found', 'empty'), not {outputs!r}")
    return names


def require_known_options(given: Mapping[str, object], options: Any) -> None:
    """Check the names of options.

    Args:
        given: The options of a call.
        options: The TypedDict of the options that there are.

    Raises:
        UsageError: There is no such option: a name is misspelt, for example.
    """
    for name in given.keys() - options.__optional_keys__:
        raise UsageError(f"there is no option {name!r}: the options are {_listed(options)}")


def _listed(options: Any) -> str:
    return ", ".join(sorted(options.__optional_keys__))


def require_sync(node: str, **functions: Callable[..., object] | str | None) -> None:
    """Raises: FlowError for an async function in a place where the flow would not await it."""
    for name, fn in functions.items():
        if inspect.iscoroutinefunction(fn):
            raise FlowError(f"node {node!r}: {name}= is called, not awaited: give a plain function")


def field_reader(name: str) -> Callable[[object], Items]:
    """Return a function that reads a field of the state."""
    return lambda state: state[name] if isinstance(state, dict) else getattr(state, name)


def checked_name(name: object, what: str) -> str:
    """Return a name. Raises: FlowError if it cannot be part of a path."""
    if not isinstance(name, str) or not name or "/" in name:
        raise FlowError(f"a {what}'s name must be a text without '/', not {name!r}: paths are made of names")
    return name


def checked_on_failure(value: OnFailure) -> OnFailure:
    """Return the value of `on_failure`. Raises: FlowError if it is neither "interrupt" nor "collect"."""
    if value not in ("interrupt", "collect"):
        raise FlowError(f"on_failure must be 'interrupt' or 'collect', not {value!r}")
    return value
