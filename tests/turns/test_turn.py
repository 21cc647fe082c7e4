"""Owns the tests of one turn: planning → active → over, and requests that are bound to it."""

import pytest

from safepoint import AbortController, UsageError
from safepoint.abort import Clock
from safepoint.run import Stop, StopAt, StopRequest
from safepoint.testing import FakeClock
from safepoint.turns import Preempt, PreemptAck, Turn, TurnPlan


def planned(clock: Clock, loop_stop: Stop | None = None) -> Turn[str]:
    return Turn.plan(["a"], loop_stop or Stop(None, clock), clock)


def asked(turn: Turn[str], at: StopAt = StopAt.NOW, **options: float) -> PreemptAck:
    ack = PreemptAck()
    turn.request(Preempt(at, **options), ack)
    return ack


def test_a_request_waits_for_the_turn_that_is_planned_and_is_asked_for_when_it_begins(clock: FakeClock) -> None:
    turn, controller = planned(clock), AbortController()
    ack = asked(turn)
    assert (turn.phase, ack.status, turn.preempted) == ("planning", None, False)
    turn.activate(["a"], controller)
    assert (turn.phase, ack.status, turn.preempted) == ("active", "submitted", True)
    assert controller.signal.reason is not None
    assert controller.signal.reason.kind == "preempted"


def test_a_request_to_an_active_turn_is_asked_for_at_once(clock: FakeClock) -> None:
    turn, controller = planned(clock), AbortController()
    turn.activate(["a"], controller)
    ack = asked(turn, StopAt.AFTER_TOOLS)
    assert ack.status == "submitted"
    assert (turn.stop.request.at, turn.stop.request.scope) == (StopAt.AFTER_TOOLS, "root")
    assert not controller.signal.aborted


def test_a_request_to_a_turn_that_is_over_is_answered_so(clock: FakeClock) -> None:
    turn = planned(clock)
    turn.end("turn_over")
    assert asked(turn).status == "turn_over"
    assert asked(turn, delay=5.0).status == "turn_over"
    assert clock.pending == 0


def test_the_end_answers_all_that_wait_and_disarms_their_timers(clock: FakeClock) -> None:
    turn = planned(clock)
    waiting, delayed = asked(turn), asked(turn, delay=5.0)
    turn.end("loop_stopped")
    assert (waiting.status, delayed.status, clock.pending) == ("loop_stopped", "loop_stopped", 0)


def test_a_delayed_request_is_asked_for_when_it_is_due(clock: FakeClock) -> None:
    turn, controller = planned(clock), AbortController()
    ack = asked(turn, delay=5.0)
    turn.activate(["a"], controller)
    clock.advance(4.9)
    assert ack.status is None
    assert not controller.signal.aborted
    clock.advance(0.1)
    assert ack.status == "submitted"
    assert controller.signal.aborted


def test_a_delayed_request_that_fell_due_in_planning_is_asked_for_when_the_turn_begins(clock: FakeClock) -> None:
    turn, controller = planned(clock), AbortController()
    ack = asked(turn, delay=1.0)
    clock.advance(2)
    assert ack.status is None
    turn.activate(["a"], controller)
    assert (str(ack), controller.signal.aborted) == ("PreemptAck(submitted)", True)


def test_a_delayed_request_that_falls_due_after_the_loop_was_stopped_leaves_the_turn_alone(clock: FakeClock) -> None:
    loop_stop, controller = Stop(None, clock), AbortController()
    turn = planned(clock, loop_stop)
    turn.activate(["a"], controller)
    ack = asked(turn, delay=1.0)
    loop_stop.join(StopRequest(StopAt.TURN_END, "tree"))
    clock.advance(1)
    assert (ack.status, controller.signal.aborted, turn.preempted) == ("loop_stopped", False, False)


def test_requests_join_and_the_earliest_deadline_counts(clock: FakeClock) -> None:
    turn, controller = planned(clock), AbortController()
    turn.activate(["a"], controller)
    asked(turn, StopAt.AFTER_MODEL, within=9.0)
    asked(turn, StopAt.AFTER_TOOLS, within=3.0)
    assert turn.stop.request.at is StopAt.SAFE_POINT
    assert turn.stop.request.deadline == clock.monotonic() + 3
    clock.advance(3)
    assert controller.signal.aborted
    assert turn.stop.escalated


def test_only_a_turn_that_is_being_planned_can_begin(clock: FakeClock) -> None:
    turn = planned(clock)
    turn.activate(["a"], AbortController())
    with pytest.raises(UsageError, match="is active"):
        turn.activate(["a"], AbortController())
    turn.end("turn_over")
    with pytest.raises(UsageError, match="is over"):
        turn.activate(["a"], AbortController())


def test_a_turn_that_is_over_hangs_on_the_loop_no_more(clock: FakeClock) -> None:
    loop_stop = Stop(None, clock)
    turn, controller = planned(clock, loop_stop), AbortController()
    turn.activate(["a"], controller)
    turn.end("turn_over")
    loop_stop.join(StopRequest(StopAt.NOW))
    assert not controller.signal.aborted
    assert not loop_stop._children


async def work(ctx: object, value: object) -> None:
    """Nothing."""


@pytest.mark.parametrize(
    "options",
    [{"work": "text"}, {"timeout": -1}, {"timeout": "soon"}, {"signal": "stop"}, {"turn_id": 7}, {"then": "done"}],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused_when_it_is_written(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TurnPlan(**{"work": work, **options})  # type: ignore[arg-type]
