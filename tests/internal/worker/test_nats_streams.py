"""Owns the tests that look inside, beside those of `tests/worker/test_nats_streams.py`.

Owns the tests of names in JetStream: two keys never become one subject, and streams are made once.
"""

from typing import Any

import nats as client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint.errors import UsageError
from safepoint.worker import BrokerError
from safepoint.worker.nats.streams import configs, consumer_of, ensure, key_of, subject_of
from tests.kit.nats import nats_server, shared_url

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


keys = st.lists(text, min_size=1, max_size=3).map(tuple)


@given(keys)
def test_a_subject_is_read_back_as_its_key(key: tuple[str, ...]):
    assert key_of(subject_of("ns", "log", key)) == key


@given(keys)
def test_a_subject_has_one_plain_word_for_each_part(key: tuple[str, ...]):
    words = subject_of("ns", "log", key).split(".")
    assert len(words) == 2 + len(key)
    assert all(word and not set(word) & set(" *>\t\r\n") and word.isascii() for word in words)


@given(text, text)
def test_two_queues_never_share_a_consumer(one: str, other: str):
    assert (consumer_of(("any", one)) == consumer_of(("any", other))) == (one == other)
    assert consumer_of(("any", one)) != consumer_of(("at", other))


def test_plain_names_stay_as_they_are():
    assert subject_of("ns", "stops", ("session-1", "t_2")) == "ns.stops.session-1.t_2"


def test_a_name_too_long_for_a_line_is_refused():
    with pytest.raises(UsageError, match="too long"):
        subject_of("ns", "log", ("x" * 3000,))


async def test_what_the_server_does_not_allow_is_told_with_the_name_of_the_stream():
    connection: Any = await client.connect(shared_url())
    with pytest.raises(BrokerError, match="greedy-"):
        await ensure(connection, "greedy", replicas=3)  # there is one server
    assert connection.is_closed


async def test_no_word_of_one_installation_is_a_subject_of_another():
    with nats_server() as server:
        connection: Any = await client.connect(server.url)
        for namespace in ("a", "ab"):
            await ensure(connection, namespace, 1)
        names = {info.config.name for info in await connection.jetstream().streams_info()}
        assert names == {config.name for namespace in ("a", "ab") for config in configs(namespace, 1)}
        await connection.close()
