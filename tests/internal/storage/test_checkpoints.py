"""Owns the tests that look inside, beside those of `tests/storage/test_checkpoints.py`.

Stores of checkpoints: the same promises from all of them, also when their process is killed at any moment.
"""

import os
import time

from safepoint.run import (
    FolderCheckpoints,
)
from safepoint.storage.checkpoints import OLD_SECONDS, read_back, write_atomically


async def test_what_crashed_savers_left_is_ignored_and_swept_when_it_is_old(tmp_path):
    old, young = tmp_path / ".safepoint-0123.tmp", tmp_path / ".safepoint-4567.tmp"
    for path in (old, young):
        path.write_text("half")
    os.utime(old, (1, time.time() - OLD_SECONDS - 10))
    store = FolderCheckpoints(tmp_path)
    assert await store.load("k") is None
    await store.save("k", "text")
    assert not old.exists()
    assert young.exists()
    os.utime(young, (1, 1))
    await store.save("k", "text")
    assert young.exists(), "it looks at every file, so not every time"


def test_the_names_everybody_needs_come_from_here(tmp_path):
    write_atomically(tmp_path / "x", "text")
    assert read_back(tmp_path / "x") == "text"
