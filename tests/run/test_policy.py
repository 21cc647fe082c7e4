"""The policy of a leaf: small, frozen, and refused where it makes no sense."""

import pytest

from safepoint.errors import UsageError
from safepoint.run import Policy


def test_the_defaults_interrupt_at_once_warn_after_three_seconds_and_never_abandon():
    policy = Policy()
    assert (policy.on_abort, policy.warn_after, policy.abandon_after, policy.timeout) == ("interrupt", 3.0, None, None)
    assert policy.isolation == "thread"


@pytest.mark.parametrize("name", ["grace", "timeout", "warn_after", "abandon_after"])
def test_negative_times_are_refused_by_name(name: str):
    with pytest.raises(UsageError, match=f"{name} must be"):
        Policy(**{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "allowed"), [("on_abort", "interrupt, cooperate, finish"), ("isolation", "thread, process")]
)
def test_unknown_words_are_refused_with_the_known_ones(name: str, allowed: str):
    with pytest.raises(UsageError, match=f"{name} must be one of {allowed}, not 'maybe'"):
        Policy(**{name: "maybe"})  # type: ignore[arg-type]
