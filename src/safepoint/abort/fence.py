"""Owns the fence: a resource that no longer answers once its user was aborted. Knows nothing of the resource."""

import functools
import inspect
import types
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar, cast

from .signal import AbortSignal

__all__ = ["fence"]

T = TypeVar("T")
PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, type, types.ModuleType)
ROUTINES = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    functools.partial,
)


def fence(obj: T, signal: AbortSignal) -> T:
    """A stand-in for `obj` on which every call, read and write raises AbortError once the signal is aborted.

    An orphaned tool that holds it has no further effect. Objects reached through attributes are fenced too, what
    calls return is not. Leaving a `with` block is always allowed: it ends something, it begins nothing.
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

    def _pass(self) -> Any:
        object.__getattribute__(self, "_signal").raise_if_aborted()
        return object.__getattribute__(self, "_fenced")

    @property  # type: ignore[misc]  # so that isinstance() sees the resource
    def __class__(self) -> Any:
        return type(object.__getattribute__(self, "_fenced"))

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "_pass"):
            return object.__getattribute__(self, name)
        value = getattr(Fence._pass(self), name)
        signal = object.__getattribute__(self, "_signal")
        if isinstance(value, ROUTINES):
            return _fenced_call(value, signal)
        return value if isinstance(value, PLAIN) else Fence(value, signal)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._pass(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._pass(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._pass()(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._pass()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._pass()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._pass()[key]

    def __len__(self) -> int:
        return len(self._pass())

    def __contains__(self, item: object) -> bool:
        return item in self._pass()

    def __bool__(self) -> bool:
        return bool(self._pass())

    def __iter__(self) -> Iterator[Any]:
        for item in self._pass():
            yield item
            self._pass()

    def __next__(self) -> Any:
        return next(self._pass())

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._pass():
            yield item
            self._pass()

    def __anext__(self) -> Any:
        return anext(self._pass())

    def __enter__(self) -> Any:
        entered = self._pass().__enter__()
        return self if entered is object.__getattribute__(self, "_fenced") else entered

    def __exit__(self, *error: Any) -> Any:
        return object.__getattribute__(self, "_fenced").__exit__(*error)

    async def __aenter__(self) -> Any:
        entered = await self._pass().__aenter__()
        return self if entered is object.__getattribute__(self, "_fenced") else entered

    async def __aexit__(self, *error: Any) -> Any:
        return await object.__getattribute__(self, "_fenced").__aexit__(*error)

    def __eq__(self, other: object) -> bool:
        return bool(object.__getattribute__(self, "_fenced") == other)

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_fenced"))

    def __repr__(self) -> str:
        return f"fence({object.__getattribute__(self, '_fenced')!r})"


def _fenced_call(function: Any, signal: AbortSignal) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        signal.raise_if_aborted()
        result = function(*args, **kwargs)
        return _fenced_await(result, signal) if inspect.iscoroutine(result) else result

    return call


async def _fenced_await(coroutine: Coroutine[Any, Any, Any], signal: AbortSignal) -> Any:
    # Called before the abort, awaited after it: the body must not begin.
    if signal.aborted:
        coroutine.close()
    signal.raise_if_aborted()
    return await coroutine
