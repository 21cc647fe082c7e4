"""Owns `await Session.open(…)` and `async with Session.open(…)`: one call, both ways. Knows nothing of sessions."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["AwaitableContext"]


class AsyncClosable(Protocol):
    """What can be opened so."""

    async def close(self) -> None:
        """Let it go."""
        ...


C = TypeVar("C", bound=AsyncClosable)


class AwaitableContext(Generic[C]):
    """Something that is about to be opened."""

    def __init__(self, opens: Callable[[], Awaitable[C]]) -> None:
        self._opens = opens
        self._opened: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._opens().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._opens()
        return self._opened

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
