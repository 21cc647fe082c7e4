"""Arguments that were renamed: the old name is accepted for one version, with a warning that gives the new one."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..errors import UsageError

__all__ = ["accepts_deadline", "take_deadline"]

P = ParamSpec("P")
R = TypeVar("R")


def accepts_deadline(function: Callable[P, R]) -> Callable[P, R]:
    """Let callers of `function` still write `deadline=seconds` for what is called `timeout=seconds` now.

    A duration is always called a timeout, as in asyncio, anyio and trio; a deadline is an absolute time. Type checkers
    see the new name only, so they point at every call that has to change.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "deadline" in kwargs:
            take_deadline(kwargs)
        return function(*args, **kwargs)

    return call


def take_deadline(options: dict[str, object], *, stacklevel: int = 3) -> None:
    """Move the value of `deadline` to `timeout`, and warn.

    Raises:
        UsageError: Both were given.
    """
    if options.get("timeout") is not None:
        raise UsageError("timeout= and deadline= are the same limit: give timeout= alone")
    options["timeout"] = options.pop("deadline")
    told = "deadline=seconds is called timeout=seconds now; the old name goes away in version 0.3"
    warnings.warn(told, DeprecationWarning, stacklevel=stacklevel)
