"""The measured paths in the documentation: the page shows the calls that the code makes."""

import asyncio

import pytest

from scripts.call_paths import PACKAGE, PAGE, Paths, by_file, measure, page_with, section


@pytest.fixture(scope="module")
def paths() -> Paths:
    return asyncio.run(measure())


def test_the_page_shows_the_paths_as_they_are(paths: Paths):
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with(text, section(paths)), "run: python scripts/call_paths.py --write"


def test_a_message_comes_from_the_session_and_ends_in_the_task_of_the_tool(paths: Paths):
    push, loop, call = paths.message
    assert "session/session.py" in {frame.file for frame in push.stack}
    assert loop.stack[0].file.startswith("turns/")
    assert loop.stack[-1].file == call.stack[0].file == "run/leaf.py"


def test_a_stop_is_one_synchronous_call_and_one_callback_of_the_loop(paths: Paths):
    wake, deliver = paths.stop
    assert wake.stack[0].file == "session/local_host.py"
    assert {wake.stack[-1].file} == {frame.file for frame in deliver.stack} == {"abort/guard.py"}


def test_every_file_of_a_path_exists(paths: Paths):
    files = {file for part in paths.message + paths.stop for file, _ in by_file(part.stack)}
    assert all((PACKAGE / file).is_file() for file in files)
