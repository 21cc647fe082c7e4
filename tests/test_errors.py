"""Errors in words: whatever an error does, one can say that it happened, in a bounded space."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator

import pytest

import safepoint
from safepoint import errors
from safepoint.errors import (
    TEXT_LIMIT,
    MissingExtra,
    RemoteError,
    SafepointError,
    WireError,
    describe,
    name_of,
    shorten,
    text_of,
)
from safepoint.run.wire import WireError as WireErrorOfTheWire


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


def test_the_error_of_the_wire_is_one_and_a_value_error():
    assert WireErrorOfTheWire is WireError
    assert issubclass(WireError, ValueError)


def test_a_missing_package_is_named_with_the_extra_that_installs_it():
    error = MissingExtra("OllamaModel", "ollama", ModuleNotFoundError("No module named 'ollama'", name="ollama.types"))
    assert isinstance(error, ImportError)
    assert str(error) == 'OllamaModel needs the package ollama: pip install "safepoint[ollama]"'
    assert str(MissingExtra("x", "nats", ImportError())) == 'x needs more packages: pip install "safepoint[nats]"'


def subclasses(base: type[SafepointError]) -> Iterator[tuple[str, str]]:
    """Every error of ours below this one, with the name of the first of ours that it is made from."""
    for error in base.__subclasses__():
        if error.__module__.partition(".")[0] == "safepoint":
            parent = next(each for each in error.__bases__ if issubclass(each, SafepointError))
            yield error.__name__, parent.__name__
            yield from subclasses(error)


def drawn(tree: str) -> Iterator[tuple[str, str]]:
    """The same, as it is drawn."""
    above = ["SafepointError"]
    for indent, name in re.findall(r"^((?:│ {3}| {4})*)[├└]── (\w+)", tree, re.MULTILINE):
        depth = len(indent) // 4 + 1
        above[depth:] = [name]
        yield name, above[depth - 1]


def test_the_tree_of_errors_is_drawn_as_it_is():
    for module in pkgutil.walk_packages(safepoint.__path__, "safepoint."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert dict(drawn(errors.__doc__ or "")) == dict(subclasses(SafepointError))
