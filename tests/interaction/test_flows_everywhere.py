"""Flows of every shape, stopped at every point, written down, resumed, stopped again: as if nobody had stopped them."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from safepoint import Aborted, Completed, Failed
from safepoint.abort import current_clock
from safepoint.flow import Checkpoint, Flow, FlowResult, FlowRun
from safepoint.run import MemoryCheckpoints, StopAt
from safepoint.testing import FakeClock, Probe, abort_everywhere
from tests.conftest import TORTURE, counts
from tests.flow.plans import Each, Log, Node, Par, Part, Sub, World, plans

STEPS = 3000  # more turns of the loop than any flow here takes


def examples(usual: int, full: int) -> settings:
    """The usual ones are always the same: what they find, everybody finds."""
    phases = [phase for phase in Phase if phase is not Phase.explain]
    return settings(
        max_examples=counts(usual, full),
        derandomize=not TORTURE,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Whole:
    """What a plan comes to when nobody stops it."""

    state: Log
    executed: Counter[str]
    world: World
    steps: int


async def whole_of(plan: tuple[Part, ...]) -> Whole:
    world = World(breaks=False)
    run = world.build(plan).start(Log())
    steps = await until_done(run)
    result = await run
    assert isinstance(result.outcome, Completed), result.outcome
    return Whole(result.state, Counter(result.executed), world, steps)


async def until_done(run: FlowRun[Any], at: int = STEPS, how: StopAt = StopAt.NOW) -> int:
    """Turn the loop until the run has ended; stop it after so many turns. Gives back how many it took."""
    async with run:
        for step in range(STEPS):
            if run.finished:
                return step
            if step == at:
                run.stop(how, reason=f"after {at} turns")
            await asyncio.sleep(0)
    raise AssertionError(f"it does not end: {run.cursor}")


def check_stopped(result: FlowResult[Log], before: FlowResult[Log] | None) -> Checkpoint:
    """Cursor, executed and receipt agree, and say no less than before. Gives back the checkpoint, read from JSON."""
    assert isinstance(result.outcome, Aborted | Failed), result.outcome
    assert result.outcome.receipt.resume == result.cursor
    assert not result.outcome.receipt.still_running
    assert result.outcome.partial is result.state
    if before is not None:
        assert result.executed[: len(before.executed)] == before.executed
        assert result.run_id == before.run_id
    checkpoint = Checkpoint.from_result(result)
    assert checkpoint.cursor == result.cursor
    back = Checkpoint.from_json(checkpoint.to_json())
    assert back == checkpoint
    return back


async def chain(flow: Flow[Log, Any], stops: list[tuple[int, StopAt]]) -> FlowResult[Log]:
    """Run, stop, write down, resume, stop again, … until it is done."""
    result: FlowResult[Log] | None = None
    resume: dict[str, Any] = {}
    for at, how in [*stops, *[(STEPS, StopAt.NOW)] * 200]:
        run = flow.start(*([] if resume else [Log()]), **resume)
        await until_done(run, at, how)
        before, result = result, await run
        if result.cursor is None:
            return result
        resume = {"resume": check_stopped(result, before)}
    raise AssertionError(f"it never completes: {result}")


def check_whole(result: FlowResult[Log], world: World, whole: Whole) -> None:
    """It ended as it would have without a stop."""
    assert result.state == whole.state
    assert Counter(result.executed) == whole.executed
    assert world.effects == whole.world.effects


@given(plans)
@examples(15, 150)
def test_a_flow_that_is_stopped_anywhere_again_and_again_ends_as_if_nobody_had(plan: tuple[Part, ...]):
    async def main() -> None:
        whole = await whole_of(plan)
        note(f"{whole.steps} turns")
        for at in range(0, whole.steps + 1, max(1, whole.steps // counts(12, 400))):
            world = World(breaks=True)
            result = await chain(world.build(plan), [(at, StopAt.NOW)] * 5)
            check_whole(result, world, whole)

    asyncio.run(main())


@given(plans, st.data())
@examples(40, 2000)
def test_a_flow_that_is_stopped_at_random_in_both_ways_ends_as_if_nobody_had(
    plan: tuple[Part, ...], data: st.DataObject
):
    stop = st.tuples(st.integers(0, 40), st.sampled_from([StopAt.NOW, StopAt.SAFE_POINT]))
    stops = data.draw(st.lists(stop, max_size=12))

    async def main() -> None:
        whole = await whole_of(plan)
        world = World(breaks=True)
        check_whole(await chain(world.build(plan), stops), world, whole)

    asyncio.run(main())


@given(plans)
@examples(12, 100)
def test_a_stop_at_a_safe_point_interrupts_no_node(plan: tuple[Part, ...]):
    plan = tuple(_without_safe_points(part) for part in plan)

    async def main() -> None:
        whole = await whole_of(plan)
        for at in range(0, whole.steps + 1, max(1, whole.steps // counts(10, 400))):
            world = World(breaks=False)
            result = await chain(world.build(plan), [(at, StopAt.SAFE_POINT)] * 3)
            check_whole(result, world, whole)
            assert world.ran == whole.world.ran  # each exactly once

    asyncio.run(main())


def _without_safe_points(part: Part) -> Part:
    """A node that stops at a safe point inside runs again from there, which is another matter."""
    match part:
        case Node(pauses=pauses):
            return Node(pauses)
        case Sub(parts=parts, mapped=mapped, rounds=rounds):
            return Sub(tuple(map(_without_safe_points, parts)), mapped, rounds)
        case Par(branches=branches, collect=collect):
            return Par(tuple(tuple(map(_without_safe_points, parts)) for parts in branches), collect)
        case Each(items=items, body=body, parts=parts, source=source, concurrency=concurrency, collect=collect):
            inner = tuple(map(_without_safe_points, parts))
            return Each(items, Node(body.pauses), inner, source, concurrency, collect)


SHAPES: dict[str, tuple[Part, ...]] = {
    "line": (Node(), Node(2, safe=True)),
    "subflow": (Sub((Node(), Sub((Node(),), mapped=True)), rounds=2),),
    "parallel": (Par(((Node(), Node(2)), (Node(0), Sub((Node(),))))),),
    "scatter": (Each(3, Node(), source="async"), Each(2, Node(), (Node(), Node(safe=True)))),
    "all": (Par(((Each(2, Node(), (Par(((Node(),), (Node(2),))),)),), (Sub((Node(),), mapped=True),))), Node()),
}


async def _second() -> None:
    await current_clock().sleep(1)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_flow_keeps_the_laws_at_every_point(shape: str):
    stopped: list[tuple[World, MemoryCheckpoints]] = []
    plan = SHAPES[shape]

    async def scenario(probe: Probe) -> FlowResult[Log]:
        world, store = World(breaks=False, pause=_second), MemoryCheckpoints()
        stopped.append((world, store))
        run = world.build(plan).start(Log(), signal=probe.signal, checkpoints=store, checkpoint_id="run")
        run._ctx.send_events_to(probe.event)  # also what comes after the reader has gone
        return await run

    report = abort_everywhere(scenario, clock=FakeClock)
    assert len(report.points) >= 5
    assert not report.not_reached

    async def check() -> None:
        whole = await whole_of(plan)
        resumed = 0
        for world, store in stopped:
            checkpoint = await Checkpoint.recall(store, "run")
            if checkpoint is not None:
                world._pause = _turn
                result = await world.build(plan).execute(resume=checkpoint)
                check_whole(result, world, whole)
                resumed += 1
        assert resumed > len(report.points)

    asyncio.run(check())


async def _turn() -> None:
    await asyncio.sleep(0)
