"""Owns the tests that look inside, beside those of `tests/flow/test_flow_run.py`.

One execution of a flow: stopped at safe points, saved before anyone is told.
"""

from safepoint import AbortController, Aborted
from safepoint.flow.flow_run import SAVE_SECONDS
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.flow.test_flow_run import Failing
from tests.kit.flows import NodeRecorder, Trail


async def test_a_store_that_hangs_does_not_keep_a_stopped_flow(clock: FakeClock):
    lab, store = NodeRecorder(), Failing()
    store.hanging = True
    controller = AbortController()
    flow = lab.line("flow", "a", "b")
    async with flow.start(Trail(), signal=controller.signal, checkpoints=store, checkpoint_id="run") as run:
        await drain_ready_tasks()
        controller.abort("enough")
        await clock.elapse(SAVE_SECONDS)
        assert run.finished
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, lab.ran) == ("b", ["a"])
    assert [error.code for error in result.errors] == ["checkpoint_failed"]
