"""Owns the method of measurement: interleaved rounds, medians, ratios, verdicts. It is independent of the benchmarks.

The machine is never quiet, so no single time is trusted. All contenders of a comparison run once per round, in
alternating order, so that a disturbance hits all of them. A ratio is taken within each round, and the median over all
rounds drops those in which a disturbance hit one side only.

Two clocks: `cpu` for what happens in this thread alone, which does not count the time that other processes take away;
`wall` where another process or thread takes part, and then with contenders that take about as long as each other.
"""

import gc
import statistics
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from time import perf_counter as wall
from time import thread_time as cpu
from typing import Literal, TypeAlias

__all__ = [
    "AtMost",
    "Contender",
    "Limit",
    "Line",
    "Measure",
    "Samples",
    "Target",
    "Unit",
    "Verdict",
    "cpu",
    "statement",
    "wall",
]

Unit: TypeAlias = Literal["s", "B", ""]
Verdict: TypeAlias = Literal["ok", "MISSED", ""]

# Does its work once, measures that without its preparations, and returns the cost of one operation.
Contender: TypeAlias = Callable[[], float]

UNROLLED = 50


@dataclass(frozen=True, slots=True)
class AtMost:
    """A target: ours costs at most so many times what the peer costs. `why`: the owner's word, should it be missed."""

    times: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """A target: ours is at most so much. For what a ratio cannot say: nothing kept, or no peer on this machine."""

    most: float
    why: str = ""


Target: TypeAlias = AtMost | Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: two medians, and the median of the ratios. `theirs`: None for a peer that is not here."""

    what: str
    ours: float
    peer: str
    theirs: float | None
    ratio: float | None = None
    unit: Unit = "s"
    target: Target | None = None

    @property
    def verdict(self) -> Verdict:
        """Empty where there is no target, or no peer to hold it against."""
        match self.target:
            case Limit(most):
                return "ok" if self.ours <= most else "MISSED"
            case AtMost(times) if self.ratio is not None:
                return "ok" if self.ratio <= times else "MISSED"
            case _:
                return ""


@dataclass(frozen=True, slots=True)
class Samples:
    """What ours and each peer cost, round by round; nothing for a peer that is not on this machine."""

    what: str
    ours: Sequence[float]
    peers: Mapping[str, Sequence[float]]

    def over(self, bare: str) -> "Samples":
        """What ours and the other peers added to a bare one, each in the same round."""
        floor = self.peers[bare]

        def added(costs: Sequence[float]) -> list[float]:
            return [cost - least for cost, least in zip(costs, floor, strict=True)]

        others = {name: added(costs) for name, costs in self.peers.items() if name != bare}
        return Samples(self.what, added(self.ours), others)

    def lines(self, targets: Mapping[str, Target] | None = None, unit: Unit = "s") -> Iterator[Line]:
        """Ours against each peer; those that `targets` does not name are only shown."""
        for peer, costs in self.peers.items():
            yield Line(
                what=self.what,
                ours=statistics.median(self.ours),
                peer=peer,
                theirs=statistics.median(costs) if costs else None,
                ratio=statistics.median(map(truediv, self.ours, costs)) if costs else None,
                unit=unit,
                target=(targets or {}).get(peer),
            )


class Measure:
    """Runs contenders in rounds. `tell` hears what is being measured."""

    def __init__(self, rounds: int, tell: Callable[[str], object]) -> None:
        self._rounds = rounds
        self.tell = tell

    def __call__(
        self, what: str, ours: Contender, peers: Mapping[str, Contender | None], *, samples: int = 1
    ) -> Samples:
        """Each contender once per round, after one round that does not count. A peer that is None is not here.

        `samples`: rounds per round, for contenders that take one short sample each.
        """
        self.tell(what)
        costs: list[list[float]] = [[] for _ in range(len(peers) + 1)]
        order = [
            (ours, costs[0]),
            *((peer, kept) for peer, kept in zip(peers.values(), costs[1:], strict=True) if peer),
        ]
        for contender, _ in order:
            _once(contender)
        for _ in range(self._rounds * samples):
            for contender, kept in order:
                kept.append(_once(contender))
            order.reverse()
        return Samples(what, costs[0], dict(zip(peers, costs[1:], strict=True)))


def _once(contender: Contender) -> float:
    # As `timeit` does: garbage is collected before, so that nobody pays for what another left behind.
    gc.collect()
    gc.disable()
    try:
        return contender()
    finally:
        gc.enable()


def statement(code: str, count: int, clock: Callable[[], float] = cpu, **names: object) -> Contender:
    """Run `code`, in which `names` are local variables, `count` times: written out in a row, so no loop is measured."""
    setup = "; ".join(f"{name} = names[{name!r}]" for name in names)
    timer = timeit.Timer("; ".join([code] * UNROLLED), setup or "pass", clock, globals={"names": names})
    loops = max(1, count // UNROLLED)
    return lambda: timer.timeit(loops) / (loops * UNROLLED)
