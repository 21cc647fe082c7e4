"""Owns what is done with a flow's state as a whole: copying it, joining copies, writing it as JSON.

A node works on a copy. What it wrote counts only when the node has ended well; until then the state is as it was,
even if an abandoned node still changes its copy. Knows nothing of nodes.
"""

import copy
import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import SafepointError, UsageError

__all__ = ["JoinConflict", "clone", "dump", "first_parameter", "load", "merge", "return_type"]

S = TypeVar("S")
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
CONTAINERS = frozenset({list, set, dict})
MISSING = object()
# The name of the only "field" of a state that has no fields.
WHOLE = object()


class JoinConflict(SafepointError):
    """Two branches of a parallel node have written different values to the same field, and there is no `join`."""


def clone(state: S) -> S:
    """Return a copy that shares nothing that can be changed.

    Most states are flat, and for those this is much faster than `copy.deepcopy`.

    Raises:
        UsageError: The state cannot be copied.
    """
    kind: type = type(state)
    if kind in ATOMS:
        return state
    if kind in CONTAINERS:
        return copy.copy(state) if _is_flat(state) else _clone_deeply(state)
    names = _plain_fields(kind)
    if names is None:
        return _clone_deeply(state)
    return _clone_plain(state, names)


def _clone_deeply(state: S) -> S:
    try:
        return copy.deepcopy(state)
    except Exception as problem:  # the parts of the state may raise anything
        raise UsageError(
            f"{type(state).__name__} cannot be copied ({problem}): keep in the state only what can, and give the rest"
            " as services"
        ) from problem


def _clone_plain(state: S, names: tuple[str, ...]) -> S:
    values = []
    containers = 0
    container_ids = set()
    for name in names:
        value = getattr(state, name, MISSING)
        kind = type(value)
        if kind not in ATOMS:
            if kind not in CONTAINERS or not _is_flat(value):
                return _clone_deeply(state)
            containers += 1
            container_ids.add(id(value))
            value = copy.copy(value)
        values.append(value)
    if containers != len(container_ids) or len(getattr(state, "__dict__", names)) != len(names):
        return _clone_deeply(state)  # two fields share a list, or there are attributes besides the fields
    new: S = object.__new__(type(state))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)
    return new


def _is_flat(value: Any) -> bool:
    """Whether a list, set or dict contains only immutable values."""
    kinds = set(map(type, value))
    return kinds <= ATOMS and (type(value) is not dict or set(map(type, value.values())) <= ATOMS)


@cache
def _plain_fields(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass that can be copied field by field, or None for any other class."""
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
    """Return the names of all slots of a class, including those of its base classes."""
    slots: list[str] = []
    for each in kind.__mro__:
        own = each.__dict__.get("__slots__", ())
        slots += [own] if isinstance(own, str) else own
    return [name for name in slots if name not in ("__dict__", "__weakref__")]


def merge(base: S, branches: Mapping[str, S]) -> S:
    """Return the base with what each branch has changed.

    Raises:
        JoinConflict: Two branches changed a field differently.
    """
    merged = clone(base)
    before = _fields(base)
    changed: dict[object, tuple[str, Any]] = {}
    for branch, state in branches.items():
        after = _fields(state)
        for name in {**before, **after}:
            value = after.get(name, MISSING)
            if _same(value, before.get(name, MISSING)):
                continue
            first, other = changed.setdefault(name, (branch, value))
            if not _same(value, other):
                field = "the state" if name is WHOLE else repr(name)
                raise JoinConflict(
                    f"the branches {first!r} and {branch!r} both changed {field}: say how they become one,"
                    " with join=function(state, branches)"
                )
    for name, (_, value) in changed.items():
        if name is WHOLE:
            whole: S = value
            return whole
        _set_field(merged, name, value)
    return merged


def _fields(state: object) -> dict[Any, object]:
    """Return the fields of a state by name. A state without fields has one, under the name WHOLE."""
    if isinstance(state, BaseModel):
        return {**state.__dict__, **(state.__pydantic_extra__ or {}), **(state.__pydantic_private__ or {})}
    if isinstance(state, dict) and not getattr(state, "__dict__", None):
        return dict(state)
    slots = _slots(type(state))
    if isinstance(state, dict | list | set | tuple) or not (slots or hasattr(state, "__dict__")):
        return {WHOLE: state}
    return {**{name: getattr(state, name) for name in slots if hasattr(state, name)}, **getattr(state, "__dict__", {})}


def _same(one: object, other: object) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays, for example, have no single truth value: they count as changed
        return False


def _set_field(state: object, name: Any, value: object) -> None:
    """Set a field of a state, even of a frozen one. The value MISSING removes it."""
    fields: dict[Any, Any] | None = state if isinstance(state, dict) else None
    if isinstance(state, BaseModel):
        private, extra = state.__pydantic_private__ or {}, state.__pydantic_extra__
        known = name in type(state).model_fields or extra is None
        fields = private if name in private else vars(state) if known else extra
        state.__pydantic_fields_set__.add(name)
    if fields is None:
        object.__delattr__(state, name) if value is MISSING else object.__setattr__(state, name, value)
    elif value is MISSING:
        fields.pop(name, None)
    else:
        fields[name] = value


@cache
def _adapter(kind: Any) -> TypeAdapter[object]:
    return TypeAdapter(kind)


def dump(value: object) -> object:
    """Return a value as JSON data.

    Raises:
        UsageError: It cannot be written as JSON. The text says what.
    """
    kind: Any = type(value)
    try:
        # "error": a value that is not of its declared type could be written, but not be read back.
        return _adapter(kind).dump_python(value, mode="json", warnings="error")
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(
            f"{type(value).__name__} cannot be written as JSON ({problem}): keep in the state only what can, and give"
            " the rest as services"
        ) from problem


@overload
def load(kind: type[S], data: object) -> S: ...


@overload
def load(kind: object, data: object) -> object: ...


def load(kind: object, data: object) -> object:
    """Read what `dump` has written.

    Args:
        kind: The type of the value.
        data: JSON data.

    Raises:
        ValueError: The data does not fit. The text says where.
    """
    # It reads JSON text, not the data itself: a strict type accepts a date only from JSON, and nothing is shared.
    text = json.dumps(data)
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as problem:
        if problem.errors()[0]["type"] != "json_invalid":
            raise
        # Models sometimes write half of a surrogate pair. Pydantic's reader refuses it, Python's does not.
        return _adapter(kind).validate_python(json.loads(text))


def first_parameter(fn: Callable[..., object]) -> object:
    """Return the annotated type of a function's first parameter, or None. `Any` is returned as `object`."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(fn))
        names = list(inspect.signature(fn).parameters)
    except (NameError, TypeError, ValueError):
        return None
    return _known(hints.get(names[0])) if names else None


def return_type(fn: Callable[..., object]) -> object:
    """Return the annotated type of what a function returns. `Any` and no annotation are returned as `object`."""
    try:
        return _known(typing.get_type_hints(inspect.unwrap(fn)).get("return", object))
    except (NameError, TypeError):
        return object


def _known(annotation: object) -> object:
    """Both `Any` and `object` say that nothing is known of the type. The rest of the package knows only `object`."""
    return object if annotation is Any else annotation
