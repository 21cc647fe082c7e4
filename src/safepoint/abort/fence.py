"""Owns the fence: a proxy that refuses every use of a resource once a signal is aborted. Knows nothing of the resource.

Types: of the resource only the type variable of `fence()` is known. Inside, the two functions that return the resource
give `Any`, because a proxy forwards operations whether or not its resource has them; all other values are `object`.
"""

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
from typing import Any, TypeAlias, TypeVar, cast

from .reason import AbortError
from .signal import AbortSignal

__all__ = ["fence"]

T = TypeVar("T")
Function: TypeAlias = Callable[..., object]
# Values are returned unfenced: they have no effects, and code compares them, sometimes by identity.
PLAIN = (
    *(type(None), bool, int, float, complex, decimal.Decimal, str, bytes, tuple, frozenset, enum.Enum, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, type, types.ModuleType),
    # A capsule, which passes a pointer between C modules. Python 3.13 has a name for this type.
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
    """A proxy of `obj` whose calls, reads, writes and operators raise AbortError once the signal is aborted.

    An abandoned tool that still holds the proxy has no further effect on the resource. Objects reached through
    attributes are fenced as well. Results of calls and operators are not, so a cursor or a path made before the abort
    still works after it. Leaving a `with` block is always allowed, because that only ends something.

    `isinstance()` sees the type of the resource. Code written in C sees the real type and rejects the proxy, such as
    `"".join()` or `re` with a fenced text.

    Args:
        obj: The resource.
        signal: The signal after whose abort the resource must not be used.

    Returns:
        The proxy, typed as the resource.
    """
    if not isinstance(signal, AbortSignal):
        raise TypeError(f"signal must be an AbortSignal, not {type(signal).__name__}")
    return cast(T, Fence(obj, signal))


class Fence:
    """The proxy. Python looks up special methods on the type, so each of them is defined here."""

    __slots__ = ("_fenced", "_signal")

    def __init__(self, obj: object, signal: AbortSignal) -> None:
        object.__setattr__(self, "_fenced", obj)
        object.__setattr__(self, "_signal", signal)

    @property  # type: ignore[misc]  # so that isinstance() sees the resource
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(_behind(self))

    def __getattribute__(self, name: str) -> object:
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

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _fenced_result(_through(self)(*args, **kwargs), _signal_of(self))

    def __getitem__(self, key: object) -> object:
        return _through(self)[key]

    def __setitem__(self, key: object, value: object) -> None:
        _through(self)[key] = _own(self, value)

    def __delitem__(self, key: object) -> None:
        del _through(self)[key]

    def __len__(self) -> int:
        return len(_through(self))

    def __contains__(self, item: object) -> bool:
        return item in _through(self)

    def __bool__(self) -> bool:
        return bool(_through(self))

    def __iter__(self) -> "Fence":
        return Fence(iter(_through(self)), _signal_of(self))

    def __next__(self) -> object:
        return next(_through(self))

    def __aiter__(self) -> "Fence":
        return Fence(aiter(_through(self)), _signal_of(self))

    async def __anext__(self) -> object:
        return await anext(_through(self))

    def __enter__(self) -> object:
        entered = _through(self).__enter__()
        return self if entered is _behind(self) else entered

    def __exit__(self, *error: object) -> object:
        return _behind(self).__exit__(*error)

    async def __aenter__(self) -> object:
        entered = await _through(self).__aenter__()
        return self if entered is _behind(self) else entered

    async def __aexit__(self, *error: object) -> object:
        return await _behind(self).__aexit__(*error)

    def __reversed__(self) -> "Fence":
        return Fence(reversed(_through(self)), _signal_of(self))

    def __fspath__(self) -> str | bytes:
        path: str | bytes = os.fspath(_through(self))
        return path

    # Comparing and printing remain possible after the abort. `==` and `!=` return what the resource returns, which
    # need not be a bool.

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


# Functions, not methods: every name on the proxy is a name of the resource.


BinaryMethod: TypeAlias = Callable[[Fence, object], object]


def _behind(fence: Fence) -> Any:
    return object.__getattribute__(fence, "_fenced")


def _signal_of(fence: Fence) -> AbortSignal:
    signal: AbortSignal = object.__getattribute__(fence, "_signal")
    return signal


def _through(fence: Fence) -> Any:
    _signal_of(fence).raise_if_aborted()
    return _behind(fence)


def _own(fence: Fence, value: object) -> object:
    """The value to store in the resource.

    After `fenced.items += [1]`, Python stores the fence of `items` in the resource. It is replaced by the object behind
    it, if it belongs to the same signal.
    """
    return _behind(value) if type(value) is Fence and _signal_of(value) is _signal_of(fence) else value


def _operand(value: object) -> object:
    return _through(value) if type(value) is Fence else value


def _operator(operate: Function) -> BinaryMethod:
    return lambda fence, other: operate(_through(fence), _operand(other))


def _reflected(operate: Function) -> BinaryMethod:
    return lambda fence, other: operate(_operand(other), _through(fence))


def _in_place(operate: Function) -> BinaryMethod:
    def change(fence: Fence, other: object) -> object:
        result = operate(_through(fence), _operand(other))
        return fence if result is _behind(fence) else result

    return change


def _conversion(convert: Function) -> Function:
    return lambda fence, *args: convert(_through(fence), *args)


# The proxy has all of these special methods; if the resource lacks one, using it raises the resource's TypeError.
# `__index__` is left out: `os.stat()` and others would take any object that has it for a file descriptor.
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
CONVERSIONS: dict[str, Function] = {
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
OPERATORS: dict[str, Function] = {
    **{name: _operator(getattr(operator, f"__{name}__")) for name in (*ARITHMETIC, "lt", "le", "gt", "ge")},
    **{f"r{name}": _reflected(getattr(operator, f"__{name}__")) for name in ARITHMETIC},
    **{f"i{name}": _in_place(getattr(operator, f"__i{name}__")) for name in ARITHMETIC},
    **{name: _conversion(convert) for name, convert in CONVERSIONS.items()},
    "divmod": _operator(divmod),
    "rdivmod": _reflected(divmod),
}
for _name, _forward in OPERATORS.items():
    setattr(Fence, f"__{_name}__", _forward)


def _fenced_call(function: Function, signal: AbortSignal) -> Function:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        signal.raise_if_aborted()
        return _fenced_result(function(*args, **kwargs), signal)

    return call


def _fenced_result(result: object, signal: AbortSignal) -> object:
    return _fenced_await(result, signal) if inspect.iscoroutine(result) else result


async def _fenced_await(coroutine: Coroutine[object, None, object], signal: AbortSignal) -> object:
    try:
        signal.raise_if_aborted()
    except AbortError:  # called before the abort, awaited after it: the body must not start
        coroutine.close()
        raise
    return await coroutine
