"""Owns the tests that look inside, beside those of `tests/run/owned/test_account.py`.

The account of a leaf: what it lists, what it ends, and what it says of it later.
"""

from typing import Any

from safepoint.run import Context, leaf
from tests.kit.leaves import LeafRig


async def test_a_leaf_that_starts_nothing_has_no_account():
    bench = LeafRig()
    runs: list[Any] = []

    async def tool(ctx: Context, value: object) -> None:
        from safepoint.abort.resource_account import current_account

        runs.append(current_account.get())

    await leaf(bench.ctx, tool)
    assert runs[0].owned is None
    assert len(bench.entries()) == 1
