"""Owns a stream as a leaf: chunk by chunk under the signal, one line in the receipt. Knows nothing of the chunks."""

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
    """`async with stream(ctx, source) as chunks: async for chunk in chunks: …`

    Checked before each chunk; the source is closed on every path, in this task. Raises: AbortError; LeafTimeout.
    """
    ctx.raise_if_abandoned("stream()")
    return LeafStream(ctx, source, name, policy)


class LeafStream(Generic[T]):
    """A source while it is read as a leaf. Of the policy all counts but `abandon_after`: it is never abandoned."""

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
        told = self._run.failed(exc)
        if told is not exc:
            raise told from exc
