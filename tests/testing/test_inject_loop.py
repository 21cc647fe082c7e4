"""The loop of a run: tasks stay what they are, every suspension is seen, fake time jumps only when all wait."""

from safepoint.testing import FakeClock


def test_the_next_timer_of_a_fake_clock_is_the_first_that_is_armed():
    clock = FakeClock()
    assert clock.next_timer() is None
    first, _ = clock.call_at(1001, print), clock.call_at(1002, print)
    assert clock.next_timer() == 1001
    first.disarm()
    assert clock.next_timer() == 1002
