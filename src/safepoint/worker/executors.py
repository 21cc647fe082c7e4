"""Where the work on orders runs, as the supervisor sees it: in this process, or in children that can be killed.

Everything here runs in the supervisor's event loop, in which no session runs. Knows nothing of leases.
"""

import asyncio
import json
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias, TypeVar

from ..abort.event_loop import post, resolve, set_within
from ..errors import SafepointError
from ..process.child import start_python
from ..process.frames import FrameBuffer, frame
from . import executor_process
from .broker import Broker
from .order_runner import OrderRunner
from .protocol import Assignment, Call, Ending, Reply, StopCall, from_json
from .worker_loop import WorkerLoop

__all__ = ["PAUSES", "CannotStart", "Executor", "InlineExecutor", "ProcessExecutor", "ProcessPool", "RunningWork"]

T = TypeVar("T")
log = logging.getLogger("safepoint")
# How long a process may take to reply to a stop before its supervisor replies in its place, and to any other call. The
# second one is longer because a process that has just been started is still importing its agents.
STOP_REPLY_SECONDS = 0.1
CALL_REPLY_SECONDS = 4.0

# Called with the id of the turn that runs, and with None when it has ended.
TurnCallback: TypeAlias = Callable[[str | None], object]
# Called with True when the work begins to wait for a sub-agent elsewhere, and with False when it no longer does.
WaitingCallback: TypeAlias = Callable[[bool], object]
# How long the worker pauses before each new attempt to start a process, by default; after the last one it gives up.
PAUSES = (0.5, 1.0, 2.0, 4.0)
# A process that is not ready by then counts as failed. Importing an agent may take long, but not for ever.
START_SECONDS = 60.0


def ignore_waiting(waits: bool) -> None:
    """A `WaitingCallback` that does nothing."""


class RunningWork(Protocol):
    """Work on an order that has begun, as far as a supervisor controls it."""

    async def request(self, call: Call) -> Reply | None:
        """Send a call to the session. Returns None if there is no reply in time."""
        ...

    def hand_over(self, within: float) -> None:
        """End the work and leave open turns to another worker.

        Args:
            within: The seconds in which the running turn may reach a safe point; then it is stopped at once.
        """
        ...

    def kill(self) -> bool:
        """End the work by force. Returns False if it runs where that is impossible."""
        ...


class Executor(RunningWork, Protocol):
    """Runs the work on one order at a time. The holder of the order's lease drives it."""

    def begin(
        self, assignment: Assignment, on_turn: TurnCallback, on_waiting: WaitingCallback = ignore_waiting
    ) -> None:
        """Accept an order. From now on it can receive calls, stops included; `run()` starts the work.

        Args:
            assignment: The order.
            on_turn: Called when a turn starts or ends.
            on_waiting: Called when the work begins or ceases to wait for a sub-agent.
        """
        ...

    def lease_renewed(self, until: float) -> None:
        """Report how long the order is held. Work that hears of no later time by then has lost the order.

        Args:
            until: A time of the monotonic clock.
        """
        ...

    async def run(self) -> Ending:
        """Do the work. Returns how it ended."""
        ...

    def revoke(self, reason: str) -> None:
        """End the work and keep it from writing anything more: the order belongs to another worker."""
        ...


class InlineExecutor:
    """Runs orders in the `WorkerLoop` of this process. Work that ignores every stop cannot be killed here."""

    def __init__(self, worker_loop: WorkerLoop) -> None:
        self._worker_loop = worker_loop
        self._runner: OrderRunner | None = None

    def begin(
        self, assignment: Assignment, on_turn: TurnCallback, on_waiting: WaitingCallback = ignore_waiting
    ) -> None:
        """Accept an order."""
        supervisor_loop = asyncio.get_running_loop()
        self._runner = self._worker_loop.create_runner(
            assignment,
            lambda turn_id: post(supervisor_loop, on_turn, turn_id),
            lambda waits: post(supervisor_loop, on_waiting, waits),
        )

    def lease_renewed(self, until: float) -> None:
        """Do nothing: the work runs in the process of its supervisor, so neither outlives the other."""

    @property
    def _begun(self) -> OrderRunner:
        assert self._runner is not None  # for the type checker: begin() comes first
        return self._runner

    async def run(self) -> Ending:
        """Do the work. An unexpected error ends this order, and not the worker."""
        try:
            return await asyncio.wrap_future(self._worker_loop.run(self._begun))
        except Exception:
            log.exception("the work failed")
            return "failed"

    async def request(self, call: Call) -> Reply | None:
        """Send a call to the session. A stop is applied in this thread, before this returns for the first time."""
        blocked_for = self._worker_loop.blocked_for
        if isinstance(call, StopCall):
            return self._begun.stop(call).while_blocked(blocked_for)
        answer = self._worker_loop.request(self._begun, call)
        try:
            async with asyncio.timeout(STOP_REPLY_SECONDS if blocked_for else CALL_REPLY_SECONDS):
                reply = await asyncio.wrap_future(answer)
        except TimeoutError:
            return None
        return reply.while_blocked(blocked_for)

    def hand_over(self, within: float) -> None:
        """End the work and leave open turns to another worker."""
        self._worker_loop.post(self._begun.hand_over, within)

    def revoke(self, reason: str) -> None:
        """End the work and keep it from writing anything more."""
        self._worker_loop.post(self._begun.revoke, reason)

    def kill(self) -> bool:
        """Return False: this process cannot kill part of itself."""
        return False


