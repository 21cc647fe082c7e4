"""Owns the tests that look inside, beside those of `tests/agent/test_algebra.py`.

Timing × scope × escalation over three levels of agents. The numbers are those of the turn loop's rules C-1 … C-46.

Where Safepoint differs on purpose the docstring says so: NOW always takes the whole tree and is a real abort; leaving
out `at` leaves the timing as it is; what had finished is kept on NOW.

"""

import pytest

from safepoint import Aborted, Completed
from safepoint.run import StopAt
from safepoint.run.stop import Scope
from tests.agent.test_algebra import AFTER_MODEL, AFTER_TOOLS, BEGUN, NOW, SAFE_POINT, Tree
from tests.kit.agents import statuses, stopped


@pytest.mark.parametrize(
    ("at", "scope", "then", "of_root"),
    [
        (AFTER_TOOLS, "root", ["dig 2", "note"], ["completed", "completed"]),
        (SAFE_POINT, "root", ["dig 2", "note"], ["completed", "completed"]),
        (AFTER_MODEL, "root", ["dig 2", "note"], ["completed", "completed", "not_started"]),
        (AFTER_TOOLS, "tree", [], ["interrupted", "completed"]),
        (SAFE_POINT, "tree", [], ["interrupted", "completed"]),
        (AFTER_MODEL, "tree", [], ["interrupted", "completed"]),
        (NOW, "root", [], ["interrupted", "interrupted"]),
        (NOW, "tree", [], ["interrupted", "interrupted"]),
    ],
    ids=lambda value: value.name if isinstance(value, StopAt) else value if isinstance(value, str) else "",
)
async def test_timing_and_scope_are_independent_over_three_levels(
    at: StopAt, scope: Scope, then: list[str], of_root: list[str]
):
    """C-2, C-29, C-30, C-39: a safe-point stop of the root leaves the levels below alone unless asked for the tree.

    Differs from C-39 on purpose: NOW takes the whole tree whatever the scope says; no child outlives its parent.
    """
    tree = Tree()
    await tree.inside()
    tree.run.stop(at, scope=scope, reason="enough")
    outcome = await tree.run if at is NOW else await tree.end()
    partial = stopped(outcome)
    assert sorted(tree.steps[:3]) == sorted(BEGUN)
    assert tree.steps[3:] == then
    assert statuses(partial) == of_root
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "enough"
    assert outcome.receipt.still_running == ()


@pytest.mark.parametrize(("at", "scope"), [(NOW, None), (AFTER_TOOLS, "tree"), (AFTER_MODEL, "tree")])
async def test_c44_after_a_stop_of_the_tree_a_resume_begins_at_the_deepest_and_asks_nobody_twice(
    at: StopAt, scope: Scope | None
):
    tree = Tree()
    await tree.inside()
    tree.run.stop(at, scope=scope)
    partial = stopped(await tree.end() if scope else await tree.run)
    before = list(tree.asked)
    tree.release()
    tree.run = tree.agent.run(resume=partial)
    outcome = await tree.run
    assert isinstance(outcome, Completed)
    assert outcome.value.text == "root"
    assert tree.asked == ["root", "mid", "low", "low", "low", "mid", "mid", "root", "root"], before
    again = [*BEGUN] if at is NOW else []
    assert sorted(tree.steps) == sorted([*BEGUN, *again, "dig 2", "note", "after"]), "nothing finished ran twice"
