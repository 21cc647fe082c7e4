"""Owns the tests that look inside, beside those of `tests/cli/test_broker.py`.

Owns the tests of the options that say where NATS is: each arrives where it is meant.
"""

import argparse

import pytest

from safepoint.cli.worker import NATS_URL, broker_of, broker_options
from safepoint.worker import NatsBroker


@pytest.fixture(autouse=True)
def _without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS_URL", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def parsed(*arguments: str, by_default: str | None = NATS_URL) -> argparse.Namespace:
    command = argparse.ArgumentParser()
    broker_options(command, by_default=by_default)
    return command.parse_args(arguments)


def test_without_options_it_is_the_server_of_this_machine():
    assert broker_of(parsed()) == NatsBroker([NATS_URL])


def test_every_option_arrives():
    given = {"--nats": "nats://a:1,nats://b:2", "--namespace": "lab", "--lease": "3", "--replicas": "3"}
    files = {"--creds": "c", "--nkey": "n", "--tls-ca": "ca", "--tls-cert": "cert", "--tls-key": "key"}
    arguments = [word for pair in {**given, **files}.items() for word in pair]
    assert broker_of(parsed(*arguments, "--no-create")) == NatsBroker(
        ["nats://a:1", "nats://b:2"],
        namespace="lab",
        lease=3.0,
        replicas=3,
        credentials="c",
        nkey="n",
        ca="ca",
        cert="cert",
        key="key",
        create=False,
    )


def test_secrets_come_from_the_environment_and_not_from_the_list_of_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NATS_USER", "worker")
    monkeypatch.setenv("NATS_PASSWORD", "secret")
    monkeypatch.setenv("NATS_TOKEN", "sesame")
    broker = broker_of(parsed())
    assert (broker.user, broker.password, broker.token) == ("worker", "secret", "sesame")


def test_the_environment_says_where_unless_an_option_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NATS_URL", "nats://there:1")
    assert parsed().nats == "nats://there:1"
    assert parsed("--nats", "nats://here:2").nats == "nats://here:2"


def test_a_server_runs_its_own_sessions_unless_it_is_told_where_the_workers_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NATS_URL", "nats://there:1")
    assert parsed(by_default=None).nats is None
    assert parsed("--nats", "nats://here:2", by_default=None).nats == "nats://here:2"
