"""Scenarios with one defect each, of the kind people write. All of them work when nobody aborts.

Each is a function that makes a fresh scenario. The line with the comment `# the point` is where an abort shows the
defect, and the law that must name it stands above. `after` ends what the defect leaves behind.
"""

import asyncio
import contextlib
import inspect
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from safepoint.abort import AbortController, AbortError, current_clock, run_in_thread
from safepoint.testing import Probe, Scenario


@dataclass
class After:
    """What to do when the scenario has been looked at."""

    todo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __call__(self, function: Callable[..., object], *args: object) -> None:
        self.todo.callback(function, *args)


Maker = Callable[[After], Scenario]


@dataclass(frozen=True)
class Planted:
    """A defect, the law that it breaks, words of the message, and where an abort brings it to light."""

    make: Maker
    law: str
    says: str

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def place(self) -> str:
        lines, first = inspect.getsourcelines(self.make)
        (offset,) = (number for number, line in enumerate(lines) if "# the point" in line)
        return f"{os.path.relpath(__file__)}:{first + offset}"


DEFECTS: list[Planted] = []


def breaks(law: str, says: str) -> Callable[[Maker], Maker]:
    def plant(make: Maker) -> Maker:
        DEFECTS.append(Planted(make, law, says))
        return make

    return plant


async def work(seconds: float = 1.0) -> str:
    await current_clock().sleep(seconds)
    return "worked"


