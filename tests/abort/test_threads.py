"""Functions in threads: an abort ends the await at once, a late end is dropped and counted, threads are given back."""

import asyncio
import contextvars
import logging
import random
import threading

import pytest

from safepoint.abort import (
    AbandonedThreads,
    AbortController,
    AbortError,
    AbortReason,
    AbortSignal,
    AbortTimeout,
    abandoned_threads,
    current_signal,
    run_in_thread,
    use_clock,
)
from tests.conftest import counts
from tests.kit.clocks import TickingClock
from tests.kit.programs import printed
from tests.kit.waiting import wait_until

SECONDS = 10.0


pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


@pytest.fixture(autouse=True)
def abandoned():
    """How many functions run abandoned and how many late ends were dropped since the test began.

    Each test begins, and leaves, with none running: one that ends in the next test would be counted there.
    """
    wait_until(lambda: abandoned_threads().running == 0)
    begin = abandoned_threads()

    def since():
        now = abandoned_threads()
        return AbandonedThreads(now.running - begin.running, now.dropped - begin.dropped)

    yield since
    wait_until(lambda: abandoned_threads().running == 0)


async def test_the_value_comes_back_from_another_thread():
    def work(first, second):
        return first, second, threading.current_thread()

    first, second, thread = await run_in_thread(work, 1, "two")
    assert (first, second) == (1, "two")
    assert thread is not threading.current_thread()
    assert thread.daemon


@pytest.mark.parametrize("value", [None, False, ValueError("returned, not raised")], ids=repr)
async def test_any_value_is_a_value(value):
    assert await run_in_thread(lambda: value) is value


class Fatal(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("wrong"), AbortError(AbortReason()), Fatal()], ids=repr)
async def test_the_exception_of_the_function_comes_out_itself(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        await run_in_thread(fail)
    assert caught.value is error


@pytest.mark.parametrize("error", [StopIteration(7), asyncio.CancelledError("not ours")], ids=repr)
async def test_an_exception_that_would_end_the_caller_comes_out_as_the_cause_of_another(error):
    def fail():
        raise error

    with pytest.raises(RuntimeError, match=f"fail.* raised {type(error).__name__}") as caught:
        await run_in_thread(fail)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("fn", [None, "fn", 7])
async def test_only_what_can_be_called_is_run(fn):
    with pytest.raises(TypeError, match=f"^fn must be callable, not {type(fn).__name__}$"):
        await run_in_thread(fn)


async def test_the_function_has_the_callers_context_variables_and_keeps_its_changes_to_itself():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    def work():
        seen = variable.get()
        variable.set("thread")
        return seen

    assert await run_in_thread(work) == "caller"
    assert variable.get() == "caller"


async def test_the_function_finds_the_signal_it_was_called_with():
    controller = AbortController()
    ambient = await run_in_thread(current_signal, signal=controller.signal)
    assert not ambient.aborted
    controller.abort("stop")
    assert ambient.reason is controller.signal.reason


async def test_without_a_signal_the_ambient_one_counts():
    controller, began, gate = AbortController(), threading.Event(), threading.Event()

    def work():
        began.set()
        gate.wait(SECONDS)

    with controller.signal.guard():
        task = asyncio.create_task(run_in_thread(work))
        await asyncio.to_thread(began.wait, SECONDS)
    controller.abort("stop")
    with pytest.raises(AbortError) as caught:
        await task
    assert caught.value.reason is controller.signal.reason
    gate.set()


async def test_the_function_can_wait_for_the_abort(abandoned):
    controller, began = AbortController(), threading.Event()
    answers: list[object] = []

    def work():
        began.set()
        answers.append(current_signal().wait(SECONDS))
        current_signal().raise_if_aborted()
        answers.append("not reached")

    task = asyncio.create_task(run_in_thread(work, signal=controller.signal))
    assert await asyncio.to_thread(began.wait, SECONDS)
    controller.abort("stop")
    with pytest.raises(AbortError) as caught:
        await task
    assert caught.value.reason is controller.signal.reason
    wait_until(lambda: abandoned() == AbandonedThreads(0, 1))  # however fast it is: guards are woken before listeners
    assert answers == [True]


@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize("stop", ["abort", "abort from a thread", "outer cancellation"])
async def test_a_stop_ends_the_await_at_once_and_the_late_end_is_dropped_and_counted(ends, stop, abandoned, caplog):
    controller, began, gate = AbortController(), threading.Event(), threading.Event()

    def work():
        began.set()
        assert gate.wait(SECONDS)
        if ends == "raises":
            raise ValueError("late")
        return "late"

    task = asyncio.create_task(run_in_thread(work, signal=controller.signal))
    assert await asyncio.to_thread(began.wait, SECONDS)
    if stop == "abort":
        controller.abort("stop")
    elif stop == "abort from a thread":
        await asyncio.to_thread(controller.abort, "stop")
    else:
        task.cancel()
    with pytest.raises(asyncio.CancelledError if stop == "outer cancellation" else AbortError):
        await task
    assert abandoned() == AbandonedThreads(1, 0)
    with caplog.at_level(logging.INFO, "safepoint"):
        gate.set()
        wait_until(lambda: abandoned() == AbandonedThreads(0, 1))
        wait_until(lambda: caplog.records)
    assert "work" in caplog.text
    assert "dropped" in caplog.text


@pytest.mark.parametrize("signal", [AbortSignal.already("before"), AbortSignal.timeout(0)], ids=["abort", "timeout"])
async def test_under_an_aborted_signal_the_function_never_begins(signal, abandoned):
    begun: list[int] = []
    with pytest.raises(AbortError) as caught:
        await run_in_thread(begun.append, 1, signal=signal)
    await run_in_thread(lambda: "a job that comes later")
    assert begun == []
    assert caught.value.reason is signal.reason
    assert abandoned() == AbandonedThreads(0, 0)


async def test_an_abort_before_the_thread_took_the_function_keeps_it_from_beginning():
    begun: list[int] = []
    with use_clock(TickingClock()):
        signal = AbortSignal.timeout(1.1)  # the first look makes it, the second is the guard's, the third the thread's
        with pytest.raises(AbortTimeout):
            await run_in_thread(begun.append, 1, signal=signal)
    await run_in_thread(lambda: "a job that comes later")
    assert begun == []


async def test_a_stuck_function_does_not_block_later_calls(abandoned):
    gate = threading.Event()
    for number in range(1, 21):
        controller = AbortController()
        asyncio.get_running_loop().call_soon(controller.abort)
        with pytest.raises(AbortError):
            await run_in_thread(gate.wait, SECONDS, signal=controller.signal)
        assert await run_in_thread(lambda: "value") == "value"
        assert abandoned().running <= number
    gate.set()
    wait_until(lambda: abandoned().running == 0)


async def test_each_call_ends_in_exactly_one_way_whatever_comes_first(abandoned):
    rounds, seed = counts(2_000, 20_000), 11
    chance = random.Random(seed)
    values, aborts, begun = [], [], []

    def work(number, seconds):
        begun.append(number)
        if seconds is not None:
            current_signal().wait(seconds)
        return number

    async def call(number):
        controller = AbortController()
        loop = asyncio.get_running_loop()
        match chance.randrange(4):
            case 0:
                loop.call_soon(controller.abort)
            case 1:
                loop.call_later(chance.random() / 500, controller.abort)
            case 2:
                loop.run_in_executor(None, controller.abort)
            case _:
                pass  # not aborted, or after its end
        try:
            values.append(await run_in_thread(work, number, chance.choice([None, 0, 0.001]), signal=controller.signal))
            assert values[-1] == number
        except AbortError:
            assert controller.signal.aborted
            aborts.append(number)
        controller.abort()

    for first in range(0, rounds, 50):
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + 50):
                group.create_task(call(number))
    assert sorted(values + aborts) == list(range(rounds))
    wait_until(lambda: abandoned().running == 0)
    assert abandoned().dropped <= len(aborts)
    assert len(begun) == len(set(begun))
    assert set(values) <= set(begun)
    assert values, "no call came to its value"
    assert aborts, "no call was aborted"
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_threads_are_used_again():
    used = set()
    for _ in range(50):
        used.add(await run_in_thread(threading.current_thread))
    assert len(used) < 25  # not one: a thread may take a moment to be idle again