class ProcessExecutor:
    """Runs orders in a child process, one after the other. Its process group can be killed at any moment.

    After the setup, which is a pickle, parent and child exchange frames of JSON; `ExecutorProcess` is the other end.

    Attributes:
        failure: What kept the process from starting, if it ends before it is ready.
        broker_missing: True if it ended before it was ready because it could not reach the broker.
        exited: Set when the process has ended and everything it started was killed.
        alive: False as soon as the socket to the process is closed.
    """

    def __init__(self, broker: Broker, targets: Sequence[str], name: str) -> None:
        self._child, self._socket = start_python(executor_process.__name__)
        self._last_request = 0
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._ended: asyncio.Future[Ending] | None = None  # of the current order
        self._on_turn: TurnCallback = lambda turn_id: None
        self._on_waiting: WaitingCallback = ignore_waiting
        self._writer: asyncio.StreamWriter | None = None
        self._unsent: list[bytes] = [pickle.dumps((broker, list(targets), name))]
        self._ready = False
        self._killed = False
        self._ready_or_exited = asyncio.Event()
        self.failure = "it ended without an error message"
        self.broker_missing = False
        self.exited = asyncio.Event()
        self.alive = True

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._child.pid

    def begin(
        self, assignment: Assignment, on_turn: TurnCallback, on_waiting: WaitingCallback = ignore_waiting
    ) -> None:
        """Accept an order."""
        self._on_turn, self._on_waiting = on_turn, on_waiting
        self._ended = asyncio.get_running_loop().create_future()
        self._send({"begin": asdict(assignment)})

    def lease_renewed(self, until: float) -> None:
        """Tell the child, which ends itself if it hears of no later time by then."""
        self._send({"lease_until": until})

    def _send(self, message: Mapping[str, object]) -> None:
        encoded = json.dumps(message).encode()
        if self._writer is None:
            self._unsent.append(encoded)
        elif self.alive:
            self._writer.write(frame(encoded))

    async def read_messages(self) -> None:
        """Connect to the child and handle its messages until it has ended. Must run as a task for its whole life."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._writer.writelines(map(frame, self._unsent))
        frames = FrameBuffer()
        try:
            while received := await reader.read(2**16):
                frames.feed(received)
                while (message := frames.take()) is not None:
                    self._handle(json.loads(message))
        except OSError:
            pass  # it was killed
        finally:
            self.alive = False
            self._writer.close()
            self._clean_up()

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"ready": True}:
                self._ready = True
                self._ready_or_exited.set()
            case {"failed": why, "broker_missing": bool(missing)}:
                self.failure, self.broker_missing = str(why), missing
            case {"n": number, "reply": reply}:
                if number in self._replies:
                    resolve(self._replies[number], from_json(Reply, json.dumps(reply).encode()))
            case {"runs": turn_id}:
                self._on_turn(turn_id)
            case {"waits": bool(waits)}:
                self._on_waiting(waits)
            case {"over": ending} if self._ended is not None:
                resolve(self._ended, ending)
            case _:
                pass

    def _clean_up(self) -> None:
        """Kill what the child has started, and answer everybody who still waits for the child."""
        self._child.kill_all()
        self._child.collect()
        self._ready_or_exited.set()
        self.exited.set()
        if self._ended is not None:
            resolve(self._ended, self._ending_of_exit)
        for waiting in self._replies.values():
            resolve(waiting, Reply(False, "its process has died", error="broken"))

    @property
    def failed_to_start(self) -> bool:
        """True if it ended by itself before it was ready, which is no fault of its order."""
        return not (self.alive or self._ready or self._killed)

    @property
    def _ending_of_exit(self) -> Ending:
        return "unstarted" if self.failed_to_start else "died"

    async def wait_ready(self, seconds: float) -> bool:
        """Wait until it is ready to work. Returns False if it ended before, or is not ready after `seconds`."""
        await set_within(seconds, self._ready_or_exited)
        return self._ready and self.alive

    async def run(self) -> Ending:
        """Do the work."""
        assert self._ended is not None  # for the type checker: begin() comes first
        if not self.alive:
            return self._ending_of_exit
        self._send({"run": True})
        return await self._ended

    async def request(self, call: Call) -> Reply | None:
        """Send a call to the session."""
        self._last_request += 1
        number = self._last_request
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[number] = waiting
        self._send({"n": number, "ask": asdict(call)})
        try:
            async with asyncio.timeout(STOP_REPLY_SECONDS if isinstance(call, StopCall) else CALL_REPLY_SECONDS):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self._replies.pop(number, None)

    def hand_over(self, within: float) -> None:
        """End the work and leave open turns to another worker."""
        self._send({"leave": within})

    def revoke(self, reason: str) -> None:
        """Kill the child. It may be stuck, so it is not relied on to end by itself."""
        self.kill()

    def kill(self) -> bool:
        """Kill the process group of the child."""
        self._killed = True
        self._child.kill_group()
        return True

    def close(self) -> None:
        """End a child that has no order."""
        if self._writer is not None:
            self._writer.close()
        self.kill()


class CannotStart(SafepointError):
    """The processes of the worker end before they are ready: it cannot work, and has returned its orders."""


class ProcessPool:
    """The child processes of one worker: those that wait for an order, and whether new ones can be started.

    A process that ends before it is ready reveals a fault of the worker and not of its order: the agent's file is
    broken, a package is missing, or memory has run out. Such a worker would always have free places and take orders
    away from workers that can do them. So it takes no orders until one of its processes has started again.
    """

    def __init__(self, name: str, start: Callable[[], ProcessExecutor], *, pauses: Sequence[float] = PAUSES) -> None:
        """Create an empty pool.

        Args:
            name: The name of the worker.
            start: Starts a process. May raise OSError.
            pauses: The seconds before each new attempt to start a process; after the last one `recover()` gives up.
        """
        self._name = name
        self._start = start
        self._pauses = tuple(pauses)
        self._spare: list[ProcessExecutor] = []
        self._used: set[ProcessExecutor] = set()
        self._failed = ""  # why the process that was started last did not become ready; empty if it did

    @property
    def works(self) -> bool:
        """False if the process that was started last ended before it was ready."""
        return not self._failure

    @property
    def _failure(self) -> str:
        """Why processes do not start; empty if they do."""
        return self._failed or next((executor.failure for executor in self._used if executor.failed_to_start), "")

    def take(self, group: asyncio.TaskGroup) -> ProcessExecutor:
        """A process for an order: a spare one if there is any, else a new one. Raises: OSError."""
        executor = None
        while self._spare and (executor is None or not executor.alive):
            executor = self._spare.pop()
        if executor is None or not executor.alive:
            executor = self._start_in(group)
        self._used.add(executor)
        return executor

    def _start_in(self, group: asyncio.TaskGroup) -> ProcessExecutor:
        """Start a process. Raises: OSError if the system cannot start one more."""
        try:
            executor = self._start()
        except OSError as error:
            self._failed = f"no process can be started: {error}"
            raise
        group.create_task(executor.read_messages())
        return executor

    def give_back(self, executor: ProcessExecutor) -> None:
        """Return a process whose order has ended."""
        self._used.discard(executor)
        if executor.alive:
            self._spare.append(executor)
        elif executor.failed_to_start:
            self._failed = executor.failure

    async def recover(self, group: asyncio.TaskGroup, leaving: asyncio.Event) -> None:
        """Try to start a process until one becomes ready. Returns early when `leaving` is set.

        A process that could not reach the broker reveals nothing about this worker: it does not count as a try.

        Raises:
            CannotStart: No process became ready, and all tries are used up.
        """
        tries = 0
        while tries < len(self._pauses):
            what = "a process for its work has ended before it was ready"
            pause = self._pauses[tries]
            log.warning("worker %s: %s (%s): no orders for %g s", self._name, what, self._failure, pause)
            if await set_within(pause, leaving):
                return
            executor = await self._try_to_start(group)
            if executor is not None and executor.alive:
                self._failed = ""
                self._spare.append(executor)
                log.warning("worker %s: its processes start again: it takes orders", self._name)
                return
            tries += executor is None or not executor.broker_missing
        why = f"{len(self._pauses) + 1} processes in a row have ended before they were ready ({self._failed})"
        raise CannotStart(f"worker {self._name} cannot work: {why}")

    async def _try_to_start(self, group: asyncio.TaskGroup) -> ProcessExecutor | None:
        """Start a process and wait until it is ready or has failed. Returns None if the system cannot start one."""
        try:
            executor = self._start_in(group)
        except OSError:
            return None
        if not await executor.wait_ready(START_SECONDS):
            self._failed = executor.failure
            executor.close()
            await executor.exited.wait()
        return executor

    def close(self) -> None:
        """End the processes that have no order."""
        for executor in self._spare:
            executor.close()