@breaks("outcome_is_the_stop", "completed, although the abort had interrupted it at")
def swallowed_cancellation(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        with probe.signal.guard():
            with contextlib.suppress(asyncio.CancelledError):
                await work()  # the point
            await work()

    return scenario


@breaks("outcome_is_the_stop", "completed, although the abort had interrupted it at")
def swallowed_abort(after: After) -> Scenario:
    async def scenario(probe: Probe) -> str:
        with contextlib.suppress(AbortError):
            await probe.signal.run(work())  # the point
        return "all done"

    return scenario


@breaks("outcome_is_the_stop", "CancelledError was swallowed")
def swallowed_outer_cancellation(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        try:
            await probe.signal.run(work())  # the point
        except asyncio.CancelledError:
            return

    return scenario


@breaks("outcome_is_the_stop", "nothing in it ever looks at the signal")
def signal_never_looked_at(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        await work()  # the point
        await work()

    return scenario


@breaks("outcome_is_the_stop", "an abort is never reported as failed: failed: RuntimeError('the tool broke')")
def abort_reported_as_failure(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        try:
            await probe.signal.run(work())  # the point
        except AbortError:
            raise RuntimeError("the tool broke") from None

    return scenario


@breaks("outcome_is_the_stop", "aborted for another reason than ours: user: my own")
def reason_replaced(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        try:
            await probe.signal.run(work())  # the point
        except AbortError:
            own = AbortController()
            own.abort("my own")
            own.signal.raise_if_aborted()

    return scenario


@breaks("no_result_lost", "completed with None, but the result is 'worked'")
def result_lost(after: After) -> Scenario:
    async def scenario(probe: Probe) -> str | None:
        async with asyncio.TaskGroup() as group:
            stopped = group.create_task(probe.signal.wait_async())
            working = group.create_task(work())
            await asyncio.wait({stopped, working}, return_when=asyncio.FIRST_COMPLETED)  # the point
            stopped.cancel()
        return None if probe.signal.aborted else working.result()

    return scenario


@breaks("no_task_left", "a task is left: task background\n")
def task_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        background = asyncio.create_task(work(60), name="background")
        await probe.signal.run(work())  # the point
        await background

    return scenario


@breaks("no_thread_left", "a thread is left: forgotten at ")
def thread_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        gate = threading.Event()
        thread = threading.Thread(target=gate.wait, name="forgotten")
        thread.start()
        after(thread.join)
        after(gate.set)
        await probe.signal.run(asyncio.sleep(0))  # the point
        gate.set()
        thread.join()

    return scenario


@breaks("no_thread_left", "Event.wait (threading.py:")
def function_left_in_a_thread(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        gate = threading.Event()
        after(gate.set)
        async with asyncio.TaskGroup() as group:
            group.create_task(run_in_thread(gate.wait))
            await asyncio.sleep(0)
            await probe.signal.run(asyncio.sleep(0))  # the point
            gate.set()

    return scenario


@breaks("no_process_left", "a child process is left: pid ")
def process_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        process = subprocess.Popen(["sleep", "60"])
        after(process.wait)
        after(process.kill)
        await probe.signal.run(work())  # the point
        process.kill()
        process.wait()

    return scenario


@breaks("no_descriptor_left", f"({os.devnull})")
def descriptor_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        file = open(os.devnull)
        after(file.close)
        await probe.signal.run(work())  # the point
        file.close()

    return scenario


@breaks("no_stream_open", "an async generator was not closed: stream_left_open.<locals>.chunks at ")
def stream_left_open(after: After) -> Scenario:
    async def chunks() -> AsyncIterator[int]:
        for number in range(3):
            await work()
            yield number

    async def scenario(probe: Probe) -> None:
        async for _ in chunks():
            await probe.signal.run(work())  # the point

    return scenario


@breaks("no_listener_left", "listeners or guards are left on the signal: 1")
def listener_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        registration = probe.signal.add_listener(lambda: None)
        await probe.signal.run(work())  # the point
        registration.remove()

    return scenario


@breaks("no_listener_left", "listeners or guards are left on the signal: 1")
def listener_left_on_a_signal_that_lives_longer(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        session = AbortController().signal
        probe.watch(session)
        registration = session.add_listener(lambda: None)
        await probe.signal.run(work())  # the point
        registration.remove()

    return scenario


@breaks("no_timer_armed", "a timer is left armed: 1 of the fake clock")
def timer_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        timer = current_clock().call_at(current_clock().monotonic() + 100, lambda: None)
        await probe.signal.run(work())  # the point
        timer.disarm()

    return scenario


@breaks("no_timer_armed", "a timer is left armed: <TimerHandle")
def timer_of_the_loop_left(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        handle = asyncio.get_running_loop().call_later(100, lambda: None)
        await probe.signal.run(work())  # the point
        handle.cancel()

    return scenario


@breaks("events_are_paired", "tool_started has no end among the events")
def end_event_missing(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        probe.event("tool_started")
        await probe.signal.run(work())  # the point
        probe.event("tool_ended")

    return scenario


@breaks("events_are_paired", "the last event is progress_made, not the end of run_started")
def event_after_the_last(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        probe.event("run_started")
        try:
            await probe.signal.run(work())  # the point
        finally:
            probe.event("run_ended")
            if probe.signal.aborted:
                probe.event("progress_made")

    return scenario


@breaks("no_effect_after_the_stop", "an effect after the stop: 'mail sent', recorded at ")
def effect_after_the_stop(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        try:
            await probe.signal.run(work())  # the point
        finally:
            probe.record("mail sent")

    return scenario


@breaks("works_again", "run once more: the run hangs: nothing can ever wake it")
def lock_left_taken(after: After) -> Scenario:
    lock = asyncio.Lock()

    async def scenario(probe: Probe) -> None:
        await lock.acquire()
        await probe.signal.run(work())  # the point
        lock.release()

    return scenario


@breaks("works_again", "it does not complete: failed: RuntimeError('busy')")
def busy_flag_left_set(after: After) -> Scenario:
    busy: list[bool] = []

    async def scenario(probe: Probe) -> None:
        if busy:
            raise RuntimeError("busy")
        busy.append(True)
        await probe.signal.run(work())  # the point
        busy.clear()

    return scenario


@breaks("ends", "the run hangs: nothing can ever wake it: no timer, no I/O and no thread is pending")
def cleanup_that_never_ends(after: After) -> Scenario:
    async def scenario(probe: Probe) -> None:
        try:
            await probe.signal.run(work())  # the point
        except AbortError:
            await asyncio.Event().wait()

    return scenario
