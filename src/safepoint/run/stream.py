"""A stream that is read as a leaf: chunk by chunk under the signal, with one entry in the receipt."""

from collections.abc import AsyncIterable
from types import TracebackType
from typing import Generic, TypeVar

from ..abort import Stream
from .context import Context
from .leaf_run import LeafRun
from .policy import Policy

__all__ = ["LeafStream", "stream"]

T = TypeVar("T")
DEFAULT = Policy()


def stream(
    ctx: Context, source: AsyncIterable[T], *, name: str = "stream", policy: Policy = DEFAULT
) -> "LeafStream[T]":
    """Read a source as a leaf: `async with stream(ctx, source) as chunks: async for chunk in chunks: …`.

    The signal is checked before each chunk. The source is closed in the reading task, however the block is left.

    Args:
        ctx: The context of the run.
        source: The source.
        name: The name in the receipt.
        policy: How the leaf is stopped, and its own limits. `abandon_after` has no effect.

    Raises:
        AbortError: The run was aborted.
        LeafTimeout: The time limit of the policy was reached.
    """
    ctx.raise_if_abandoned("stream()")
    return LeafStream(ctx, source, name, policy)


class LeafStream(Generic[T]):
    """A source that is read as a leaf. It is never abandoned."""

    def __init__(self, ctx: Context, source: AsyncIterable[T], name: str, policy: Policy) -> None:
        self._run = LeafRun(ctx, name, "stream", policy)
        self._chunks: Stream[T] = self._run.interrupt_signal().stream(source)

    async def __aenter__(self) -> "LeafStream[T]":
        try:
            self._run.begin()
        except BaseException:
            await self._chunks.aclose()
            raise
        self._run.runs_in_current_task()
        return self

    def __aiter__(self) -> "LeafStream[T]":
        return self

    async def __anext__(self) -> T:
        return await anext(self._chunks)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._chunks.__aexit__(exc_type, exc, traceback)
        except BaseException as error:
            self._run.failed(error)
            raise
        if exc is None:
            self._run.finished()
            return
        error_to_raise = self._run.failed(exc)
        if error_to_raise is not exc:
            raise error_to_raise
