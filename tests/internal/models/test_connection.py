"""Owns the tests that look inside, beside those of `tests/models/test_handshake.py`.

A stop in the TLS handshake closes its socket at once; everything else about a client stays as it was.
"""

import pytest

from safepoint.models.connection import close_interrupted_handshakes
from tests.models.test_handshake import for_proxy

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def test_every_pool_of_a_client_is_changed_that_of_a_proxy_too(monkeypatch: pytest.MonkeyPatch):
    from ollama import AsyncClient
    from openai import AsyncOpenAI

    assert close_interrupted_handshakes(AsyncOpenAI(api_key="any")) == 1
    assert close_interrupted_handshakes(AsyncClient()) == 1
    for_proxy(monkeypatch, 1)
    assert close_interrupted_handshakes(AsyncOpenAI(api_key="any")) == 2


def test_a_client_of_an_unknown_make_is_left_as_it_is():
    class Renamed:
        _client = object()

    assert close_interrupted_handshakes(Renamed()) == 0
    assert close_interrupted_handshakes(object()) == 0
