"""ignore=: what matches is not counted and not hidden either, and a rule that cannot be meant is refused."""

import pytest

from safepoint.errors import UsageError
from safepoint.testing import Ignore


def test_things_that_are_plain_text_are_known_by_it():
    assert Ignore(name="pid*").covers("no_process_left", "pid 5: sleep", None)


def test_a_rule_that_ignores_everything_is_refused():
    with pytest.raises(UsageError, match="would ignore everything"):
        Ignore()
    with pytest.raises(UsageError, match="would ignore everything"):
        Ignore(name="*", place="*")


def test_a_pattern_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"Ignore\(place=…\) must be a pattern, not 7"):
        Ignore(place=7)  # type: ignore[arg-type]


def test_a_rule_shows_what_it_was_given():
    assert repr(Ignore(law="ends", at="a*")) == "Ignore(law='ends', at='a*')"
