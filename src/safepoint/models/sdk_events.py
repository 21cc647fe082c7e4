"""Owns closing the stream of an SDK to its last generator. Knows nothing of what comes out of it.

An SDK's stream is a chain of async generators over a connection. Closing the connection leaves the chain suspended, and
later the garbage collector would close it, each link in a task of its own.
"""

from collections.abc import Awaitable
from typing import Generic, Protocol, TypeVar

__all__ = ["SdkEvents", "SdkStream"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class SdkStream(Protocol[T_co]):
    """The stream of the `openai` and the `anthropic` SDK."""

    def __anext__(self) -> Awaitable[T_co]: ...
    async def close(self) -> None:
        """Close the connection."""
        ...


class SdkEvents(Generic[T]):
    """The events of an SDK's stream, for `signal.stream()`: closing it leaves nothing behind."""

    def __init__(self, stream: SdkStream[T]) -> None:
        self._stream = stream

    def __aiter__(self) -> "SdkEvents[T]":
        return self

    async def __anext__(self) -> T:
        return await self._stream.__anext__()

    async def aclose(self) -> None:
        """Hang up, then read on to where the chain notices: that unwinds it here and now, without any waiting."""
        await self._stream.close()
        try:
            while True:
                await self._stream.__anext__()
        except (Exception, StopAsyncIteration):
            pass  # the end that was wanted
