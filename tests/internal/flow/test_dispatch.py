"""Owns the tests that look inside, beside those of `tests/flow/test_dispatch.py`.

The walk: look at the signal, run the node, follow its output, again; then the clean-ups, on every path.
"""

import asyncio
import logging

import pytest

from safepoint import Completed
from safepoint.flow import NodeContext
from safepoint.flow.dispatch import LEAVE_SECONDS
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.flow.test_dispatch import tidied
from tests.kit.flows import FOREVER, NodeRecorder, Trail


async def test_a_clean_up_that_fails_or_hangs_is_a_warning_and_not_the_outcome(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    flow = NodeRecorder().line("flow", "a")
    after: list[str] = []

    @flow.cleanup
    async def breaks(state: Trail) -> None:
        raise LookupError("broken")

    @flow.cleanup(within=2.0)
    async def hangs(state: Trail, ctx: NodeContext[None]) -> None:
        await ctx.signal.sleep(FOREVER)

    @flow.cleanup(within=2.0)
    async def ignores(state: Trail) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    tidied(flow, after)
    gate = asyncio.Event()
    with caplog.at_level(logging.WARNING, logger="safepoint"):
        async with flow.start(Trail()) as run:
            await clock.elapse(2 * (2.0 + LEAVE_SECONDS))
            receipt = await run.stop().settled()
            result = await run
            gate.set()
            await drain_ready_tasks()
    assert isinstance(result.outcome, Completed)
    assert after == ["tidy after ['a']"]
    told = "\n".join(receipt.warnings)
    assert "the clean-up breaks raised LookupError: broken" in told
    assert "the clean-up hangs took too long" in told
    assert "the clean-up ignores took too long" in told
