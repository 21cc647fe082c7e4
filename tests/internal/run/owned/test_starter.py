"""Owns the tests that look inside, beside those of `tests/run/owned/test_starter.py`.

Who started a program: a stop ends no program under somebody who could not be kept from using what was cut.
"""

import pytest

from safepoint.run.owned.starter import Starter

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
]


def test_nobody_needs_a_program_that_nobody_waits_for():
    assert not Starter().needs_program()
