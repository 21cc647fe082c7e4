"""Calls in processes of their own: what goes in, what comes out, and that nothing of them is left."""

import asyncio

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal
from tests.internal.process import isolated_functions as functions
from tests.internal.process.isolated_functions import Folder, running
from tests.kit.programs import alive

LONG = 60.0  # a grace that no test waits for


NEVER = AbortSignal.never()


both_loops = pytest.mark.backends("asyncio", "uvloop")


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path) as folder:
        yield folder


async def aborted(task):
    """The abort with which the task ends."""
    with pytest.raises(AbortError) as caught:
        await task
    return caught.value


async def test_a_process_that_left_the_group_is_named_and_left_alone(folder):
    controller = AbortController()
    async with running(functions.leaving_tree, folder, signal=controller.signal, grace=LONG) as task:
        pids = await folder.ready(2)
        controller.abort("stop")
        error = await aborted(task)
    [survivor] = error.partial.survivors
    assert {survivor, error.partial.pid} == set(pids)
    assert alive(survivor)


async def test_an_abort_that_comes_back_keeps_what_the_function_gave_with_it(folder):
    controller = AbortController()
    async with running(functions.obey_with, folder, "half", signal=controller.signal, kill=NEVER) as task:
        await folder.ready()
        controller.abort("stop")
        error = await aborted(task)
    assert error.reason is controller.signal.reason
    assert error.partial == "half"


async def test_a_signal_that_kills_later_than_it_is_seen(folder):
    asked, late = AbortController(), AbortController()
    async with running(functions.outlive_term, folder, 7, signal=asked.signal, kill=late.signal, grace=LONG) as task:
        [pid] = await folder.ready()
        asked.abort("stop")
        await asyncio.sleep(0.1)  # real time: nothing happens, which has no event
        assert alive(pid)
        assert not task.done()
        late.abort("now")
        assert await task == 7  # a value that the function still gives is kept


async def test_a_function_that_outlives_term_hears_the_reason(folder):
    controller = AbortController()
    ending = functions.awaited_reason
    async with running(functions.outlive_term, folder, ending, signal=controller.signal, grace=LONG) as task:
        await folder.ready()
        controller.abort("stop")
        assert await task == controller.signal.reason


async def test_what_a_function_raises_when_it_is_killed_is_only_the_cause(folder):
    controller = AbortController()
    failure = LookupError("in the handler")
    async with running(functions.outlive_term, folder, failure, signal=controller.signal, grace=LONG) as task:
        await folder.ready()
        controller.abort("stop")
        error = await aborted(task)
    assert error.reason is controller.signal.reason
    assert isinstance(error.__cause__, LookupError)


@both_loops
async def test_an_outer_cancellation_ends_the_process_first_and_then_comes_out(folder):
    async with running(functions.stubborn_tree, folder, signal=NEVER, grace=0.1) as task:
        await folder.ready(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert folder.alive() == []
