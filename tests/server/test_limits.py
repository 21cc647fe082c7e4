"""Owns the tests of a server's bounds; that each of them holds is shown where it is looked at (`test_api.py`)."""

import dataclasses

import pytest

from safepoint.server import Limits


def test_everything_is_bounded_unless_somebody_says_otherwise():
    assert all(value > 0 for value in dataclasses.astuple(Limits()))


def test_limits_do_not_change_under_a_running_server():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().streams = 1  # type: ignore[misc]
