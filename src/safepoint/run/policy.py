"""Owns how one leaf behaves when it is stopped. Knows nothing of how that is done."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from ..abort.clock import check_seconds
from ..errors import UsageError

__all__ = ["Policy", "PolicySettings"]


class PolicySettings(TypedDict, total=False):
    """The fields of a Policy, as keyword arguments of decorators."""

    on_abort: Literal["interrupt", "cooperate", "finish"]
    grace: float
    timeout: float | None
    warn_after: float
    abandon_after: float | None
    isolation: Literal["thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What happens to a leaf on abort, and how long it may take. All times are seconds.

    on_abort       "interrupt": at once. "cooperate": it only sees the signal. "finish": after `grace`
    grace          how long a leaf may finish; then, and once per such period, it is interrupted (again)
    timeout        the leaf's own limit: it ends the leaf (LeafTimeout), not the run
    warn_after     still running this long after the abort: a warning that names the place
    abandon_after  still running this long after the abort: the run goes on without it. None: the run waits, visibly
    isolation      where a synchronous function runs; "process" can be killed
    """

    on_abort: Literal["interrupt", "cooperate", "finish"] = "interrupt"
    grace: float = 5.0
    timeout: float | None = None
    warn_after: float = 3.0
    abandon_after: float | None = None
    isolation: Literal["thread", "process"] = "thread"

    def __post_init__(self) -> None:
        for name in ("grace", "timeout", "warn_after", "abandon_after"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        _one_of("on_abort", self.on_abort, ("interrupt", "cooperate", "finish"))
        _one_of("isolation", self.isolation, ("thread", "process"))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
