"""Owns the fence: a resource that no longer answers once its user was aborted. Knows nothing of the resource."""

import datetime
import decimal
import enum
import functools
import inspect
import math
import operator
import os
import types
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from .reason import AbortError
from .signal import AbortSignal

__all__ = ["fence"]

T = TypeVar("T")
# Values: they do nothing, and are compared, added up and sometimes told apart by identity.
PLAIN = (
    *(type(None), bool, int, float, complex, decimal.Decimal, str, bytes, tuple, frozenset, enum.Enum, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, type, types.ModuleType),
    # What C code hands to C code, such as the memory of an array; a name for the type is new in Python 3.13.
    type(datetime.datetime_CAPI),
)
ROUTINES = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    functools.partial,
)


def fence(obj: T, signal: AbortSignal) -> T:
    """A stand-in for `obj` on which every call, read, write and operator raises AbortError once the signal is aborted.

    An orphaned tool that holds it has no further effect. Objects reached through attributes are fenced too; what calls
    and operators return is not, so a cursor or a path made before the abort still works after it. Leaving a `with`
    block is always allowed: it ends something, it begins nothing.

    It is no instance of the resource's type for code written in C, which looks at the real type: `"".join()`, a buffer,
    `re` with a fenced text. `isinstance()` sees the resource's type.
    """
    if not isinstance(signal, AbortSignal):
        raise TypeError(f"signal must be an AbortSignal, not {type(signal).__name__}")
    return cast(T, Fence(obj, signal))


class Fence:
    """The stand-in. Special methods are looked up on the type, so each has to stand here."""

    __slots__ = ("_fenced", "_signal")

    def __init__(self, obj: object, signal: AbortSignal) -> None:
        object.__setattr__(self, "_fenced", obj)
        object.__setattr__(self, "_signal", signal)

    @property  # type: ignore[misc]  # so that isinstance() sees the resource
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(_behind(self))

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, name)
        value = getattr(_through(self), name)
        if isinstance(value, ROUTINES):
            return _fenced_call(value, _signal_of(self))
        return value if isinstance(value, PLAIN) else Fence(value, _signal_of(self))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_through(self), name, _own(self, value))

    def __delattr__(self, name: str) -> None:
        delattr(_through(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _fenced_result(_through(self)(*args, **kwargs), _signal_of(self))

    def __getitem__(self, key: Any) -> Any:
        return _through(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        _through(self)[key] = _own(self, value)

    def __delitem__(self, key: Any) -> None:
        del _through(self)[key]

    def __len__(self) -> int:
        return len(_through(self))

    def __contains__(self, item: object) -> bool:
        return item in _through(self)

    def __bool__(self) -> bool:
        return bool(_through(self))

    def __iter__(self) -> Any:
        return Fence(iter(_through(self)), _signal_of(self))

    def __next__(self) -> Any:
        return next(_through(self))

    def __aiter__(self) -> Any:
        return Fence(aiter(_through(self)), _signal_of(self))

    async def __anext__(self) -> Any:
        return await anext(_through(self))

    def __enter__(self) -> Any:
        entered = _through(self).__enter__()
        return self if entered is _behind(self) else entered

    def __exit__(self, *error: Any) -> Any:
        return _behind(self).__exit__(*error)

    async def __aenter__(self) -> Any:
        entered = await _through(self).__aenter__()
        return self if entered is _behind(self) else entered

    async def __aexit__(self, *error: Any) -> Any:
        return await _behind(self).__aexit__(*error)

    def __reversed__(self) -> Any:
        return Fence(reversed(_through(self)), _signal_of(self))

    def __fspath__(self) -> str | bytes:
        path: str | bytes = os.fspath(_through(self))
        return path

    # What it is stays known after the abort. These give what the resource gives, also where that is no bool.

    def __eq__(self, other: object) -> Any:
        return _behind(self) == (_behind(other) if type(other) is Fence else other)

    def __ne__(self, other: object) -> Any:
        return _behind(self) != (_behind(other) if type(other) is Fence else other)

    def __hash__(self) -> int:
        return hash(_behind(self))

    def __str__(self) -> str:
        return str(_behind(self))

    def __format__(self, spec: str) -> str:
        return format(_behind(self), spec)

    def __repr__(self) -> str:
        return f"fence({_behind(self)!r})"


# Functions, not methods: every name on the stand-in is the resource's.


def _behind(fence: Fence) -> Any:
    return object.__getattribute__(fence, "_fenced")


def _signal_of(fence: Fence) -> AbortSignal:
    signal: AbortSignal = object.__getattribute__(fence, "_signal")
    return signal


def _through(fence: Fence) -> Any:
    _signal_of(fence).raise_if_aborted()
    return _behind(fence)


def _own(fence: Fence, value: object) -> object:
    """What is put into the resource: of a fence of our own, as after `resource.items += [1]`, what is behind it."""
    return _behind(value) if type(value) is Fence and _signal_of(value) is _signal_of(fence) else value


def _operand(value: Any) -> Any:
    return _through(value) if type(value) is Fence else value


def _operator(operate: Callable[[Any, Any], Any]) -> Callable[[Fence, Any], Any]:
    return lambda fence, other: operate(_through(fence), _operand(other))


def _reflected(operate: Callable[[Any, Any], Any]) -> Callable[[Fence, Any], Any]:
    return lambda fence, other: operate(_operand(other), _through(fence))


def _in_place(operate: Callable[[Any, Any], Any]) -> Callable[[Fence, Any], Any]:
    def change(fence: Fence, other: Any) -> Any:
        result = operate(_through(fence), _operand(other))
        return fence if result is _behind(fence) else result

    return change


def _conversion(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda fence, *args: convert(_through(fence), *args)


# Special methods are looked up on the type, so every stand-in has them all; where the resource has not, it says so.
# Not `__index__`: `os.stat()` and others take whatever has it for the number of an open file.
ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
)
CONVERSIONS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": operator.abs,
    "invert": operator.invert,
    "int": int,
    "float": float,
    "complex": complex,
    "bytes": bytes,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}
OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _operator(getattr(operator, f"__{name}__")) for name in (*ARITHMETIC, "lt", "le", "gt", "ge")},
    **{f"r{name}": _reflected(getattr(operator, f"__{name}__")) for name in ARITHMETIC},
    **{f"i{name}": _in_place(getattr(operator, f"__i{name}__")) for name in ARITHMETIC},
    **{name: _conversion(convert) for name, convert in CONVERSIONS.items()},
    "divmod": _operator(divmod),
    "rdivmod": _reflected(divmod),
}
for _name, _forward in OPERATORS.items():
    setattr(Fence, f"__{_name}__", _forward)


def _fenced_call(function: Any, signal: AbortSignal) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        signal.raise_if_aborted()
        return _fenced_result(function(*args, **kwargs), signal)

    return call


def _fenced_result(result: Any, signal: AbortSignal) -> Any:
    return _fenced_await(result, signal) if inspect.iscoroutine(result) else result


async def _fenced_await(coroutine: Coroutine[Any, Any, Any], signal: AbortSignal) -> Any:
    try:
        signal.raise_if_aborted()
    except AbortError:  # called before the abort, awaited after it: the body must not begin
        coroutine.close()
        raise
    return await coroutine
