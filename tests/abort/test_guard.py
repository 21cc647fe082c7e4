"""The guard: exactly one cancellation, balanced; outer ones untouched; results kept; nothing left over."""

import asyncio

import pytest

from safepoint.abort import AbortController, AbortError

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def test_an_abort_interrupts_the_await_and_abort_error_comes_out():
    controller = AbortController()
    asyncio.get_running_loop().call_soon(controller.abort, "stop")
    with pytest.raises(AbortError) as caught:
        with controller.signal.guard():
            await asyncio.Event().wait()
    assert caught.value.reason is controller.signal.reason
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
