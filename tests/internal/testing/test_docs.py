"""Owns the tests that look inside, beside those of `tests/internal/testing/test_docs.py`.

The page on testing: its examples run, and what it says of names is true.
"""

import re

from safepoint.testing import DEFAULT_LAWS, FakeClock, abort_everywhere
from safepoint.testing.laws import works_again
from tests.testing.test_docs import NAMES, PAGE, scenario


def test_a_law_is_left_out_as_shown():
    [shown] = re.findall(r"`(laws=\[.*?\])`", PAGE)
    laws = eval(shown.removeprefix("laws="), {**NAMES, "works_again": works_again})
    assert len(laws) == len(DEFAULT_LAWS) - 1
    assert abort_everywhere(scenario, clock=FakeClock, laws=laws).aborted > 0
