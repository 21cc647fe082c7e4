"""The stop algebra: requests join to the same in any order and only get stricter; a tree of runs feels them."""

import itertools
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint.abort import AbortController, AbortError, AbortReason
from safepoint.errors import UsageError
from safepoint.run import Stop, StopAck, StopAt, StopRequest
from safepoint.testing import FakeClock

times = st.sampled_from(list(StopAt))


reasons = st.none() | st.builds(AbortReason, st.just("user"), st.sampled_from("abc"))


@st.composite
def some_request(draw: st.DrawFn) -> StopRequest:
    reason = draw(reasons)
    return StopRequest(
        draw(times),
        draw(st.sampled_from(["root", "tree"])),
        draw(st.none() | st.floats(0, 100)),
        reason,
        math.inf if reason is None else draw(st.sampled_from([1.0, 2.0, 3.0])),
        draw(st.none() | st.floats(0, 100)),
    )


requests = some_request()


@given(times, times, times)
def test_times_join_the_same_in_any_order(a: StopAt, b: StopAt, c: StopAt):
    assert a.join(b) is b.join(a)
    assert a.join(b).join(c) is a.join(b.join(c))
    assert a.join(a) is a
    assert a.join(b).includes(a)
    assert a.join(b).includes(b)


def test_times_are_ordered_as_they_are_drawn():
    order = [StopAt.TURN_END, StopAt.AFTER_MODEL, StopAt.SAFE_POINT, StopAt.NOW]
    assert all(late.includes(early) for early, late in itertools.pairwise(order))
    assert not any(early.includes(late) for early, late in itertools.pairwise(order))
    assert StopAt.AFTER_MODEL.join(StopAt.AFTER_TOOLS) is StopAt.SAFE_POINT
    assert not StopAt.AFTER_MODEL.includes(StopAt.AFTER_TOOLS)
    assert not StopAt.AFTER_TOOLS.includes(StopAt.AFTER_MODEL)


@given(requests, requests)
def test_a_joined_request_is_never_weaker(a: StopRequest, b: StopRequest):
    both = a.join(b)
    for each in (a, b):
        assert both.at.includes(each.at)
        assert both.scope == "tree" or each.scope == "root"
        assert each.deadline is None or (both.deadline is not None and both.deadline <= each.deadline)
        assert each.abandon is None or (both.abandon is not None and both.abandon <= each.abandon)
        assert both.join(each) == both
    assert both.abandon in (a.abandon, b.abandon)
    assert (both.reason is None) == (a.reason is None and b.reason is None)


def test_the_oldest_reason_wins_and_one_without_a_reason_has_none_to_give():
    old = StopRequest(StopAt.SAFE_POINT, reason=AbortReason("user", "old"), asked_at=1.0)
    new = StopRequest(StopAt.NOW, reason=AbortReason("user", "new"), asked_at=2.0)
    assert new.join(old).reason is old.reason
    assert StopRequest(StopAt.NOW).join(new).reason is new.reason


def test_now_always_reaches_the_tree():
    assert StopRequest(StopAt.NOW, "root").scope == "tree"
    assert StopRequest(StopAt.SAFE_POINT, "root").join(StopRequest(StopAt.NOW)).scope == "tree"


def family(clock: FakeClock) -> tuple[AbortController, Stop, AbortController, Stop]:
    controller = AbortController()
    child_controller = AbortController(controller.signal)
    root = Stop(controller, clock)
    return controller, root, child_controller, Stop(child_controller, clock, root)


def request(at: StopAt = StopAt.SAFE_POINT, scope: str = "root", **more: object) -> StopRequest:
    return StopRequest(at, scope, **{"reason": AbortReason("user", "enough"), "asked_at": 1.0, **more})  # type: ignore[arg-type]


def test_a_root_request_leaves_the_runs_below_alone_and_a_tree_request_does_not(clock: FakeClock):
    controller, root, _, child = family(clock)
    assert root.join(request(scope="root"))
    assert root.due(StopAt.SAFE_POINT)
    assert not child.requested
    assert root.join(request(scope="tree"))
    assert child.due(StopAt.SAFE_POINT)
    assert child.reason is root.reason
    assert not controller.signal.aborted


def test_a_late_child_inherits_a_tree_request_and_no_root_request(clock: FakeClock):
    _, root, _, _ = family(clock)
    root.join(request(scope="root"))
    assert not Stop(AbortController(), clock, root).requested
    root.join(request(scope="tree"))
    late = Stop(AbortController(), clock, root)
    assert late.due(StopAt.SAFE_POINT)
    grandchild = Stop(AbortController(), clock, late)
    assert grandchild.due(StopAt.SAFE_POINT)


