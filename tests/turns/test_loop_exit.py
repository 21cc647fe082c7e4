"""Owns the tests of how a loop ended: a report whose buckets add up."""

from safepoint.turns import CheckpointReport, LoopExit


def test_accepted_is_the_sum_of_all_buckets() -> None:
    ended = LoopExit[str](
        handled=3, unhandled=["a"], interrupted=["b"], preempted=["c"], failed=["d"], dropped=["e", "f"], late=["g"]
    )
    assert ended.accepted == 9, "what was refused was not accepted"


def test_a_loop_that_did_nothing_ended_well() -> None:
    ended = LoopExit[str]()
    assert (ended.reason, ended.accepted, ended.stop_cause, ended.checkpoint) == (None, 0, "", CheckpointReport())
    assert ended.checkpoint.status == "none"


def test_two_exits_share_no_list() -> None:
    first, second = LoopExit[str](), LoopExit[str]()
    first.late.append("a")
    assert second.late == []
