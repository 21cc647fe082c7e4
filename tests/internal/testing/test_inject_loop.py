"""Owns the tests that look inside, beside those of `tests/internal/testing/test_inject_loop.py`.

The loop of a run: tasks stay what they are, every suspension is seen, fake time jumps only when all wait.
"""

import asyncio
import contextvars
import inspect
import socket
import threading

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, run_in_thread, use_clock
from safepoint.testing import FakeClock
from safepoint.testing.inject.loop import CoroutineDriver, Hang, RunLoop


def run(main, *, clock=None, seconds=5.0, saw=None):
    loop = RunLoop(clock, seconds)
    if saw is not None:
        loop.show_suspensions(saw)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


def run_on(clock, main):
    with use_clock(clock):
        return run(main, clock=clock)


def test_every_suspension_of_every_task_is_seen_while_it_is_the_current_one():
    seen = []

    def saw(driver):
        task = asyncio.current_task()
        assert task is not None
        assert task.get_coro() == driver
        seen.append(driver.coroutine.__name__)

    async def child():
        await asyncio.sleep(0)

    async def main():
        await asyncio.sleep(0)
        await asyncio.create_task(child())
        await asyncio.create_task(child())

    run(main(), saw=saw)
    assert seen == ["main", "main", "child", "main", "child"]


def test_an_await_that_does_not_suspend_is_not_seen():
    async def child():
        return 1

    async def main():
        return await child()

    assert run(main(), saw=lambda driver: pytest.fail("it did not suspend")) == 1


def test_a_driven_task_is_an_ordinary_task():
    variable = contextvars.ContextVar("variable", default="outside")

    async def child():
        variable.set("inside")
        await asyncio.sleep(0)
        return asyncio.current_task()

    async def main():
        task = asyncio.create_task(child(), name="child", context=contextvars.copy_context())
        assert await task is task
        assert type(task) is asyncio.Task
        assert task.get_name() == "child"
        assert variable.get() == "outside"
        assert "child" in repr(task)
        return task

    run(main(), saw=lambda driver: None)


def test_inspection_sees_through_the_driver():
    async def main():
        task = asyncio.create_task(asyncio.sleep(0))
        driver = task.get_coro()
        assert isinstance(driver, CoroutineDriver)
        assert inspect.getcoroutinestate(driver) == "CORO_CREATED"
        assert [frame.f_code.co_name for frame in task.get_stack()] == ["sleep"]
        await asyncio.sleep(0)
        assert inspect.getcoroutinestate(driver) == "CORO_SUSPENDED"
        await task
        with pytest.raises(AttributeError):
            driver.no_such_thing  # noqa: B018

    run(main(), saw=lambda driver: None)


def test_cancellation_timeouts_and_groups_work_through_the_driver():
    story = []

    async def child():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            story.append(error.args)
            raise

    async def main():
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        task.cancel("message")
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await child()
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(0)
                raise ValueError
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    run(main(), saw=lambda driver: None)
    assert story[0] == ("message",)
    assert len(story) == 3


def test_a_guard_interrupts_a_driven_task():
    async def main():
        controller = AbortController()
        asyncio.get_running_loop().call_soon(controller.abort)
        with pytest.raises(AbortError):
            await controller.signal.run(asyncio.Event().wait())

    run(main(), saw=lambda driver: None)


def test_a_driver_can_be_awaited_and_closed():
    async def child():
        return 1

    async def main():
        assert await CoroutineDriver(child(), lambda driver: None) == 1
        never = CoroutineDriver(child(), lambda driver: None)
        never.close()

    run(main())


def test_fake_time_is_the_loops_time_and_jumps_to_the_next_timer():
    async def main():
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(500)  # real time: none, the loop's clock is fake
        await AbortController().signal.sleep(300)
        return loop.time() - began

    clock = FakeClock()
    assert run_on(clock, main()) == 800
    assert clock.monotonic() == 1800


