"""Owns the tests that look inside, beside those of `tests/server/test_serve.py`.

Owns the tests of serving: the address, the token, and an end in order, in processes that are really ended.
"""

import pytest

from safepoint.server.serve import is_loopback


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_loopback_is_known(address: str):
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "example.com", "", "127.0.0.1.nip.io"])
def test_everything_else_can_be_reached_by_others(address: str):
    assert not is_loopback(address)
