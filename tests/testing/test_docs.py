"""The page on testing: its examples run, and what it says of names is true."""

import asyncio
import inspect
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import safepoint.testing
from safepoint.abort import use_clock
from safepoint.testing import abort_everywhere

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


NAMES = {name: getattr(safepoint.testing, name) for name in safepoint.testing.__all__} | {"use_clock": use_clock}


def run(marker: str, **names: object) -> dict[str, Any]:
    """Run the one example that contains the marker; what it defined."""
    [block] = [block for block in BLOCKS if marker in block]
    found: dict[str, Any] = {**NAMES, **names}
    exec(compile(block, "testing.md", "exec"), found)
    return found


async def download(url, *, signal, on_event):
    on_event("download_started")
    try:
        await signal.sleep(1)
        return url
    finally:
        on_event("download_ended")


async def scenario(probe):
    return await download("url", signal=probe.signal, on_event=probe.event)


def test_every_example_is_run():
    assert len(BLOCKS) == 4


def test_the_fake_clock_is_used_as_shown():
    [block] = [block for block in BLOCKS if "clock.advance(3)" in block]
    fired: list[float] = []

    def armed() -> None:
        clock = safepoint.abort.current_clock()
        for seconds in (3, 6):
            clock.call_at(clock.monotonic() + seconds, lambda: fired.append(clock.monotonic()))

    body = block.replace("    ...\n", "    armed()\n", 1)
    found: dict[str, Any] = {**NAMES, "armed": armed}
    exec("async def example():\n" + "".join(f"    {line}\n" for line in body.splitlines()), found)
    asyncio.run(found["example"]())
    assert fired == [1003, 1006]


def test_the_test_of_a_download_passes_as_shown():
    found = run("def test_a_download_can_be_stopped_anywhere", download=download, url="url")
    found["test_a_download_can_be_stopped_anywhere"]()


def test_the_rules_of_ignore_are_accepted_as_shown():
    run("ignore=[", scenario=scenario)


def test_a_long_campaign_is_bounded_and_shows_its_progress_as_shown():
    printed = StringIO()
    with redirect_stdout(printed):
        run("time_limit=60", scenario=scenario)["test_as_much_as_there_is_time_for"]()
    lines = printed.getvalue().splitlines()
    assert re.fullmatch(r"abort_everywhere\(scenario\): 0 of 3 points, 2 runs, 0 violations, \d+\.\d s", lines[0])
    assert len(lines) == 1 + 3 + 1
    assert lines[-1] == "0 aborts were not tried"


def test_the_page_names_every_argument_of_abort_everywhere():
    arguments = [name for name in inspect.signature(abort_everywhere).parameters if name != "scenario"]
    assert [name for name in arguments if f"{name}=" not in PAGE] == []