def test_timing_alone_can_be_escalated_in_mid_flight(clock: FakeClock):
    controller, root, child_controller, child = family(clock)
    root.join(request(StopAt.AFTER_MODEL))
    assert not root.due(StopAt.AFTER_TOOLS)
    assert root.join(request(StopAt.AFTER_TOOLS))
    assert root.due(StopAt.SAFE_POINT)
    assert not child.requested
    assert root.join(request(StopAt.NOW))
    assert controller.signal.aborted
    assert child_controller.signal.aborted
    assert not root.join(request(StopAt.SAFE_POINT))


def test_scope_alone_can_be_escalated_in_mid_flight(clock: FakeClock):
    _, root, _, child = family(clock)
    root.join(request(StopAt.AFTER_TOOLS, "root"))
    assert root.join(request(StopAt.TURN_END, "tree"))
    assert child.request.at is StopAt.AFTER_TOOLS
    assert not root.join(request(StopAt.TURN_END, "root"))
    assert root.request.scope == "tree"


def test_now_aborts_the_tree_with_the_first_reason(clock: FakeClock):
    controller, root, child_controller, _ = family(clock)
    first = AbortReason("user", "first")
    root.join(request(reason=first, asked_at=1.0))
    root.join(request(StopAt.NOW, reason=AbortReason("user", "second"), asked_at=2.0))
    assert controller.signal.reason is first
    reason = child_controller.signal.reason
    assert reason is not None
    assert reason.message == "first"


def test_a_safe_point_that_is_not_reached_in_time_becomes_now(clock: FakeClock):
    controller, root, child_controller, child = family(clock)
    root.join(request(scope="tree", deadline=clock.monotonic() + 3))
    assert clock.pending == 1  # one clock is enough for the tree
    clock.advance(2.9)
    assert not root.escalated
    assert child.request.deadline is None
    clock.advance(0.1)
    assert root.escalated
    assert controller.signal.aborted
    assert child_controller.signal.aborted
    assert controller.signal.reason == AbortReason("user", "enough")


def test_a_deadline_only_moves_earlier(clock: FakeClock):
    _, root, _, _ = family(clock)
    start = clock.monotonic()
    root.join(request(deadline=start + 3))
    assert not root.join(request(deadline=start + 9))
    assert root.join(request(deadline=start + 1))
    assert clock.pending == 1
    clock.advance(1)
    assert root.escalated
    assert clock.pending == 0


def test_a_stop_that_becomes_now_by_itself_is_not_escalated(clock: FakeClock):
    _, root, _, _ = family(clock)
    root.join(request(deadline=clock.monotonic() + 3))
    root.join(request(StopAt.NOW))
    clock.advance(10)
    assert not root.escalated
    assert clock.pending == 0


def test_closing_removes_the_run_from_its_parent_and_disarms_its_timer(clock: FakeClock):
    _, root, _, child = family(clock)
    child.join(request(deadline=clock.monotonic() + 3))
    child.close()
    assert clock.pending == 0
    root.join(request(scope="tree", asked_at=0.5, reason=AbortReason("user", "earlier")))
    assert child.reason.message == "enough"
    child.close()  # again is harmless


def test_a_stop_knows_the_error_with_which_it_was_honoured(clock: FakeClock):
    _, root, _, child = family(clock)
    root.join(request(scope="tree"))
    assert root.caused(AbortError(child.reason))
    assert not root.caused(AbortError(AbortReason("user", "enough")))  # equal, but somebody else's
    assert not root.caused(ValueError("enough"))


def test_many_threads_may_ask_at_once_while_children_come_and_go(clock: FakeClock):
    for _ in range(50):
        controller, root, _, _ = family(clock)
        children: list[Stop] = []
        barrier = threading.Barrier(3)

        def ask(at: StopAt, root: Stop = root, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(5)
            for _ in range(20):
                root.join(request(at, "tree"))

        def be_born(root: Stop = root, barrier: threading.Barrier = barrier, into: list[Stop] = children) -> None:
            barrier.wait(5)
            for number in range(50):
                into.append(Stop(None, clock, root))
                if number % 2:
                    into.pop().close()

        threads = [
            threading.Thread(target=ask, args=(StopAt.AFTER_MODEL,)),
            threading.Thread(target=ask, args=(StopAt.AFTER_TOOLS,)),
            threading.Thread(target=be_born),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)
        assert root.request.at is StopAt.SAFE_POINT
        assert [child.request.at for child in children] == [StopAt.SAFE_POINT] * 25
        assert not controller.signal.aborted


async def test_an_ack_of_nothing_has_nothing_to_wait_for():
    with pytest.raises(UsageError, match="unknown"):
        await StopAck("unknown", message="no such run").settled()