async def test_an_idle_thread_holds_on_to_nothing():
    class Heavy:
        def __del__(self):
            gone.set()

    gone = threading.Event()
    await run_in_thread(lambda heavy: None, Heavy())
    assert await asyncio.to_thread(gone.wait, SECONDS)


def test_the_end_of_the_program_abandons_what_is_still_running(abandoned):
    began, gate = threading.Event(), threading.Event()

    def work():
        began.set()
        gate.wait(SECONDS)

    async def start():
        task = asyncio.create_task(run_in_thread(work))
        while not began.is_set():
            await asyncio.sleep(0)
        return task

    with asyncio.Runner() as runner:
        task = runner.run(start())
    assert task.cancelled()
    assert abandoned() == AbandonedThreads(1, 0)
    gate.set()
    wait_until(lambda: abandoned() == AbandonedThreads(0, 1))


def test_a_stuck_thread_does_not_keep_the_program_from_ending():
    assert (
        printed("""
        import asyncio, threading
        from safepoint.abort import AbortController, AbortError, abandoned_threads, run_in_thread

        async def main():
            controller, began = AbortController(), threading.Event()

            def stuck():
                began.set()
                threading.Event().wait()

            task = asyncio.create_task(run_in_thread(stuck, signal=controller.signal))
            await asyncio.to_thread(began.wait)
            controller.abort()
            try:
                await task
            except AbortError:
                print(abandoned_threads())

        asyncio.run(main())
    """)
        == "AbandonedThreads(running=1, dropped=0)"
    )


def test_functions_run_in_a_forked_child_too():
    output = printed("""
        import asyncio, os, threading, warnings
        from safepoint.abort import AbandonedThreads, abandoned_threads, run_in_thread, threads

        warnings.simplefilter("ignore")  # newer Pythons warn of every fork beside a thread

        async def call():
            async with asyncio.timeout(10):
                return await run_in_thread(os.getpid)

        assert asyncio.run(call()) == os.getpid()
        while not threads.idle_threads():  # its thread waits for the next call, and is not there after the fork
            threading.Event().wait(0.001)
        child = os.fork()
        if child == 0:
            assert asyncio.run(call()) == os.getpid()
            assert abandoned_threads() == AbandonedThreads(0, 0)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), asyncio.run(call()) == os.getpid())
    """)
    assert output == "0 True"
