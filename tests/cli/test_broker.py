"""Owns the tests of the options that say where NATS is: each arrives where it is meant."""

import pytest

from safepoint.cli.main import main


@pytest.fixture(autouse=True)
def _without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS_URL", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "told"), [(["--namespace", "two words"], "namespace"), (["--lease", "-1"], "lease")]
)
def test_what_makes_no_broker_is_a_2(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["workers", *arguments]) == 2
    assert told in capsys.readouterr().err
