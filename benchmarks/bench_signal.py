"""Owns the benchmark of the abort layer: what a signal costs to look at, make, combine, guard with, and abort."""

import asyncio
import math
import threading
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version

from autogen_core import CancellationToken

from safepoint.abort import AbortController, AbortSignal

from .measure import AtMost, Contender, Limit, Line, Measure, statement, wall
from .peers import crowds, listeners, races, wakes
from .peers.node import Node, Task, node

SHORT = 4  # many short samples forget a burst of other load better than a few long ones
CROWD = 10_000
COMPOSITES = 100_000
MANY, SOME, FEW = listeners.TOTAL, 10_000, 1_000


def peers() -> dict[str, str]:
    with node() as found:
        versions = {"Node": found.version if found else "not here"}
    return versions | {name: version(name) for name in ("anyio", "trio", "autogen-core")}


def lines(measure: Measure) -> Iterator[Line]:
    yield from flag(measure)
    yield from creation(measure)
    with node() as found:
        yield from composites(measure, found)
        yield from kept_composites(measure, found)
        yield from listening(measure, found)
    yield from guard(measure)
    yield from crowd(measure)
    yield from latency(measure)


def flag(measure: Measure) -> Iterator[Line]:
    count = 200_000
    samples = measure(
        "flag check",
        statement("signal.aborted", count, signal=AbortController().signal),
        {
            "threading.Event.is_set": statement("event.is_set()", count, event=threading.Event()),
            "asyncio.Event.is_set": statement("event.is_set()", count, event=asyncio.Event()),
            "AutoGen is_cancelled": statement("token.is_cancelled()", count // 5, token=CancellationToken()),
        },
        samples=SHORT,
    )
    return samples.lines({"threading.Event.is_set": AtMost(0.5)})


def creation(measure: Measure) -> Iterator[Line]:
    count = 10_000
    samples = measure(
        "AbortController()",
        statement("AbortController()", count, AbortController=AbortController),
        {
            "asyncio.Event": statement("Event()", count, Event=asyncio.Event),
            "threading.Event": statement("Event()", count, Event=threading.Event),
            "AutoGen CancellationToken": statement("Token()", count, Token=CancellationToken),
        },
        samples=SHORT,
    )
    return samples.lines({"asyncio.Event": AtMost(2)})


def composites(measure: Measure, found: Node | None) -> Iterator[Line]:
    ours, theirs = 100_000, 20_000  # long: what Node leaves to its garbage collector has to be paid inside the round
    p, q = AbortController(), AbortController()
    samples = measure(
        "any([p, q]): make, check, drop",
        statement("any([p, q]).aborted", ours, wall, any=AbortSignal.any, p=p.signal, q=q.signal),
        {"Node AbortSignal.any": asked(found, "any", theirs)},
    )
    target = AtMost(0.3) if found else Limit(1e-6)
    return samples.lines({"Node AbortSignal.any": target})


def kept_composites(measure: Measure, found: Node | None) -> Iterator[Line]:
    """Not a matter of time, hence not of rounds: what 100,000 of them leave behind."""
    measure.tell(f"any([p, q]): {COMPOSITES:,} dropped")
    p, q = AbortController(), AbortController()
    make = statement("any([p, q]).aborted", COMPOSITES, any=AbortSignal.any, p=p.signal, q=q.signal)
    tracemalloc.start()
    make()
    before, _ = tracemalloc.get_traced_memory()
    make()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Line(
        what="any([p, q]): kept per dropped one",
        ours=round((after - before) / COMPOSITES),  # whole bytes: the two readings are themselves objects
        peer="Node AbortSignal.any",
        theirs=answer(found, "anyBytes", COMPOSITES),
        unit="B",
        target=Limit(0),
    )
    yield Line(
        what=f"any([p, q]): observers left by {COMPOSITES:,}",
        ours=p.signal.observers + q.signal.observers,
        peer="Node AbortSignal.any",
        theirs=answer(found, "anyObservers", COMPOSITES),
        unit="",
        target=Limit(0),
    )


def listening(measure: Measure, found: Node | None) -> Iterator[Line]:
    """Growth: with a hundred times as many listeners, one costs the same. Node's add looks through all others."""
    fewer = f"itself with {FEW:,}"

    def growth(verb: str, ours: Callable[[int], float], floor: Callable[[int], float]) -> Iterator[Line]:
        samples = measure(
            f"{verb} {MANY:,} listeners, each",
            lambda: ours(MANY),
            {fewer: lambda: ours(FEW), "a list of callables": lambda: floor(MANY)},
        )
        return samples.lines({fewer: AtMost(2)})

    def beside(verb: str, ours: Callable[[int], float], size: int, task: Task) -> Iterator[Line]:
        return measure(
            f"{verb} {size:,} listeners, each", lambda: ours(size), {"Node": asked(found, task, size)}
        ).lines()

    yield from growth("add", listeners.add, listeners.list_add)
    yield from beside("add", listeners.add, SOME, "addListeners")
    yield from growth("abort", listeners.tell, listeners.list_tell)
    yield from beside("abort", listeners.tell, FEW, "tellListeners")


def guard(measure: Measure) -> Iterator[Line]:
    scope, tasks = "anyio.CancelScope", "asyncio.wait of two tasks"
    why = "at the edge on Python 3.11, where finding the current task is a fifth of the guard; 3.12 made that free"
    targets = {scope: AtMost(0.35, why), tasks: AtMost(0.15)}

    def added(what: str, operation: races.Operation) -> Iterator[Line]:
        samples = measure(
            what,
            run(lambda: races.guarded(operation, 5_000)),
            {
                "bare": run(lambda: races.bare(operation, 5_000)),
                scope: run(lambda: races.scoped(operation, 1_000)),
                tasks: run(lambda: races.two_tasks(operation, 500)),
            },
            samples=SHORT,
        )
        return samples.over("bare").lines(targets if operation is races.instant else None)

    yield from added("guard added to an await that does not suspend", races.instant)
    yield from added("guard added to an await of one loop turn", races.one_turn)


def crowd(measure: Measure) -> Iterator[Line]:
    samples = measure(
        f"abort of {CROWD:,} guarded tasks in a TaskGroup, each",
        run(lambda: crowds.aborted(CROWD)),
        {
            "task.cancel()": run(lambda: crowds.raw(CROWD)),
            "anyio task group": run(lambda: crowds.anyio_group(CROWD)),
            "trio nursery": lambda: crowds.trio_nursery(CROWD),
            "asyncio.Event.set": run(lambda: crowds.event_set(CROWD)),
        },
    )
    yield from samples.lines({"task.cancel()": AtMost(2), "anyio task group": AtMost(0.6)})
    samples = measure(
        f"abort of {CROWD:,} guarded tasks without one, each",
        run(lambda: crowds.aborted_bare(CROWD)),
        {"task.cancel()": run(lambda: crowds.raw_bare(CROWD))},
    )
    yield from samples.lines()


def latency(measure: Measure) -> Iterator[Line]:
    samples = measure(
        "abort in a thread until the task runs",
        run(wakes.abort),
        {"call_soon_threadsafe": run(wakes.call_soon_threadsafe)},
        samples=50,
    )
    return samples.lines({"call_soon_threadsafe": AtMost(2)})


def run(main: Callable[[], Coroutine[object, object, float]]) -> Contender:
    """A contender with a loop of its own."""
    return lambda: asyncio.run(main())


def asked(found: Node | None, task: Task, count: int) -> Contender | None:
    """A contender that is Node, where there is one."""
    return None if found is None else lambda: found.ask(task, count)


def answer(found: Node | None, task: Task, count: int) -> float | None:
    """What Node says once; None where there is none, or where it cannot know."""
    said = math.nan if found is None else found.ask(task, count)
    return None if math.isnan(said) else said
