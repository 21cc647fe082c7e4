"""Owns the tests that look inside, beside those of `tests/session/test_turn.py`.

A turn as its caller holds it: one id for life, a status, a stop, a result.
"""

import pytest

from safepoint.errors import UsageError
from safepoint.session.turn import check_id
from tests.session.test_turn import turn


@pytest.mark.parametrize("given", ["", "half \ud83d"])
def test_an_id_that_no_store_can_keep_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="the id of a turn"):
        turn(given)
    with pytest.raises(UsageError, match="the id of a session"):
        check_id("session", given)
