"""Owns what is done with a flow's state as a whole: copying it, joining copies, writing it as JSON. Knows no nodes.

A node works on a copy. What it wrote counts when it has ended well; until then the state is as it was, whatever an
abandoned node still does to its copy.
"""

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from ..errors import SafepointError, UsageError

__all__ = ["JoinConflict", "clone", "dump", "first_parameter", "load", "merge"]

S = TypeVar("S")
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
FLAT = frozenset({list, set, dict})


class JoinConflict(SafepointError):
    """Two branches of a parallel node have written the same field, differently, and nobody said how to join them."""


def clone(state: S) -> S:
    """A copy that shares nothing that can be changed. Most states are flat, and for those this is quick."""
    kind: Any = type(state)
    if kind in ATOMS:
        return state
    if kind in FLAT:
        return copy.copy(state) if _is_flat(state) else copy.deepcopy(state)
    names = _plain_fields(kind)
    if names is None:
        return copy.deepcopy(state)
    return _clone_plain(state, names)


def _clone_plain(state: S, names: tuple[str, ...]) -> S:
    values = []
    containers = 0
    seen = set()
    for name in names:
        value = getattr(state, name)
        kind = type(value)
        if kind not in ATOMS:
            if kind not in FLAT or not _is_flat(value):
                return copy.deepcopy(state)
            containers += 1
            seen.add(id(value))
            value = copy.copy(value)
        values.append(value)
    if containers != len(seen) or len(getattr(state, "__dict__", names)) != len(names):
        return copy.deepcopy(state)  # two fields are one list, or there is more than the fields
    new: S = object.__new__(type(state))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)
    return new


def _is_flat(value: Any) -> bool:
    kinds = set(map(type, value))
    return kinds <= ATOMS and (type(value) is not dict or set(map(type, value.values())) <= ATOMS)


@cache
def _plain_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass that copies like one, or None."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel):
        return None
    if any(hasattr(kind, name) for name in ("__deepcopy__", "__copy__", "__setstate__")):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def merge(base: S, branches: Mapping[str, S]) -> S:
    """The base with what each branch has changed. Raises: JoinConflict for a field that two changed differently."""
    merged = clone(base)
    changed: dict[str, str] = {}
    for branch, state in branches.items():
        for name in _fields(state):
            value = _get(state, name)
            if value == _get(base, name):
                continue
            if name in changed and value != _get(merged, name):
                raise JoinConflict(
                    f"the branches {changed[name]!r} and {branch!r} both changed {name!r}: say how they become one,"
                    " with join=function(state, branches)"
                )
            changed[name] = branch
            _set(merged, name, value)
    return merged


def _fields(state: Any) -> list[str]:
    if isinstance(state, dict):
        return list(state)
    if isinstance(state, BaseModel):
        return list(type(state).model_fields)
    if dataclasses.is_dataclass(state):
        return [field.name for field in dataclasses.fields(state)]
    return list(vars(state))


_MISSING = object()


def _get(state: Any, name: str) -> Any:
    return state.get(name, _MISSING) if isinstance(state, dict) else getattr(state, name, _MISSING)


def _set(state: Any, name: str, value: Any) -> None:
    if isinstance(state, dict):
        state[name] = value
    else:
        object.__setattr__(state, name, value) if dataclasses.is_dataclass(state) else setattr(state, name, value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def dump(value: Any) -> Any:
    """As JSON data. Raises: UsageError that says what cannot be written."""
    kind: Any = type(value)
    try:
        return _adapter(kind).dump_python(value, mode="json")
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(
            f"{type(value).__name__} cannot be written as JSON ({problem}): keep in the state only what can, and give"
            " the rest as services"
        ) from problem


def load(kind: Any, data: Any) -> Any:
    """Read `dump()` back. Raises: ValueError that says what does not fit."""
    return _adapter(kind).validate_python(data)


def first_parameter(fn: Callable[..., Any]) -> Any:
    """The annotated type of a function's first parameter, or None."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(fn))
        names = list(inspect.signature(fn).parameters)
    except (NameError, TypeError, ValueError):
        return None
    return hints.get(names[0]) if names else None
