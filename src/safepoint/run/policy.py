"""The policy of a leaf: how it behaves when it is stopped. Other modules carry it out."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from ..abort.clock import check_seconds
from ..errors import UsageError

__all__ = ["Policy", "PolicySettings"]

# How long a leaf may go on after a time limit, in order to clean up, before its caller continues without it.
LIMIT_GRACE_SECONDS = 0.5


class PolicySettings(TypedDict, total=False):
    """The fields of a Policy, as keyword arguments of decorators."""

    on_abort: Literal["interrupt", "cooperate", "finish"]
    grace: float
    timeout: float | None
    warn_after: float
    abandon_after: float | None
    isolation: Literal["thread", "process"]
    interrupt_after: float
    interruptible: tuple[str, ...]
    programs: Literal["end", "leave"]
    connections: Literal["end", "leave"]
    tasks: Literal["end", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What happens to a leaf on abort, and how long it may take. All times are in seconds.

    Attributes:
        on_abort: `"interrupt"`: the leaf is interrupted at once. `"cooperate"`: it only sees the signal. `"finish"`: it
            may finish within `grace`, and is then interrupted.
        grace: How long a leaf may finish. After that it is interrupted, and again after each further `grace`.
        timeout: The leaf's own time limit. It ends the leaf with a LeafTimeout, not the run.
        warn_after: If the leaf still runs this long after the abort, a warning names the place where it is stuck.
        abandon_after: If the leaf still runs this long after the abort, the run goes on without it. None: the run
            waits, visibly.
        isolation: Where a synchronous function runs: in a thread, or in a process, which can be killed.
        interrupt_after: How long a synchronous function may take to return by itself before it is interrupted.
        interruptible: Packages whose code may be interrupted like the function's own.
        programs: `"end"`: programs that the leaf started end with it when it is interrupted. `"leave"`: they go on, and
            the receipt lists them.
        connections: `"end"`: a thread that is blocked in a connection is freed from it. `"leave"`: the run waits for
            the connection.
        tasks: `"leave"`: tasks that the leaf started and did not wait for go on, and the receipt lists them. `"end"`:
            they end with it.
    """

    on_abort: Literal["interrupt", "cooperate", "finish"] = "interrupt"
    grace: float = 5.0
    timeout: float | None = None
    warn_after: float = 3.0
    abandon_after: float | None = None
    isolation: Literal["thread", "process"] = "thread"
    interrupt_after: float = 0.1
    interruptible: tuple[str, ...] = ()
    programs: Literal["end", "leave"] = "end"
    connections: Literal["end", "leave"] = "end"
    tasks: Literal["end", "leave"] = "leave"

    def __post_init__(self) -> None:
        for name in ("grace", "timeout", "warn_after", "abandon_after", "interrupt_after"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        _one_of("on_abort", self.on_abort, ("interrupt", "cooperate", "finish"))
        _one_of("isolation", self.isolation, ("thread", "process"))
        for name in ("programs", "connections", "tasks"):
            _one_of(name, getattr(self, name), ("end", "leave"))
        if isinstance(self.interruptible, str):
            raise UsageError(f"interruptible must be a tuple of package names: ({self.interruptible!r},)")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
