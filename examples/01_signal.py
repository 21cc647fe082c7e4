"""One stop that reaches an await, a thread and a process tree. The program stops itself after a second."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from safepoint import AbortController, AbortError, AbortSignal, current_signal, run_in_thread, run_process
from safepoint.process import ProcessResult

Work = Callable[[AbortSignal], Awaitable[object]]
TREE = "trap '' TERM; sleep 60 & (trap '' TERM; sleep 60) & echo 'three processes that ignore TERM'; wait"


async def wait_a_minute(signal: AbortSignal) -> None:
    with signal.guard():  # an abort interrupts the await below
        await asyncio.sleep(60)


def worker() -> None:
    signal = current_signal()  # the same signal, in the thread
    while not signal.wait(0.1):  # instead of time.sleep
        pass


WORK: dict[str, Work] = {
    "await": wait_a_minute,
    "thread": lambda signal: run_in_thread(worker, signal=signal),
    "process tree": lambda signal: run_process(["sh", "-c", TREE], signal=signal, grace=0.5),
}


async def watched(name: str, signal: AbortSignal, pressed: list[float]) -> None:
    try:
        await WORK[name](signal)
    except AbortError as error:
        took = (time.monotonic() - pressed[0]) * 1000
        print(f"  {name:<14} stopped after {took:6.1f} ms   {error.reason.kind}: {error.reason.message}")
        if isinstance(result := error.partial, ProcessResult):
            print(f"  {'':<14} its output: {result.stdout!r}; still running: {result.survivors or 'none'}")


async def main() -> None:
    controller = AbortController()
    pressed: list[float] = []

    def press_stop() -> None:
        print("Stop!")
        pressed.append(time.monotonic())
        controller.abort("the user pressed Stop")

    print("An await, a thread and a process tree are running …")
    asyncio.get_running_loop().call_later(1.0, press_stop)
    async with asyncio.TaskGroup() as group:
        for name in WORK:
            group.create_task(watched(name, controller.signal, pressed))
    print(f"Why: {controller.signal.reason}")


asyncio.run(main())
