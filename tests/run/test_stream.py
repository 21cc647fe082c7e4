"""A stream as a leaf: checked before each chunk, closed on every path, one line in the receipt."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from safepoint.abort import AbortError
from safepoint.run import LeafTimeout, Policy, stream
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.leaves import LeafRig


class Numbers:
    """A source that remembers how it was closed."""

    def __init__(self, last: int | None = None, error: Exception | None = None) -> None:
        self.last = last
        self.error = error
        self.closed_in: list[object] = []

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for number in range(1, 100):
                if number == self.last:
                    if self.error is not None:
                        raise self.error
                    await asyncio.get_running_loop().create_future()
                yield number
        finally:
            self.closed_in.append(asyncio.current_task())


async def test_all_chunks_come_and_the_line_says_finished():
    bench, seen = LeafRig(), []
    async with stream(bench.ctx, Numbers(), name="model") as chunks:
        async for chunk in chunks:
            seen.append(chunk)  # noqa: PERF401
    assert seen == list(range(1, 100))
    assert [(e.name, e.kind, e.fate) for e in bench.entries()] == [("run/model", "stream", "finished")]
    assert bench.kinds() == ["leaf_started", "leaf_ended"]


async def test_an_abort_ends_it_between_or_in_a_chunk_and_closes_the_source_in_this_task():
    bench, source, seen = LeafRig(), Numbers(last=4), []
    asyncio.get_running_loop().call_soon(bench.controller.abort, "stop")
    with pytest.raises(AbortError, match="stop"):
        async with stream(bench.ctx, source) as chunks:
            async for chunk in chunks:
                seen.append(chunk)  # noqa: PERF401
    assert seen == [1, 2, 3]
    assert source.closed_in == [asyncio.current_task()]
    assert bench.fates() == ["stopped"]
    assert bench.controller.signal.observers == 0


async def test_a_break_closes_the_source_and_is_a_normal_end():
    bench, source = LeafRig(), Numbers()
    async with stream(bench.ctx, source) as chunks:
        async for _ in chunks:
            break
    assert source.closed_in == [asyncio.current_task()]
    assert bench.fates() == ["finished"]


async def test_an_error_of_the_source_and_one_of_the_reader_come_out_as_they_are():
    for source, error in ((Numbers(last=2, error=LookupError("source")), "source"), (Numbers(), "reader")):
        bench = LeafRig()
        with pytest.raises(LookupError, match=error):
            async with stream(bench.ctx, source) as chunks:
                async for _ in chunks:
                    if error == "reader":
                        raise LookupError("reader")
        assert len(source.closed_in) == 1
        assert bench.fates() == ["finished"]
        assert bench.entries()[0].note == f"failed: LookupError: {error}"


async def test_a_closing_that_fails_is_the_streams_error():
    class Bad:
        def __aiter__(self) -> "Bad":
            return self

        async def __anext__(self) -> int:
            return 1

        async def aclose(self) -> None:
            raise LookupError("closing")

    bench = LeafRig()
    with pytest.raises(LookupError, match="closing"):
        async with stream(bench.ctx, Bad()) as chunks:
            async for _ in chunks:
                break
    assert bench.fates() == ["finished"]


async def test_an_aborted_run_reads_nothing_and_closes_the_source():
    bench = LeafRig()
    bench.controller.abort()
    closed: list[bool] = []

    class Source:
        def __aiter__(self) -> "Source":
            return self

        async def __anext__(self) -> int:
            raise AssertionError("must not be read")

        async def aclose(self) -> None:
            closed.append(True)

    with pytest.raises(AbortError):
        async with stream(bench.ctx, Source()):
            raise AssertionError("must not begin")
    assert closed == [True]
    assert bench.fates() == ["not_started"]


async def test_its_own_limit_is_a_leaf_timeout(clock: FakeClock):
    bench = LeafRig()

    async def read() -> None:
        async with stream(bench.ctx, Numbers(last=2), name="model", policy=Policy(timeout=5)) as chunks:
            async for _ in chunks:
                pass

    task = asyncio.ensure_future(read())
    await clock.elapse(5)
    with pytest.raises(LeafTimeout, match="run/model"):
        await task
    assert clock.pending == 0


async def test_a_source_that_ignores_the_abort_is_named(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    bench, gate = LeafRig(), asyncio.Event()

    async def stubborn() -> AsyncIterator[int]:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass
        yield 1

    async def read() -> None:
        async with stream(bench.ctx, stubborn(), name="model") as chunks:
            async for _ in chunks:
                pass

    task = asyncio.ensure_future(read())
    await drain_ready_tasks()
    bench.controller.abort()
    await clock.elapse(3)
    assert "run/model still runs 3 s after the abort" in caplog.text
    assert "in stubborn" in caplog.text
    gate.set()
    with pytest.raises(AbortError):
        await task
