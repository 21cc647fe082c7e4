"""Leaves of each kind, aborted at every point: zero violations of the laws."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from safepoint.abort import current_clock
from safepoint.run import Context, Outcome, Policy, Retry, ask, leaf, settle, stream, wait
from safepoint.testing import FakeClock, Probe, abort_everywhere
from tests.run import leaf_functions

Work = Callable[[Context, Probe], Coroutine[Any, Any, object]]


async def pause(ctx: Context, seconds: float) -> str:
    await current_clock().sleep(seconds)
    return "rested"


async def awaited(ctx: Context, probe: Probe) -> object:
    await leaf(ctx, pause, 1)
    ctx.signal.raise_if_aborted()  # the leaf may have kept its result: the state is the truth
    probe.record("between")
    return await leaf(ctx, pause, 1)


async def left_to_finish(ctx: Context, probe: Probe) -> object:
    return await leaf(ctx, pause, 1, policy=Policy(on_abort="finish", grace=0.5))


async def in_a_task(ctx: Context, probe: Probe) -> object:
    return await leaf(ctx, pause, 1, policy=Policy(abandon_after=5, timeout=60))


async def streamed(ctx: Context, probe: Probe) -> object:
    async def source() -> AsyncIterator[int]:
        try:
            for number in range(3):
                await current_clock().sleep(1)
                yield number
        finally:
            await asyncio.sleep(0)

    async with stream(ctx, source()) as chunks:
        return [chunk async for chunk in chunks]


async def retried(ctx: Context, probe: Probe) -> object:
    attempts = iter([ConnectionError("down"), ConnectionError("down"), None])

    async def attempt() -> str:
        probe.record("attempt")
        if error := next(attempts):
            raise error
        return "up"

    return await Retry(attempts=3, delay=1, jitter=0).run(attempt, ctx=ctx)


async def asked(ctx: Context, probe: Probe) -> object:
    async def person(question: str) -> str:
        await current_clock().sleep(1)
        return "yes"

    return await ask(ctx, "Really?", person)


async def nested(ctx: Context, probe: Probe) -> object:
    async def inner(leaf_ctx: Context, seconds: float) -> object:
        await wait(leaf_ctx, seconds)
        return await leaf(leaf_ctx, pause, seconds)

    async def outer(leaf_ctx: Context, _: object) -> object:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(leaf(leaf_ctx, inner, seconds)) for seconds in (1, 2)]
        return [task.result() for task in both]

    return await leaf(ctx, outer)


async def cleaned_up(ctx: Context, probe: Probe) -> object:
    async def cleanup() -> None:
        await current_clock().sleep(1)
        probe.record("cleaned", cleanup=True)

    ctx.on_exit(cleanup)
    return await leaf(ctx, pause, 1)


WORKS = [awaited, left_to_finish, in_a_task, streamed, retried, asked, nested, cleaned_up]


def scenario_of(work: Work) -> Callable[[Probe], Coroutine[Any, Any, Outcome[object]]]:
    async def scenario(probe: Probe) -> Outcome[object]:
        return await settle(Context(signal=probe.signal, emit=probe.event), work, probe)

    scenario.__name__ = work.__name__
    return scenario


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_a_leaf_can_be_stopped_at_every_point(work: Work):
    report = abort_everywhere(scenario_of(work), clock=FakeClock)
    assert len(report.points) >= 2
    assert not report.not_reached


def test_a_leaf_in_a_thread_can_be_stopped_at_every_point():
    def body(ctx: Context, _: object) -> bool:
        return ctx.signal.wait(0.01)

    async def threaded(ctx: Context, probe: Probe) -> object:
        await leaf(ctx, body)
        return await leaf(ctx, body)

    abort_everywhere(scenario_of(threaded))


def test_a_leaf_in_a_process_can_be_stopped_at_every_point():
    async def isolated(ctx: Context, probe: Probe) -> object:
        policy = Policy(isolation="process", grace=0.5)
        return (await leaf(ctx, leaf_functions.process_double, 21, policy=policy))[0]

    report = abort_everywhere(scenario_of(isolated), modes=("abort", "cancel"), seconds=20)
    assert len(report.points) >= 2
