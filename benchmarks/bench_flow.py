"""Owns the benchmark of flows: what a node costs beside other graph runners, and how the cost grows with the flow."""

import tracemalloc
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from .measure import AtMost, Contender, Line, Measure
from .peers import graphs

SHORT = 4
ROW, LONG_ROW = 100, 10_000
FAN, WIDE_FAN, NARROW_FAN = 100, 100_000, 1_000
NOTES = 10_000


def peers() -> dict[str, str]:
    return {name: version(name) for name in ("langgraph", "pydantic-graph")}


def lines(measure: Measure) -> Iterator[Line]:
    yield from beside(
        measure,
        f"{ROW} nodes in a row, each",
        graphs.row(ROW),
        {"LangGraph": graphs.lang_row(ROW), "pydantic-graph": graphs.pydantic_row(ROW)},
    )
    yield from beside(
        measure,
        f"{graphs.FORKED} nodes through a fork, each",
        graphs.fork(),
        {"LangGraph": graphs.lang_fork(), "pydantic-graph": graphs.pydantic_fork()},
    )
    yield from beside(
        measure,
        f"{FAN} items side by side, each",
        graphs.fan(FAN, concurrency=FAN),
        {"LangGraph": graphs.lang_fan(FAN), "pydantic-graph": graphs.pydantic_fan(FAN)},
    )
    yield from growth(measure)
    yield from kept(measure)
    yield from copying(measure)


def beside(measure: Measure, what: str, ours: Contender, others: Mapping[str, Contender]) -> Iterator[Line]:
    return measure(what, ours, others, samples=SHORT).lines(dict.fromkeys(others, AtMost(1)))


def growth(measure: Measure) -> Iterator[Line]:
    """A hundred times as many: one costs the same."""
    for what, ours, fewer, less in (
        (f"{LONG_ROW:,} nodes in a row, each", graphs.row(LONG_ROW), f"itself with {ROW}", graphs.row(ROW)),
        (
            f"{WIDE_FAN:,} items, 8 at once, each",
            graphs.fan(WIDE_FAN, concurrency=8),
            f"itself with {NARROW_FAN:,}",
            graphs.fan(NARROW_FAN, concurrency=8),
        ),
    ):
        yield from measure(what, ours, {fewer: less}).lines({fewer: AtMost(1.2)})


def kept(measure: Measure) -> Iterator[Line]:
    """Not a matter of time, hence not of rounds: the most memory that so many items need when nothing is gathered."""
    what = f"{WIDE_FAN:,} items, 8 at once, nothing gathered"
    measure.tell(what)
    more, less = (peak(graphs.fan(size, concurrency=8, gather=False)) for size in (WIDE_FAN, NARROW_FAN))
    yield Line(
        what=f"{what}: memory at its peak",
        ours=more,
        peer=f"itself with {NARROW_FAN:,}",
        theirs=less,
        ratio=more / less,
        unit="B",
        target=AtMost(1.2),
    )


def peak(contender: Contender) -> int:
    contender()  # what is imported and cached on the way is not counted
    tracemalloc.start()
    try:
        contender()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def copying(measure: Measure) -> Iterator[Line]:
    """A node works on a copy of the state. What that costs, so that nobody need guess: there is no target."""
    what = f"a node whose state holds {NOTES:,} more texts"
    return measure(what, graphs.row(ROW, 20 + NOTES), {"itself without": graphs.row(ROW)}).lines()
