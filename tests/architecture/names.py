"""Owns the rules on public names: what `__all__` promises, and which words a name may not use."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

from tests.architecture.calls import CANCEL_FILE
from tests.architecture.source import Function, Source

MAX_PUBLIC_NAMES = 40


def faulty_face(face: ModuleType, pages: str) -> Iterator[str]:
    """What is wrong with the names a user imports: too many, listed twice, missing, undocumented."""
    names = list(getattr(face, "__all__", ()))
    if not names:
        yield "__all__ is missing or empty"
    if len(names) > MAX_PUBLIC_NAMES:
        yield f"__all__ has {len(names)} names"
    yield from (f"{name} is listed {times} times" for name, times in Counter(names).items() if times > 1)
    for name in dict.fromkeys(names):
        if not hasattr(face, name):
            yield f"{name} does not resolve"
        elif not described(getattr(face, name)):
            yield f"{name} has no docstring"
        if not re.search(rf"`{re.escape(name)}[`(\[]", pages):
            yield f"{name} stands on no page in docs/"


def described(value: object) -> bool:
    """Whether a class or function has a docstring of its own; other values cannot have one."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return True
    text = (value.__doc__ or "").strip()
    # A dataclass without a docstring is given its signature as one.
    return bool(text) and not text.startswith(f"{value.__name__}(")


def unresolved_exports(source: Source) -> Iterator[str]:
    known = {name for _, name in bindings(source.tree)}
    for name in exports(source):
        if name not in known:
            yield source.at(1, f"__all__ names {name}, which is not there")


def uneven_exports(source: Source) -> Iterator[str]:
    """Where a package's `__all__` and the public names of its `__init__.py` differ."""
    if source.path.name != "__init__.py":
        return
    names = {name for _, name in bindings(source.tree) if not name.startswith("_")} - {"TYPE_CHECKING"}
    listed = {name for name in exports(source) if not name.startswith("__")}
    yield from (source.at(1, f"{name} is public but not in __all__") for name in sorted(names - listed))
    yield from (source.at(1, f"{name} is in __all__ but not imported") for name in sorted(listed - names))


def cancel_names(source: Source) -> Iterator[str]:
    """Public names of ours with "cancel" in them: functions, classes, parameters, variables, attributes.

    The one file that speaks to the event loop about cancelling may call asyncio's word by its name.
    """
    if str(source.path) == CANCEL_FILE:
        return
    for line, name in sorted(set(public_names(source.tree))):
        if "cancel" in name.lower():
            yield source.at(line, f"the name {name}")


def exports(source: Source) -> list[str]:
    """The names in `__all__`; what is not a plain string there comes as it is written, and resolves to nothing."""
    for node in source.tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name("__all__")], value=value)
                | ast.AnnAssign(target=ast.Name("__all__"), value=ast.expr() as value)
            ):
                items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
                return [str(item.value) if isinstance(item, ast.Constant) else ast.unparse(item) for item in items]
            case _:
                pass
    return []


def public_names(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Line and name of what a scope defines for others to use; imported names were given by somebody else."""
    yield from ((line, name) for line, name in bindings(scope, imports=False) if not name.startswith("_"))
    for node in statements(scope):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_names(node)
        elif isinstance(node, Function):
            yield from stored_attributes(node)
            if not node.name.startswith("_") or node.name == "__init__":
                yield from parameters(node)


def parameters(function: Function) -> Iterator[tuple[int, str]]:
    args = function.args
    for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, [args.vararg, args.kwarg])]:
        yield arg.lineno, arg.arg


def stored_attributes(function: Function) -> Iterator[tuple[int, str]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not node.attr.startswith("_"):
            yield node.lineno, node.attr


def bindings(scope: ast.Module | ast.ClassDef, *, imports: bool = True) -> Iterator[tuple[int, str]]:
    """Line and name of what the statements of a scope bind."""
    for node in statements(scope):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield node.lineno, name
            case ast.ImportFrom("__future__"):
                pass
            case ast.Import(names) | ast.ImportFrom(names=names) if imports:
                yield from ((node.lineno, alias.asname or alias.name.partition(".")[0]) for alias in names)
            case ast.Assign() | ast.AnnAssign():
                for target in ast.walk(node):
                    if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                        yield target.lineno, target.id
            case _:
                pass


def statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of one scope: also those under `if`, `try` and `with`, not those of functions and classes."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, Function | ast.ClassDef | ast.expr):
            yield from statements(child)
