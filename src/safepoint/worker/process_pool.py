"""The child processes of a worker: those that wait for an order, and whether new ones can be started.

A process that ends before it is ready reveals a fault of the worker and not of its order: the agent's file is broken, a
package is missing, or memory has run out. Such a worker would always have free places and take orders away from workers
that can do them. So it takes no orders until one of its processes has started again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..abort.event_loop import set_within
from ..errors import SafepointError
from .executors import ProcessExecutor

__all__ = ["PAUSES", "CannotStart", "ProcessPool"]

log = logging.getLogger("safepoint")
# How long the worker pauses before each new attempt to start a process, by default; after the last one it gives up.
PAUSES = (0.5, 1.0, 2.0, 4.0)
# A process that is not ready by then counts as failed. Importing an agent may take long, but not for ever.
START_SECONDS = 60.0


class CannotStart(SafepointError):
    """The processes of the worker end before they are ready: it cannot work, and has returned its orders."""


class ProcessPool:
    """The child processes of one worker. Belongs to the event loop of its supervisor."""

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
