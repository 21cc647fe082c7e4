"""Owns the tests that look inside, beside those of `tests/run/test_cleanup.py`.

Clean-ups: a synchronous one runs in a thread and is left behind in time, everything of the loop runs on the loop.
"""

import asyncio
import contextvars
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from safepoint.abort import AbortController, current_signal
from safepoint.run import Aborted, Context, Outcome, settle
from safepoint.run.cleanup import CleanupCall, runs_on_loop
from safepoint.run.context import Cleanup
from safepoint.testing import FakeClock
from safepoint.testing import drain_ready_tasks as let_settle
from tests.run.test_cleanup import SECONDS, Blocking, begun


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.gate.set()


name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


async def settled(*cleanups: Cleanup, emit: Any = None) -> Outcome[None]:
    """Settle a run that is stopped, with these clean-ups, the last one first."""
    controller = AbortController()

    async def work(ctx: Context, value: object) -> None:
        for cleanup in cleanups:
            ctx.on_exit(cleanup)
        controller.abort()

    return await settle(Context(signal=controller.signal, emit=emit), work, None)


def warnings_of(outcome: Outcome[None]) -> tuple[str, ...]:
    assert isinstance(outcome, Aborted)
    return outcome.receipt.warnings


async def test_the_loop_goes_on_while_a_synchronous_clean_up_blocks(blocking: Blocking):
    settling = asyncio.ensure_future(settled(blocking.close))
    await begun(blocking)
    assert not settling.done()
    blocking.gate.set()  # only the loop can do this: it was free
    async with asyncio.timeout(SECONDS):
        assert warnings_of(await settling) == ()


async def test_a_synchronous_clean_up_that_takes_too_long_is_left_behind_and_named_with_its_place(
    clock: FakeClock, blocking: Blocking, caplog: pytest.LogCaptureFixture
):
    settling = asyncio.ensure_future(settled(blocking.close))
    await begun(blocking)
    await clock.elapse(4.9)
    assert not settling.done()
    await clock.elapse(0.1)
    async with asyncio.timeout(SECONDS):
        outcome = await settling
    [told] = warnings_of(outcome)
    code = Blocking.close.__code__
    place = f"{code.co_filename}:{code.co_firstlineno + 2}"
    assert f"the clean-up Blocking.close took too long; its thread was left behind at {place}" in told
    blocking.gate.set()
    while "returned after the run had gone on" not in caplog.text:
        await asyncio.sleep(0.001)  # real time: the thread's way back


async def test_the_next_clean_up_runs_when_one_was_left_behind(clock: FakeClock, blocking: Blocking):
    ran: list[str] = []
    settling = asyncio.ensure_future(settled(lambda: ran.append("next"), blocking.close))
    await begun(blocking)
    await clock.elapse(5)
    async with asyncio.timeout(SECONDS):
        await settling
    assert ran == ["next"]
    blocking.gate.set()


async def test_what_a_clean_up_returns_or_raises_after_it_was_left_behind_is_dropped(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    async def late() -> None:
        raise AssertionError("nobody awaits it")

    for result in (LookupError("late"), late()):
        blocking = Blocking(result)
        settling = asyncio.ensure_future(settled(blocking.close))
        await begun(blocking)
        await clock.elapse(5)
        async with asyncio.timeout(SECONDS):
            await settling
        caplog.clear()
        blocking.gate.set()
        while "after the run had gone on" not in caplog.text:
            await asyncio.sleep(0.001)  # real time: the thread's way back
        told = [record.getMessage() for record in caplog.records]
        assert ("raised LookupError" in told[0]) is isinstance(result, LookupError)


async def test_a_synchronous_clean_up_has_the_context_variables_of_the_run_and_a_signal_that_is_not_aborted():
    seen: list[object] = []

    def look() -> None:
        seen.extend([name.get(), current_signal().aborted, threading.current_thread() is threading.main_thread()])

    name.set("somebody")
    assert warnings_of(await settled(look)) == ()
    assert seen == ["somebody", False, False]


async def test_what_a_synchronous_clean_up_raises_is_a_warning():
    def fails() -> None:
        raise LookupError("no such file")

    [told] = warnings_of(await settled(fails))
    assert told.endswith("fails raised LookupError: no such file")


async def test_an_awaitable_that_a_synchronous_clean_up_returns_is_awaited_on_the_loop():
    ran: list[threading.Thread] = []

    async def close() -> None:
        await asyncio.sleep(0)
        ran.append(threading.current_thread())

    assert warnings_of(await settled(lambda: close())) == ()
    assert ran == [threading.current_thread()]


def test_a_clean_up_whose_loop_was_closed_reports_to_nobody(blocking: Blocking):
    done = threading.Event()

    async def start() -> CleanupCall:
        def cleanup() -> None:
            blocking.close()
            call._post(lambda: None)
            done.set()

        call = CleanupCall(cleanup)
        task = asyncio.ensure_future(call.run())
        while not blocking.began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        return call

    with asyncio.Runner() as runner:
        runner.run(start())
    blocking.gate.set()
    assert done.wait(SECONDS)


async def test_methods_of_asyncio_objects_are_called_on_the_loop():
    """None of them may be touched by another thread, and none of them blocks."""
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    called: list[threading.Thread] = []

    class Mine(asyncio.Protocol):
        def close(self) -> None:
            called.append(threading.current_thread())

    loop.set_debug(True)  # then asyncio itself notices calls from other threads
    waiting = asyncio.ensure_future(ready.wait())
    await let_settle()
    stop = functools.partial(loop.call_soon, lambda: called.append(threading.current_thread()))
    assert warnings_of(await settled(stop, Mine().close, ready.set)) == ()
    assert await waiting
    await let_settle()
    assert called == [threading.current_thread()] * 2


async def numbers() -> AsyncIterator[int]:
    yield 1


class AsyncClose:
    async def __call__(self) -> None: ...

    async def aclose(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("cleanup", "expected"),
    [
        (AsyncClose().aclose, True),
        (AsyncClose(), True),
        (functools.partial(functools.partial(AsyncClose().aclose)), True),
        (numbers().aclose, True),  # type: ignore[attr-defined]  # it is a generator
        (AsyncClose().close, False),
        (AsyncClose, False),
        (functools.partial(time.sleep, 0), False),  # real time: never called
        (lambda: None, False),
        (threading.Event().set, False),
    ],
)
def test_what_is_async_runs_on_the_loop_and_the_rest_in_a_thread(cleanup: Cleanup, expected: bool):
    assert runs_on_loop(cleanup) is expected


async def test_a_clean_up_that_has_not_begun_in_its_thread_is_left_at_an_unknown_place(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    never: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr("safepoint.run.cleanup.start_in_thread", lambda fn: never)
    asyncio.get_running_loop().call_soon(clock.advance, 5)
    with caplog.at_level(logging.WARNING, "safepoint"):
        [told] = warnings_of(await settled(print))
    assert told.endswith("took too long; its thread was left behind at an unknown place")
    never.set_result(None)


async def test_nothing_is_left_of_a_call_that_has_ended_or_ran_on_the_loop():
    call = CleanupCall(lambda: None)
    assert call.leave() is None
    await call.run()
    assert (call.in_thread, call.leave()) == (False, None)
