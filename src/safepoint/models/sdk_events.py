"""Owns closing the stream of an SDK completely. Knows nothing of the events in it.

The stream of an SDK is a chain of async generators over a connection. Closing the connection alone leaves the
generators suspended. The garbage collector would close them later, each in a task of its own.
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
    """The events of an SDK's stream, for `signal.stream()`: `aclose` also closes the generators of the SDK."""

    def __init__(self, stream: SdkStream[T]) -> None:
        self._stream = stream

    def __aiter__(self) -> "SdkEvents[T]":
        return self

    async def __anext__(self) -> T:
        return await self._stream.__anext__()

    async def aclose(self) -> None:
        """Close the connection, then read until the generators notice it.

        Reading on unwinds the whole chain in this task. It does not wait: the connection is closed already.
        """
        await self._stream.close()
        try:
            while True:
                await self._stream.__anext__()
        except (Exception, StopAsyncIteration):
            pass  # the chain has ended, which is all that was wanted
