"""The measured paths in the documentation: the page shows the calls that the code makes."""

import asyncio
import sys
from collections import Counter
from types import FrameType

import pytest

from safepoint import Agent, LocalHost, tool
from safepoint.models.scripted import Call, ScriptedModel
from scripts.call_paths import PACKAGE, PAGE, Paths, by_file, measure, page_with, section


@pytest.fixture(scope="module")
def paths() -> Paths:
    return asyncio.run(measure())


def test_the_page_shows_the_paths_as_they_are(paths: Paths):
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with(text, section(paths)), "run: python scripts/call_paths.py --write"


def test_a_message_comes_from_the_session_and_ends_in_the_task_of_the_tool(paths: Paths):
    send, runner, call = paths.message
    assert send.stack[0].file == "session/session.py"
    assert send.stack[-1].file == runner.stack[0].file == "session/engine.py"
    assert runner.stack[-1].file == call.stack[0].file == "run/leaf.py"


def test_a_message_reaches_the_tool_in_few_calls_and_few_files(paths: Paths):
    """From `session.send` to the function of the tool: the calls up to the wake-up, and the awaits of both tasks."""
    frames = [frame for part in paths.message for frame in part.stack]
    assert len(frames) <= 13
    assert len({frame.file for frame in frames}) <= 7


def test_a_stop_is_one_synchronous_call_and_one_callback_of_the_loop(paths: Paths):
    wake, deliver = paths.stop
    assert wake.stack[0].file == "session/local_host.py"
    assert {wake.stack[-1].file} == {frame.file for frame in deliver.stack} == {"abort/guard.py"}


def test_a_stop_on_a_worker_takes_few_calls_from_the_request_to_the_abort(paths: Paths):
    request, deliver = paths.remote_stop
    assert request.stack[0].function == "OrderLease._handle_request"
    assert {frame.file for frame in deliver.stack} == {request.stack[-1].file} == {"abort/guard.py"}
    abort = [frame.function for frame in request.stack].index("RootSignal.announce") + 1
    assert abort <= 10, request.stack


def test_every_file_of_a_path_exists(paths: Paths):
    files = {file for part in paths.message + paths.stop + paths.remote_stop for file, _ in by_file(part.stack)}
    assert all((PACKAGE / file).is_file() for file in files)


def test_a_stop_reaches_the_guard_in_few_calls(paths: Paths):
    wake, _ = paths.stop
    assert len(wake.stack) <= 11


async def test_one_stop_decides_once_and_aborts_once() -> None:
    counts: Counter[str] = Counter()

    @tool
    async def wait() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_qualname in ("AbortController.abort", "Stop.join"):
            counts[frame.f_code.co_qualname] += 1

    began = asyncio.Event()
    host = LocalHost(Agent(ScriptedModel([Call("wait")]), tools=[wait]))
    await host.create("s1")
    turn = (await host.live("s1")).send("Wait.")
    await began.wait()
    sys.setprofile(count)
    await host.stop("s1", turn.id)
    await turn
    sys.setprofile(None)
    await host.close()
    assert counts == {"AbortController.abort": 1, "Stop.join": 1}
