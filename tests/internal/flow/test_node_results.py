"""How a node and a walk can end: two closed unions."""

from typing import get_args

from safepoint.flow.execution import (
    BodyReturned,
    GraphEnd,
    GraphFinished,
    NodeDone,
    NodeEnd,
    NodeFailed,
    NodeInterrupted,
    StepEnd,
)


def test_the_unions_are_closed():
    assert set(get_args(StepEnd)) == {BodyReturned, NodeInterrupted, NodeFailed}
    assert set(get_args(NodeEnd)) == {NodeDone, NodeInterrupted, NodeFailed}
    assert set(get_args(GraphEnd)) == {GraphFinished, NodeInterrupted, NodeFailed}


def test_a_failure_is_by_default_no_timeout_and_keeps_nothing():
    broken = NodeFailed(LookupError("x"), "a/b")
    assert (broken.timed_out, broken.kept) == (False, None)
    assert NodeInterrupted().error is None
