"""Agents in the nodes of a flow whose process is killed at any moment: what may have happened is never repeated."""

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import counts
from tests.kit.sessions import lines
from tests.kit.stories import Story

STORIES = counts(2, 16)  # about eight kills in each: in `make torture` about 380 over the three kinds
LIVES = 12  # at most, until the story has to end
BOOKS = ["paid", "short", "short", "1 short", "2 short", "3 short", "short", "short"]


@pytest.mark.parametrize("number", range(STORIES))
@pytest.mark.parametrize("kind", ["folder", "sqlite", "session"])
def test_every_effect_of_an_agent_in_a_node_is_recorded_before_it_happens_and_no_irreversible_one_happens_twice(
    tmp_path: Path, kind: str, number: int
):
    story = Story("tests.flow.paying", str(tmp_path), kind)
    try:
        ends = [story.live(seed) for seed in range(number * LIVES, number * LIVES + LIVES)]
        assert story.live(-1) == "done"
    finally:
        story.end()
    assert "failed" not in ends
    effects = lines(tmp_path / "effects")
    assert all(known == "recorded" for _, _, known in effects), effects
    for name in ("pay", "mail"):
        keys = Counter(key for tool, key, _ in effects if tool == name)
        assert all(times == 1 for times in keys.values()), keys
    assert {len({key for tool, key, _ in effects if tool == "charge"})} == {9}, "one key per call, over all lives"
    assert {len({key for tool, key, _ in effects if tool == "pay"})} <= set(range(10))
    result = (tmp_path / "result").read_text()
    assert result == ("that is all" if kind == "session" else "\n".join(BOOKS))
