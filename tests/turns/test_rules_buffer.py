"""Owns the rules of the buffer, B-1 to B-5, and that no rule of the reference is without its test."""

import re
from pathlib import Path

from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.turn_loops import ControlledTurns

# The starred cases of the catalogue, sections 4.9 to 4.13.
STARRED = (
    *(115, 117, 118, 123, 125, 137, 138),
    *(139, 140, 142, 144, 146, 147, 148, 149, 150, 151, 152, 157, 158, 162),
    *(165, 170, 172, 174, 178),
    *(181, 183, 184, 185, 186, 188, 189, 190, 191, 192, 194, 195, 196),
    *(198, 199, 201, 202, 203, 204, 208, 209, 211, 212, 213, 214, 215),
)


async def test_b5_a_wake_up_is_not_an_end_and_loses_no_item(clock: FakeClock) -> None:
    """Case 196 ☆."""
    desk = ControlledTurns()
    desk.auto = True
    async with desk.loop:
        await drain_ready_tasks()
        for _ in range(3):
            desk.loop._state.wake()
            await drain_ready_tasks()
        assert (desk.loop.finished, desk.kinds()) == (False, ["loop_idle"])
        desk.loop._state.wake()
        desk.push("a")
        await drain_ready_tasks()
    assert (await desk.exit()).handled == 1


def test_every_rule_and_every_starred_case_has_its_test() -> None:
    folders = (Path(__file__).parent, Path(__file__).parents[1] / "internal" / "turns")
    pages = [path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("test_rules_*.py")]
    tests = [found for page in pages for found in re.findall(r"def test_([tb]\d+)_", page)]
    assert {f"t{number}" for number in range(1, 50)} | {f"b{number}" for number in range(1, 6)} == set(tests)
    named = "\n".join(re.findall(r"[Cc]ases?[ _][^\n]*", "\n".join(pages)))
    cases = {int(number) for number in re.findall(r"\b\d{3}\b", named.replace("_", " "))}
    assert set(STARRED) - cases == set()
