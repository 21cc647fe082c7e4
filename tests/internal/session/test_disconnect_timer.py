"""Who is there: when the last reader has gone for so long, somebody is told."""

import pytest

from safepoint.errors import UsageError
from safepoint.session.disconnect_timer import DisconnectTimer
from safepoint.testing import FakeClock


def test_when_the_last_reader_has_gone_for_so_long_somebody_is_told(clock: FakeClock) -> None:
    told: list[float] = []
    presence = DisconnectTimer(clock, 5.0, lambda: told.append(clock.monotonic()))
    presence.reader_joined()
    presence.reader_joined()
    presence.reader_left()
    clock.advance(60)
    assert told == [], "one is still there"
    presence.reader_left()
    clock.advance(4.9)
    assert told == []
    clock.advance(0.2)
    assert told == [1065.0]


def test_a_reader_that_comes_back_in_time_changes_everything(clock: FakeClock) -> None:
    told: list[int] = []
    presence = DisconnectTimer(clock, 5.0, lambda: told.append(1))
    presence.reader_joined()
    presence.reader_left()
    clock.advance(4)
    presence.reader_joined()
    clock.advance(60)
    assert told == []
    assert clock.pending == 0


def test_without_a_grace_nobody_is_told(clock: FakeClock) -> None:
    presence = DisconnectTimer(clock, None, lambda: pytest.fail("a disconnect is not a stop"))
    presence.reader_joined()
    presence.reader_left()
    clock.advance(10_000)
    assert clock.pending == 0


def test_after_the_end_nothing_is_waited_for(clock: FakeClock) -> None:
    presence = DisconnectTimer(clock, 5.0, lambda: pytest.fail("it is over"))
    presence.reader_joined()
    presence.reader_joined()
    presence.reader_left()
    presence.end()
    presence.reader_left()
    assert clock.pending == 0, "also a reader that leaves after the end"
    clock.advance(60)


@pytest.mark.parametrize("grace", [-1.0, float("nan")])
def test_a_grace_that_is_no_time_is_refused(clock: FakeClock, grace: float) -> None:
    with pytest.raises((UsageError, ValueError), match="on_disconnect"):
        DisconnectTimer(clock, grace, lambda: None)


def test_a_turn_that_begins_while_nobody_is_there_counts_from_its_beginning(clock: FakeClock) -> None:
    told: list[float] = []
    presence = DisconnectTimer(clock, 5.0, lambda: told.append(clock.monotonic()))
    presence.turn_started()
    clock.advance(3)
    presence.turn_started()
    clock.advance(1.9)
    assert told == []
    clock.advance(0.2)
    assert len(told) == 1, "the first of the turns counts"
    presence.turn_started()
    clock.advance(6)
    assert len(told) == 2, "and for a later turn it begins anew"


def test_a_turn_that_begins_while_somebody_is_there_starts_no_clock(clock: FakeClock) -> None:
    presence = DisconnectTimer(clock, 5.0, lambda: pytest.fail("somebody is there"))
    presence.reader_joined()
    presence.turn_started()
    clock.advance(60)
    assert clock.pending == 0
    presence.reader_left()
    presence.reader_joined()
    presence.turn_started()
    clock.advance(60)
    assert clock.pending == 0
