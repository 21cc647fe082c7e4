"""Owns the value that makes both `await Session.open(…)` and `async with Session.open(…)` work."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, TypeVar

__all__ = ["AwaitableContext"]


class AsyncClosable(Protocol):
    """Anything with an async `close()`."""

    async def close(self) -> None:
        """Release it."""
        ...


C = TypeVar("C", bound=AsyncClosable)


class AwaitableContext(Generic[C]):
    """Something that is opened when it is awaited or entered. Leaving `async with` closes it.

    Args:
        open: Opens it and returns it.
    """

    def __init__(self, open: Callable[[], Awaitable[C]]) -> None:
        self._open = open
        self._opened: C | None = None

    def __await__(self) -> Generator[object, None, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