def test_fake_time_stands_still_while_a_thread_works():
    clock = FakeClock()

    async def main():
        gate = threading.Event()
        threading.Timer(0.02, gate.set).start()  # the one that works in real time
        sleeping = asyncio.create_task(asyncio.sleep(1))  # real time: none, the loop's clock is fake
        await run_in_thread(gate.wait, 10)
        assert not sleeping.done()
        assert clock.monotonic() == 1000
        await sleeping

    run_on(clock, main())


def test_fake_time_stands_still_while_an_executor_works():
    clock = FakeClock()

    async def main():
        gate = threading.Event()
        timer = threading.Timer(0.02, gate.set)
        timer.start()
        sleeping = asyncio.create_task(asyncio.sleep(1))  # real time: none, the loop's clock is fake
        await asyncio.to_thread(gate.wait, 10)
        timer.join()
        assert clock.monotonic() == 1000
        await sleeping

    run_on(clock, main())


def test_fake_time_stands_still_while_a_socket_is_waited_for():
    clock = FakeClock()

    async def main():
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            sleeping = asyncio.create_task(asyncio.sleep(1))  # real time: none, the loop's clock is fake
            timer = threading.Timer(0.02, there.send, (b"x",))
            timer.start()
            assert await loop.sock_recv(here, 1) == b"x"
            timer.join()
            assert clock.monotonic() == 1000
            await sleeping

    run_on(clock, main())


def test_when_nothing_can_wake_it_the_loop_says_so_at_once():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(Hang, match="nothing can ever wake it"):
        run_on(FakeClock(), main())


def test_real_time_is_bounded():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(Hang, match="did not end within"):
        run(main(), seconds=0.05)


def test_a_deadline_of_the_fake_clock_wakes_the_loop():
    async def main():
        with pytest.raises(AbortError):
            await AbortSignal.timeout(60).run(asyncio.Event().wait())

    run_on(FakeClock(), main())


def test_an_abort_from_another_thread_wakes_the_loop():
    async def main():
        controller = AbortController()
        timer = threading.Timer(0.01, controller.abort)
        timer.start()
        with pytest.raises(AbortError):
            await controller.signal.run(asyncio.Event().wait())
        timer.join()

    run(main())


def test_an_open_generator_is_known_and_a_closed_one_is_not():
    async def chunks():
        yield 1
        yield 2

    async def main():
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RunLoop)
        generator = chunks()
        await anext(generator)
        (text,) = loop.open_generators()
        assert text == f"{chunks.__qualname__} at {here}:{chunks.__code__.co_firstlineno + 1}"
        await generator.aclose()
        assert loop.open_generators() == []

    here = "tests/internal/testing/test_inject_loop.py"
    run(main())


def test_a_generator_left_to_the_collector_is_remembered():
    async def chunks():
        yield 1

    async def main():
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RunLoop)
        await anext(chunks())
        assert len(loop.open_generators()) == 1
        await asyncio.sleep(0)
        return loop.open_generators()

    (text,) = run(main())
    assert text.startswith(chunks.__qualname__)


def test_timers_that_would_still_fire_are_listed():
    clock = FakeClock()

    async def main():
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RunLoop)
        handle = loop.call_later(5, print)
        timer = clock.call_at(clock.monotonic() + 5, print)
        first, second = loop.armed_timers()
        assert "TimerHandle" in first
        assert second == "1 of the fake clock"
        handle.cancel()
        timer.disarm()
        assert loop.armed_timers() == []

    run_on(clock, main())


def test_the_news_of_a_thread_that_became_idle_while_one_looked_is_heard():
    loop = RunLoop(FakeClock(), 5)
    heard: asyncio.Future[str] = loop.create_future()

    def looks_too_late() -> bool:
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(_tell, heard))
        thread.start()
        thread.join()
        return False

    loop.others_pending = looks_too_late  # type: ignore[method-assign]
    try:
        assert loop.run_until_complete(heard) == "news"
    finally:
        loop.close()


def _tell(heard: "asyncio.Future[str]") -> None:
    if not heard.done():
        heard.set_result("news")
