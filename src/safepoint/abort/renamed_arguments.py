"""Owns arguments under other names: those of an older version are accepted with a warning, guessed ones are refused.

Both answers give the right name.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from ..errors import UsageError

__all__ = ["accepts_deadline", "renamed_timeout", "suggests", "take_deadline"]

P = ParamSpec("P")
R = TypeVar("R")


def accepts_deadline(function: Callable[P, R]) -> Callable[P, R]:
    """Let callers of `function` still write `deadline=seconds` instead of `timeout=seconds`.

    A duration is always called a timeout, as in asyncio, anyio and trio; a deadline is an absolute time. Type checkers
    see only the new name, so they find every call that has to change.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "deadline" in kwargs:
            take_deadline(kwargs)
        return function(*args, **kwargs)

    return call


def take_deadline(options: dict[str, object], *, stacklevel: int = 3) -> None:
    """Move the value of `deadline` to `timeout`, and warn.

    Args:
        options: The keyword arguments of a call, which are changed in place.
        stacklevel: How many frames up the warning points.

    Raises:
        UsageError: Both arguments were given.
    """
    if options.get("timeout") is not None:
        raise UsageError("timeout= and deadline= are the same limit: give timeout= alone")
    options["timeout"] = options.pop("deadline")
    message = "deadline=seconds is called timeout=seconds now; the old name goes away in version 0.3"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def renamed_timeout(timeout: float | None, other: Mapping[str, object], called: str) -> float | None:
    """Return the value of `timeout`, or of its old name, for a function with `**other: Never`.

    It does what `accepts_deadline` does, without a call around the function. Type checkers refuse all names in `other`.

    Args:
        timeout: The value of the argument `timeout`.
        other: The arguments with names that the function does not have.
        called: The name of the function.

    Raises:
        TypeError: There is an argument that never had a meaning.
        UsageError: Both names were used.
    """
    for name in other:
        if name != "deadline":
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}")
    options = {"timeout": timeout, **other}
    take_deadline(options)
    return options["timeout"]  # type: ignore[return-value]  # checked by the function, as a timeout is


def suggests(**right_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse arguments that have another name here, and say which. For names that people know from other frameworks.

    Args:
        **right_names: For each wrong name, the argument that does the same in this function.

    Returns:
        The decorator. What it decorates raises a UsageError for a wrong name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() & right_names.keys():
                called = function.__qualname__.removesuffix(".__init__")
                raise UsageError(f"{called}() has no argument {name!r}: use {right_names[name]}=… instead")
            return function(*args, **kwargs)

        return call

    return decorate
