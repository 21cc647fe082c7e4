"""Owns who may import whom in src/."""

import ast
import sys
from collections.abc import Iterator

from tests.architecture.source import Source

LAYERS = {
    "errors": 0,
    "json_fields": 0,
    "lazy_imports": 0,
    "version": 0,
    "abort": 1,
    "process": 2,
    "storage": 2,
    "messages": 3,
    "openai_messages": 3,
    "receipt": 3,
    "outcome": 3,
    "events": 3,
    "wire": 3,
    "run": 3,
    "agent": 4,
    "flow": 4,
    "models": 4,
    "turns": 5,
    "session": 6,
    "worker": 7,
    "server": 8,
    "cli": 9,
}
FACE = "__init__"
# Public data types, each of which may be imported by those that come after it, and by `run`.
DATA = ("messages", "openai_messages", "receipt", "outcome", "events", "wire", "run")
# Imports beside each other on one line, with the reason.
BESIDE = {
    ("models", "agent"): "a model is a part of an agent",
    ("json_fields", "errors"): "errors are the root of everything",
    ("events", "wire"): "users look for event_to_json beside the events: imported on first use, because of pydantic",
    ("messages", "openai_messages"): "users look for from_openai beside the messages: imported on first use",
    ("messages", "wire"): "users look for message_to_json beside the messages: imported on first use",
    **{(above, below): "data types" for at, above in enumerate(DATA) for below in DATA[:at]},
}
CORE = {
    "errors",
    "json_fields",
    "abort",
    "process",
    "storage",
    "messages",
    "openai_messages",
    "receipt",
    "outcome",
    "events",
    "run",
}


def upward_imports(source: Source) -> Iterator[str]:
    importer = package_of(source)
    if importer not in {*LAYERS, FACE, "testing"}:
        yield source.at(1, f"{importer} has no layer")
        return
    found = set()
    for line, name in imports(source):
        package, _, inside = name.partition(".")
        top = inside.partition(".")[0]
        imported = top if top in {*LAYERS, "testing"} else FACE
        if package == "safepoint" and not may_import(importer, imported):
            found.add((line, "the public face" if imported == FACE else imported))
    yield from (source.at(line, f"{importer} imports {imported}") for line, imported in sorted(found))


def may_import(importer: str, imported: str) -> bool:
    if importer in (imported, FACE):
        return True
    if imported not in LAYERS:
        return False
    if importer == "testing":
        return LAYERS[imported] < LAYERS["cli"]
    return LAYERS[imported] < LAYERS[importer] or (importer, imported) in BESIDE


# Modules that exist only for type checkers. At run time nothing can import them, so they are no dependency.
TYPE_CHECKER_MODULES = {"_typeshed"}


def foreign_imports(source: Source) -> Iterator[str]:
    """What the core imports beyond the standard library and itself."""
    if package_of(source) not in CORE:
        return
    for line, name in imports(source):
        top = name.partition(".")[0]
        if top not in {*sys.stdlib_module_names, *TYPE_CHECKER_MODULES, "safepoint"}:
            yield source.at(line, f"imports {top}")


def package_of(source: Source) -> str:
    """The folder, or top-level module, a file belongs to; `__main__.py` is part of the cli."""
    top = source.path.parts[0].removesuffix(".py")
    return "cli" if top == "__main__" else top


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a file imports, wherever in the file."""
    package = ("safepoint", *source.path.parent.parts)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
