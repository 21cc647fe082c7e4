"""Owns what code may not call: the ways around the guard, the task group, the events and the clock."""

import ast
import re
from collections.abc import Iterator, Mapping

from tests.architecture.layers import package_of
from tests.architecture.source import Source

CANCEL_FILE = "abort/guard.py"
CANCEL_WORDS = {"cancel", "uncancel", "cancelling"}
WAITS = {"asyncio.wait_for", "asyncio.tasks.wait_for"}
STARTS = {"create_task", "ensure_future"}
SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep", "trio.sleep"}

# Files outside abort/ that may start a task no TaskGroup owns: path → the reason.
TASK_OWNERS: dict[str, str] = {
    "run/leaf.py": "a leaf that may be abandoned must be able to outlive the task group of its caller",
    "run/run_handle.py": "a run that is held in the hand has a task of its own, which whoever awaits it may outlive",
    "turns/loop.py": "a loop has one task of its own, which lives as long as the loop",
    "session/loop_tasks.py": "a session writes its log, and ends turns that left the queue, for as long as it lives",
}


def cancel_calls(source: Source) -> Iterator[str]:
    if str(source.path) == CANCEL_FILE:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in CANCEL_WORDS:
            yield source.at(node.lineno, ast.unparse(node))


def lossy_waits(source: Source) -> Iterator[str]:
    return _mentions(source, WAITS)


def stray_tasks(source: Source, owners: Mapping[str, str] = TASK_OWNERS) -> Iterator[str]:
    """Tasks started otherwise than by a TaskGroup that this file opens or is handed."""
    if package_of(source) == "abort" or str(source.path) in owners:
        return
    groups = set(task_groups(source))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in STARTS and ast.unparse(node.value) not in groups:
            yield source.at(node.lineno, ast.unparse(node))
        elif isinstance(node, ast.Name) and source.dotted(node) in {f"asyncio.{start}" for start in STARTS}:
            yield source.at(node.lineno, node.id)


def task_groups(source: Source) -> Iterator[str]:
    """The expressions that a file binds to, or annotates as, a TaskGroup."""

    def is_group(node: ast.AST) -> bool:
        return bool(re.search(r"\bTaskGroup\b", ast.unparse(node)))

    for node in ast.walk(source.tree):
        match node:
            case ast.withitem(value, ast.expr() as target) if is_group(value):
                yield ast.unparse(target)
            case ast.Assign([target], value) if is_group(value):
                yield ast.unparse(target)
            case ast.AnnAssign(target, annotation) if is_group(annotation):
                yield ast.unparse(target)
            case ast.arg(name, ast.expr() as annotation) if is_group(annotation):
                yield name
            case _:
                pass


def prints(source: Source) -> Iterator[str]:
    return iter(()) if package_of(source) == "cli" else _mentions(source, {"print"})


def real_sleeps(source: Source) -> Iterator[str]:
    """Sleeps that take time, called or handed on, and do not say why on the spot: `# real time: <why>`."""
    lines = source.text.splitlines()
    excused = set()

    def says_why(node: ast.expr) -> bool:
        return any(re.search(r"# real time: \S", line) for line in lines[node.lineno - 1 : node.end_lineno])

    # The walk goes from the outside in, so that a call is judged before the name it calls.
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            instant = [ast.unparse(argument) for argument in node.args] in (["0"], ["0.0"])
            if source.dotted(node.func) in SLEEPS and (instant or says_why(node)):
                excused.add(node.func)
        elif isinstance(node, ast.expr) and source.dotted(node) in SLEEPS and not (node in excused or says_why(node)):
            yield source.at(node.lineno, lines[node.lineno - 1].strip())


def _mentions(source: Source, names: set[str]) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.expr) and source.dotted(node) in names:
            yield source.at(node.lineno, source.dotted(node))
