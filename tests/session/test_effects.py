"""Effects happen once: a call is on record before its body begins, and nobody repeats what may have been."""

from collections import Counter
from pathlib import Path

import pytest

from safepoint.agent import validate
from safepoint.events import CallRecorded, ToolEnded, TurnEnded
from safepoint.run import Completed
from safepoint.session import SqliteStore
from tests.conftest import counts
from tests.kit.sessions import lines, stored
from tests.kit.stories import Story

STORIES = counts(5, 90)  # three to four kills in each: in `make torture` about 300
LIVES = 12  # at most, until the story has to end


@pytest.mark.parametrize("number", range(STORIES))
async def test_every_effect_is_recorded_before_it_happens_and_no_irreversible_one_happens_twice(
    tmp_path: Path, number: int
) -> None:
    story = Story("tests.session.paying", str(tmp_path))
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
    store = SqliteStore(tmp_path / "s.db")
    events = await stored(store)
    await store.close()
    last = [event for event in events if isinstance(event, TurnEnded)][-1]
    assert isinstance(last.outcome, Completed), last
    validate(last.outcome.value.messages)
    assert last.outcome.value.text == "that is all"
    recorded = {event.idempotency_key for event in events if isinstance(event, CallRecorded)}
    assert {key for _, key, _ in effects} <= recorded
    assert {len({key for tool, key, _ in effects if tool == "charge"})} == {3}, "one key per call, over all lives"
    assert {event.status for event in events if isinstance(event, ToolEnded)} <= {"completed", "unknown"}
