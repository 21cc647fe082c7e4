"""The watch of a leaf: the gate before its body, and what is due when it goes on after the abort."""

import asyncio
import logging
import threading
import time

import pytest

from safepoint.abort import AbortController, AbortSignal, AbortTimeout
from safepoint.run import Aborted, Context, Policy, leaf, settle

SECONDS = 10.0


async def test_a_logging_handler_that_a_leaf_blocks_delays_no_deadline_and_the_leaf_is_abandoned():
    """A log shipper whose server hangs: the leaf holds the handler's lock, for which the warning then waits."""
    holds, gate = threading.Event(), threading.Event()

    class Shipper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "ship me":
                holds.set()
                gate.wait(SECONDS)

    def ship(ctx: Context, value: object) -> None:
        logging.getLogger("shop").error("ship me")

    async def work(ctx: Context, value: object) -> None:
        await leaf(ctx, ship, policy=Policy(warn_after=0.1, abandon_after=0.4))

    handler, controller = Shipper(), AbortController()
    logging.getLogger().addHandler(handler)
    try:
        settling = asyncio.ensure_future(settle(Context(signal=controller.signal), work, None))
        assert await asyncio.to_thread(holds.wait, SECONDS)
        controller.abort()
        await asyncio.sleep(0.2)  # real time: the warning is due, and waits for the handler
        began = time.monotonic()
        with pytest.raises(AbortTimeout):
            await AbortSignal.timeout(0.1).run(asyncio.get_running_loop().create_future())
        assert time.monotonic() - began < 1
        async with asyncio.timeout(SECONDS / 2):
            outcome = await settling
    finally:
        gate.set()
        logging.getLogger().removeHandler(handler)
    assert isinstance(outcome, Aborted)
    [entry] = outcome.receipt.still_running
    assert entry.name == "run/ship"
