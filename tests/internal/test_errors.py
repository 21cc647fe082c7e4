"""Errors as text: an error whose text cannot be read is described all the same, in a bounded space."""

import json

import pytest

from safepoint.errors import TEXT_LIMIT, RemoteError, describe, name_of, shorten, text_of


class Raises(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


class Recurses(Exception):
    def __str__(self) -> str:
        return str(self)


class NotAString(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # the mistake under test


class Leaves(Exception):
    def __init__(self, problem: type[BaseException]) -> None:
        self.problem = problem

    def __str__(self) -> str:
        raise self.problem


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("wrong"), "ValueError: wrong"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError"),
        (RemoteError("ValueError", "wrong"), "ValueError: wrong"),
        (RemoteError("ValueError", ""), "ValueError"),
        (Raises(), "Raises: (its text cannot be read: LookupError)"),
        (Recurses(), "Recurses: (its text cannot be read: RecursionError)"),
        (NotAString(), "NotAString: (its text cannot be read: TypeError)"),
        (Leaves(SystemExit), "Leaves: (its text cannot be read: SystemExit)"),
        (Leaves(KeyboardInterrupt), "Leaves: (its text cannot be read: KeyboardInterrupt)"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_error_reads_as_its_type_and_its_text(error: Exception, told: str):
    assert describe(error) == told


def test_a_long_text_is_cut_and_says_how_long_it_was():
    error = ValueError("x" * 20_000_000)
    told = describe(error)
    assert len(told) == TEXT_LIMIT
    assert told.startswith("ValueError: xxx")
    assert told.endswith("x… (20000012 characters)")
    assert text_of(error) == "x" * 20_000_000, "the whole text is there for those who ask for it"


def test_what_was_cut_once_stays_as_it_is_on_its_way():
    once = shorten("x" * 10_000)
    assert shorten(once) == once
    assert shorten("short") == "short"
    assert shorten("x" * 50, 40) == "x" * 23 + "… (50 characters)"


def test_half_of_a_surrogate_pair_survives():
    assert json.loads(json.dumps(describe(ValueError("\ud83d"))))[-1] == "\ud83d"


def test_an_error_from_elsewhere_keeps_its_name():
    assert name_of(RemoteError("Custom", "x")) == "Custom"
    assert name_of(LookupError()) == "LookupError"
