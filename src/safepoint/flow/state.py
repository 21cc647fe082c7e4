"""Owns what is done with a flow's state as a whole: copying it, joining copies, writing it as JSON. Knows no nodes.

A node works on a copy. What it wrote counts when it has ended well; until then the state is as it was, whatever an
abandoned node still does to its copy.
"""

import copy
import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import SafepointError, UsageError

__all__ = ["JoinConflict", "clone", "dump", "first_parameter", "load", "merge"]

S = TypeVar("S")
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
FLAT = frozenset({list, set, dict})
MISSING: Any = object()
WHOLE: Any = object()


class JoinConflict(SafepointError):
    """Two branches of a parallel node have written the same field, differently, and nobody said how to join them."""


def clone(state: S) -> S:
    """A copy that shares nothing that can be changed. Most states are flat, and for those this is quick.

    Raises: UsageError for what cannot be copied.
    """
    kind: Any = type(state)
    if kind in ATOMS:
        return state
    if kind in FLAT:
        return copy.copy(state) if _is_flat(state) else _clone_deeply(state)
    names = _plain_fields(kind)
    if names is None:
        return _clone_deeply(state)
    return _clone_plain(state, names)


def _clone_deeply(state: S) -> S:
    try:
        return copy.deepcopy(state)
    except Exception as problem:  # whatever the parts of the state raise
        raise UsageError(
            f"{type(state).__name__} cannot be copied ({problem}): keep in the state only what can, and give the rest"
            " as services"
        ) from problem


def _clone_plain(state: S, names: tuple[str, ...]) -> S:
    values = []
    containers = 0
    seen = set()
    for name in names:
        value = getattr(state, name, MISSING)
        kind = type(value)
        if kind not in ATOMS:
            if kind not in FLAT or not _is_flat(value):
                return _clone_deeply(state)
            containers += 1
            seen.add(id(value))
            value = copy.copy(value)
        values.append(value)
    if containers != len(seen) or len(getattr(state, "__dict__", names)) != len(names):
        return _clone_deeply(state)  # two fields are one list, or there is more than the fields
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
    if any(getattr(kind, name) is not getattr(object, name) for name in ("__new__", "__reduce__", "__reduce_ex__")):
        return None
    names = tuple(field.name for field in dataclasses.fields(kind))
    if set(_slots(kind)) - set(names) or any(isinstance(getattr(kind, name, None), property) for name in names):
        return None
    return names


def _slots(kind: type) -> list[str]:
    """The names of all slots, those of the classes above included."""
    slots: list[str] = []
    for each in kind.__mro__:
        own = each.__dict__.get("__slots__", ())
        slots += [own] if isinstance(own, str) else own
    return [name for name in slots if name not in ("__dict__", "__weakref__")]


def merge(base: S, branches: Mapping[str, S]) -> S:
    """The base with what each branch has changed. Raises: JoinConflict for a field that two changed differently."""
    merged: Any = clone(base)
    before = _parts(base)
    changed: dict[Any, tuple[str, Any]] = {}
    for branch, state in branches.items():
        after = _parts(state)
        for name in {**before, **after}:
            value = after.get(name, MISSING)
            if _same(value, before.get(name, MISSING)):
                continue
            first, other = changed.setdefault(name, (branch, value))
            if not _same(value, other):
                told = "the state" if name is WHOLE else repr(name)
                raise JoinConflict(
                    f"the branches {first!r} and {branch!r} both changed {told}: say how they become one,"
                    " with join=function(state, branches)"
                )
    for name, (_, value) in changed.items():
        if name is WHOLE:
            return value  # type: ignore[no-any-return]
        _put(merged, name, value)
    return merged  # type: ignore[no-any-return]


def _parts(state: Any) -> dict[Any, Any]:
    """What a state consists of, by name. One that is no record is a whole."""
    if isinstance(state, BaseModel):
        return {**state.__dict__, **(state.__pydantic_extra__ or {}), **(state.__pydantic_private__ or {})}
    if isinstance(state, dict) and not getattr(state, "__dict__", None):
        return dict(state)
    slots = _slots(type(state))
    if isinstance(state, dict | list | set | tuple) or not (slots or hasattr(state, "__dict__")):
        return {WHOLE: state}
    return {**{name: getattr(state, name) for name in slots if hasattr(state, name)}, **getattr(state, "__dict__", {})}


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays, say, which have no one answer: they count as changed
        return False


def _put(state: Any, name: Any, value: Any) -> None:
    """Into a record, also a frozen one. MISSING: take it out."""
    part: Any = state if isinstance(state, dict) else None
    if isinstance(state, BaseModel):
        private, extra = state.__pydantic_private__ or {}, state.__pydantic_extra__
        known = name in type(state).model_fields or extra is None
        part = private if name in private else state.__dict__ if known else extra
        state.__pydantic_fields_set__.add(name)
    if part is None:
        object.__delattr__(state, name) if value is MISSING else object.__setattr__(state, name, value)
    elif value is MISSING:
        part.pop(name, None)
    else:
        part[name] = value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def dump(value: Any) -> Any:
    """As JSON data. Raises: UsageError that says what cannot be written."""
    kind: Any = type(value)
    try:
        # What is not of its declared type could be written, and not be read again.
        return _adapter(kind).dump_python(value, mode="json", warnings="error")
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(
            f"{type(value).__name__} cannot be written as JSON ({problem}): keep in the state only what can, and give"
            " the rest as services"
        ) from problem


def load(kind: Any, data: Any) -> Any:
    """Read `dump()` back. Raises: ValueError that says what does not fit."""
    # From JSON text, not from the data: a strict type takes a date from JSON only, and nothing is shared.
    text = json.dumps(data)
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as problem:
        if problem.errors()[0]["type"] != "json_invalid":
            raise
        # Half of a surrogate pair, as models say it: pydantic's reader refuses it, Python's does not.
        return _adapter(kind).validate_python(json.loads(text))


def first_parameter(fn: Callable[..., Any]) -> Any:
    """The annotated type of a function's first parameter, or None."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(fn))
        names = list(inspect.signature(fn).parameters)
    except (NameError, TypeError, ValueError):
        return None
    return hints.get(names[0]) if names else None
