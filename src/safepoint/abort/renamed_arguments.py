"""Owns renamed arguments: the old name is accepted for one version, with a warning that gives the new one."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..errors import UsageError

__all__ = ["accepts_deadline", "take_deadline"]

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
