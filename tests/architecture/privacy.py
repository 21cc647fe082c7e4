"""Owns who may use names that begin with an underscore, and which tests may import what is not public."""

import ast
from collections.abc import Iterator, Mapping, Set

from tests.architecture.layers import imports
from tests.architecture.source import Function, Source

# Private names of other modules that are used all the same, with the reason: path:name → why.
FOREIGN_PRIVATES: dict[str, str] = {
    "process/child.py:_args_from_interpreter_flags": "how multiprocessing, too, gives a child the flags of its parent",
    "testing/inject/run.py:_log_destroy_pending": "asyncio has no other way to drop a task without a log line",
    "cli/main.py:_actions": "argparse has no public list of the options of a parser",
    "models/connection.py:_network_backend": "httpcore has no public place to wrap a finished client's connections",
}

# Modules whose private names are the documented or the only way to what they know.
OPEN_MODULES = {"sys", "os", "asyncio"}

INTERNAL_TESTS = ("internal", "architecture")

# What tests and their rigs import of ours although it is not public, with the reason: path:name → why.
INTERNAL_IMPORTS = {
    "acceptance/test_turn_loop.py:safepoint.turns.inbox.Inbox": "a line of the list is about the inbox by itself",
    "cli/test_demo.py:safepoint.cli.demo.TRY": "the words that the demo offers are compared with what it does",
    "cli/test_demo.py:safepoint.cli.demo.demo_agent": "the agent that `safepoint serve` starts with",
    "examples/test_examples.py:safepoint.process.group": "looks for processes that an example has left",
    "kit/sessions.py:safepoint.session.log.decode_record": "reads what a store has on record",
    "session/test_turn.py:safepoint.session.turn.TurnOptions": "a turn by itself, without a session that makes it",
    "worker/faulty.py:safepoint.process.group": "looks for processes that a killed worker has left",
    "worker/jumping.py:safepoint.abort.clock": "a worker whose clock jumps by an hour",
    "kit/workers.py:safepoint.worker.broker.BrokerConnection": "looks at what the broker has on record",
    "kit/workers.py:safepoint.session.log.decode_record": "reads what the broker has on record",
    "kit/workers.py:safepoint.worker.store.LogReader": "reads what the broker has on record",
    "worker/paying.py:safepoint.worker.broker.BrokerConnection": "looks at what the broker has on record",
}

# What users import from, besides `safepoint` itself.
PUBLIC_MODULES = (
    "abort",
    "agent",
    "cli.main",
    "errors",
    "events",
    "flow",
    "messages",
    "models",
    "models.anthropic",
    "models.ollama",
    "models.openai",
    "models.scripted",
    "process",
    "run",
    "server",
    "session",
    "storage",
    "testing",
    "testing.conformance",
    "turns",
    "wire",
    "worker",
)


def foreign_privates(source: Source, allowed: Mapping[str, str] = FOREIGN_PRIVATES) -> Iterator[str]:
    """Private attributes of objects whose class another module defines."""
    own = own_privates(source.tree)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr) or node.attr in own:
            continue
        owner = source.dotted(node.value)
        if owner in ("self", "cls") or owner.partition(".")[0] in OPEN_MODULES or _is_super(node.value):
            continue
        if f"{source.path}:{node.attr}" not in allowed:
            yield source.at(node.lineno, f"{ast.unparse(node)} belongs to another module")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_privates(tree: ast.Module) -> set[str]:
    """The private names that a module defines: functions, class members, slots and attributes set on `self`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                found.add(name)
            case ast.Name(name, ast.Store()):
                found.add(name)
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                found.add(name)
            case ast.Assign([ast.Name("__slots__")], value):
                found |= {str(item.value) for item in ast.walk(value) if isinstance(item, ast.Constant)}
            case _:
                pass
    return found


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def internal_imports(
    source: Source, public: Mapping[str, Set[str]], allowed: Mapping[str, str] = INTERNAL_IMPORTS
) -> Iterator[str]:
    """What a test outside of tests/internal/ imports of ours that is in no public module.

    Args:
        source: A file of tests/, with its path relative to that folder.
        public: The public modules, each with the names of its `__all__`.
        allowed: The exceptions.
    """
    if source.path.parts[0] in INTERNAL_TESTS or source.path.parts[0].startswith("test_architecture"):
        return
    for line, name in imports(source):
        if name.startswith("tests.internal"):
            yield source.at(line, f"imports {name}")
        if name.partition(".")[0] != "safepoint" or name in public or f"{source.path}:{name}" in allowed:
            continue
        module, _, imported = name.rpartition(".")
        if module not in public or imported not in public[module] | {"__all__"}:
            yield source.at(line, f"imports {name}")


def count_tests(sources: list[Source]) -> tuple[int, int]:
    """How many test functions import public names only, and how many there are."""
    everyone = public = 0
    for source in sources:
        tests = sum(isinstance(node, Function) and node.name.startswith("test_") for node in ast.walk(source.tree))
        everyone += tests
        public += tests if source.path.parts[0] not in INTERNAL_TESTS else 0
    return public, everyone
