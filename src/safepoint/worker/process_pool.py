"""Owns the processes of a worker: those that wait for an order, and whether new ones can be started at all.

A process that ends before it is ready to work says something about the worker and nothing about the order it was
started for: the agent's file is broken, a package is missing, there is no memory. Such a worker would always have free
places, and would take the orders away from those that can do them. So it takes none until a process has come up again.
"""

import asyncio
import logging
from collections.abc import Callable

from ..errors import SafepointError
from .executors import ProcessExecutor
from .wait_helpers import set_within

__all__ = ["CannotStart", "ProcessPool"]

log = logging.getLogger("safepoint")
# How long the worker pauses before it tries to start a process again; after the last try it gives up.
PAUSES = (0.5, 1.0, 2.0, 4.0)
# A process that is not ready by then does not come up: importing an agent may take long, but not for ever.
START_SECONDS = 60.0


class CannotStart(SafepointError):
    """The worker's processes end before they are ready: it cannot work, and has left its orders to others."""


class ProcessPool:
    """The processes of one worker. Belongs to the event loop of its supervisor."""

    def __init__(self, name: str, start: Callable[[], ProcessExecutor]) -> None:
        self._name = name
        self._start = start
        self._spare: list[ProcessExecutor] = []
        self._used: set[ProcessExecutor] = set()  # those that have an order
        self._failed = ""  # why the last process that was started did not come up; empty: it did

    @property
    def works(self) -> bool:
        """False: the last process that was started has ended before it was ready."""
        return not self._why

    @property
    def _why(self) -> str:
        """Why processes do not start; empty if they do."""
        return self._failed or next((executor.failure for executor in self._used if executor.failed_to_start), "")

    def take(self, group: asyncio.TaskGroup) -> ProcessExecutor:
        """A process for an order: one that waits, or a new one."""
        executor = None
        while self._spare and (executor is None or not executor.alive):
            executor = self._spare.pop()
        if executor is None or not executor.alive:
            executor = self._started(group)
        self._used.add(executor)
        return executor

    def _started(self, group: asyncio.TaskGroup) -> ProcessExecutor:
        """Start a process. Raises: OSError, if the system has no room for one."""
        try:
            executor = self._start()
        except OSError as error:
            self._failed = f"no process can be started: {error}"
            raise
        group.create_task(executor.conversation())
        return executor

    def give_back(self, executor: ProcessExecutor) -> None:
        """Take a process back that has no order any more."""
        self._used.discard(executor)
        if executor.alive:
            self._spare.append(executor)
        elif executor.failed_to_start:
            self._failed = executor.failure

    async def recover(self, group: asyncio.TaskGroup, leaving: asyncio.Event) -> None:
        """Wait until a process comes up again. Returns at once when `leaving` is set.

        A process that did not reach the broker says nothing about this worker: that does not count as a try.

        Raises:
            CannotStart: none came up, however often it was tried.
        """
        tries = 0
        while tries < len(PAUSES):
            told = "a process for its work has ended before it was ready"
            log.warning("worker %s: %s (%s): no orders for %g s", self._name, told, self._why, PAUSES[tries])
            if await set_within(PAUSES[tries], leaving):
                return
            executor = await self._tried(group)
            if executor is not None and executor.alive:
                self._failed = ""
                self._spare.append(executor)
                log.warning("worker %s: its processes start again: it takes orders", self._name)
                return
            tries += executor is None or not executor.broker_missing
        told = f"{len(PAUSES) + 1} processes in a row have ended before they were ready ({self._failed})"
        raise CannotStart(f"worker {self._name} cannot work: {told}")

    async def _tried(self, group: asyncio.TaskGroup) -> ProcessExecutor | None:
        """Start a process and see whether it comes up; one that does not is ended. None: there was no room for one."""
        try:
            executor = self._started(group)
        except OSError:
            return None
        if not await executor.comes_up(START_SECONDS):
            self._failed = executor.failure
            executor.dismiss()
            await executor.gone.wait()
        return executor

    def dismiss(self) -> None:
        """End the processes that have no order."""
        for executor in self._spare:
            executor.dismiss()
