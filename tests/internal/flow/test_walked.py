"""How a node and a walk can end: two closed unions."""

from typing import get_args

from safepoint.flow.walked import Arrived, Broken, Interrupted, Left, NodeEnd, Returned, StepEnd, Walked


def test_the_unions_are_closed():
    assert set(get_args(StepEnd)) == {Returned, Interrupted, Broken}
    assert set(get_args(NodeEnd)) == {Left, Interrupted, Broken}
    assert set(get_args(Walked)) == {Arrived, Interrupted, Broken}


def test_a_failure_is_by_default_no_timeout_and_keeps_nothing():
    broken = Broken(LookupError("x"), "a/b")
    assert (broken.timed_out, broken.kept) == (False, None)
    assert Interrupted().error is None
