"""Owns how a file looks from outside: its size, its name, its docstring, and the words in its text."""

import ast
import re
from collections.abc import Iterator, Mapping

from tests.architecture.source import Function, Source

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 6
MAX_PROTOCOL_METHODS = 6
MAX_ANY_PER_1000_LINES = 6.0
NAMELESS = {"utils", "base", "manager", "common", "helpers"}


# Functions that take more than six parameters, with the reason: path:name → why.
MANY_PARAMETERS: dict[str, str] = {
    "agent/agent.py:Agent.__init__": "public, all but the model keyword-only: each option is one independent choice",
    "session/host.py:TurnCommands.stop": "the options of a stop by their names, as `Session.stop` takes them",
    "session/local_host.py:LocalHost.stop": "implements `Host.stop`",
    "server/serve.py:Server.__init__": "public, all but the host keyword-only: each option is one independent choice",
    "session/session.py:Session.open": "each option is one independent choice at the call that opens a session",
    "turns/loop.py:TurnLoop.__init__": "each option is one independent choice at the call that makes a loop",
    "worker/remote_host.py:RemoteHost.stop": "implements `Host.stop`",
    "worker/worker.py:Worker.__init__": "public, all but agents and broker keyword-only: independent choices",
    "process/program.py:run_process": "public, named as the arguments of subprocess.run: callers know each of them",
    "testing/inject/everywhere.py:abort_everywhere": "public, all but the scenario keyword-only and rarely given",
}

# Protocols of more than six methods of their own, with the reason: path:name → why.
WIDE_PROTOCOLS: dict[str, str] = {}


def oversized(source: Source) -> Iterator[str]:
    """Files and functions with too many lines of code. Docstrings and comments are not counted."""
    code = code_lines(source)
    if len(code) > MAX_FILE_LINES:
        yield source.at(1, f"the file has {len(code)} lines of code")
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            length = sum(node.lineno <= line <= (node.end_lineno or node.lineno) for line in code)
            if length > MAX_FUNCTION_LINES:
                yield source.at(node.lineno, f"{node.name} has {length} lines of code")


def code_lines(source: Source) -> list[int]:
    """The numbers of the lines that are neither in a docstring nor a comment."""
    described: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
            described |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    lines = enumerate(source.text.splitlines(), 1)
    return [number for number, line in lines if number not in described and not line.lstrip().startswith("#")]


def many_parameters(source: Source, allowed: Mapping[str, str] = MANY_PARAMETERS) -> Iterator[str]:
    """Functions that take more parameters than a caller can keep in mind; `self` and `cls` are not counted."""
    for name, node in named_functions(source.tree):
        args = node.args
        taken = [arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs] if arg.arg not in ("self", "cls")]
        if len(taken) > MAX_PARAMETERS and f"{source.path}:{name}" not in allowed:
            yield source.at(node.lineno, f"{name} takes {len(taken)} parameters")


def named_functions(
    scope: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a module and of its classes, with `Class.method` as the name."""
    for node in scope.body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from named_functions(node, f"{prefix}{node.name}.")


def wide_protocols(source: Source, allowed: Mapping[str, str] = WIDE_PROTOCOLS) -> Iterator[str]:
    """Protocols with more methods of their own than one kind of caller needs; those of their bases are not counted."""
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
            methods = sum(isinstance(item, Function) for item in node.body)
            if methods > MAX_PROTOCOL_METHODS and f"{source.path}:{node.name}" not in allowed:
                yield source.at(node.lineno, f"{node.name} has {methods} methods")


def untyped(source: Source) -> int:
    """How often a file says `Any`; the import is not counted."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(source.tree))


def nameless(source: Source) -> Iterator[str]:
    for part in source.path.with_suffix("").parts:
        if part in NAMELESS:
            yield source.at(1, f"{part} does not say what is inside")


def undescribed(source: Source) -> Iterator[str]:
    if not (ast.get_docstring(source.tree) or "").strip():
        yield source.at(1, "no module docstring")


def unfinished(source: Source) -> Iterator[str]:
    return _lines_with(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", source)


def private_paths(source: Source) -> Iterator[str]:
    """Paths of somebody's machine; a path inside the project, or in a URL, is none."""
    return _lines_with(r"(?<![\w.~}-])/(root|home|Users|work|tmp)/", source)


def checkout_paths(source: Source) -> Iterator[str]:
    """Tests that look for the folder `safepoint` anywhere in a path."""
    if source.path.parts[0] not in ("architecture", "test_architecture_rules.py"):
        yield from _lines_with(r"""["']/?safepoint/["']""", source)


def _lines_with(pattern: str, source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := re.search(pattern, line):
            yield source.at(number, found[0])
