"""Owns the tests that look inside, beside those of `tests/run/owned/test_account.py`.

The account of a leaf: what it lists, what it ends, and what it says of it later.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from safepoint.run import Context, leaf
from tests.conftest import counts
from tests.kit.leaves import LeafRig


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads interrupt each other as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def test_a_leaf_that_starts_nothing_has_no_account():
    bench = LeafRig()
    runs: list[Any] = []

    async def tool(ctx: Context, value: object) -> None:
        from safepoint.abort.resource_account import current_account

        runs.append(current_account.get())

    await leaf(bench.ctx, tool)
    assert runs[0].owned is None
    assert len(bench.entries()) == 1


async def test_functions_that_begin_and_end_while_receipts_are_written_are_listed_truly(quick_switches: None):
    bench = LeafRig()
    accounts: list[Any] = []

    async def tool(ctx: Context, value: object) -> None:
        from safepoint.abort.resource_account import current_account

        leaf_run: Any = current_account.get()
        accounts.append(leaf_run.ensure_account())

    await leaf(bench.ctx, tool)
    [account] = accounts
    over = threading.Event()

    def write_receipts() -> None:
        while not over.is_set():
            bench.ctx.receipt_builder.update()

    def run_functions() -> None:
        for _ in range(counts(300, 10_000)):
            inside, go_on = threading.Event(), threading.Event()

            def function(inside: threading.Event = inside, go_on: threading.Event = go_on) -> None:
                inside.set()
                go_on.wait(10)

            thread = threading.Thread(target=account.thread(function))
            thread.start()
            inside.wait(10)
            running.append(len([entry for entry in bench.entries() if entry.fate == "still_running"]))
            go_on.set()
            thread.join(10)

    running: list[int] = []
    writer = threading.Thread(target=write_receipts)
    writer.start()
    try:
        await asyncio.to_thread(run_functions)
    finally:
        over.set()
        writer.join(10)
    assert running == [1] * counts(300, 10_000)
