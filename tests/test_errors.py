"""The errors of the package: one tree, drawn as it is, and clear about what is missing."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import safepoint
from safepoint import errors
from safepoint.errors import MissingExtra, SafepointError, WireError
from safepoint.wire import WireError as WireErrorOfTheWire


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


def all_errors() -> dict[str, str]:
    """The names of all errors of the package, each with that of its parent."""
    for module in pkgutil.walk_packages(safepoint.__path__, "safepoint."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return dict(subclasses(SafepointError))


def test_the_tree_of_errors_is_drawn_as_it_is():
    assert dict(drawn(errors.__doc__ or "")) == all_errors()


def test_the_page_of_errors_lists_each_one_with_its_import():
    page = Path(__file__).parent.parent / "docs" / "errors.md"
    listed = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted({"SafepointError", *all_errors()})
    for name, module in listed:
        assert issubclass(getattr(importlib.import_module(module), name), SafepointError)
