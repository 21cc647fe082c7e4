"""Owns the tests that look inside, beside those of `tests/flow/test_checkpoint_saver.py`.

The checkpoint of a flow in a store: one run at a time has it, and nothing is overwritten unknowingly.
"""

from pathlib import Path

import pytest

from safepoint.flow import CheckpointCompleted
from safepoint.flow.checkpoint_saver import LONGEST_COMPLETED
from safepoint.run import (
    Checkpoints,
    FolderCheckpoints,
    MemoryCheckpoints,
    SqliteCheckpoints,
)
from tests.flow.test_checkpoint_saver import EACH, ID, given
from tests.kit.flows import Trail, one


@pytest.fixture(params=["memory", "folder", "sqlite"])
def store(request, tmp_path: Path) -> Checkpoints:
    if request.param == "memory":
        return MemoryCheckpoints()
    return (
        FolderCheckpoints(tmp_path / "kept") if request.param == "folder" else SqliteCheckpoints(tmp_path / "kept.db")
    )


async def test_a_result_that_is_too_long_is_not_kept_but_that_it_has_completed_is(store: Checkpoints):
    flow = one(lambda state: state.notes.append("x" * (LONGEST_COMPLETED + 1)), Trail)
    await flow.execute(Trail(), **given(store))
    assert len(await store.load(ID) or "") < 1_000
    for more in EACH:
        with pytest.raises(CheckpointCompleted, match="its result was too long to be kept"):
            await flow.execute(Trail(), **given(store), **more)
