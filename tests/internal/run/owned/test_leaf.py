"""Owns the tests that look inside, beside those of `tests/run/owned/test_leaf.py`.

A leaf's side of its account: what is refused and waited for, and what the model is told of a call that goes on.
"""

import pytest

from safepoint.run import Policy
from safepoint.run.leaf_run import LeafRun
from safepoint.testing import FakeClock
from tests.kit.leaves import LeafRig

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
]


@pytest.mark.parametrize(
    ("policy", "at_once", "after_grace"),
    [
        (Policy(), True, True),
        (Policy(on_abort="finish", grace=5), False, True),
        (Policy(on_abort="cooperate"), False, False),
    ],
    ids=["interrupt", "finish", "cooperate"],
)
async def test_when_a_leaf_is_being_interrupted_its_policy_says(
    clock: FakeClock, policy: Policy, at_once: bool, after_grace: bool
):
    bench = LeafRig()
    run = LeafRun(bench.ctx, "tool", "await", policy)
    run.begin()
    assert not run.being_interrupted
    bench.controller.abort("stop")
    assert run.being_interrupted is at_once
    clock.advance(5)
    assert run.being_interrupted is after_grace
    run.finished()


async def test_its_own_limit_interrupts_a_leaf_that_only_sees_the_signal(clock: FakeClock):
    bench = LeafRig()
    run = LeafRun(bench.ctx, "tool", "await", Policy(on_abort="cooperate", timeout=2))
    run.begin()
    clock.advance(2)
    assert run.being_interrupted
    run.finished()
