"""Owns where orders are worked on: one event loop, one link, some runners. Any thread may ask and tell.

Whether its event loop still moves can be seen from outside: what blocks it does not block a stop.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping

from ..agent.agent import Agent
from .broker import Broker, BrokerConnection
from .order_runner import OrderRunner
from .protocol import Assignment, Call, Ending, Reply, StopCall
from .stall_detector import StallDetector

__all__ = ["SWITCH_SECONDS", "WorkerLoop"]

# For the process: a stop is acknowledged by another thread, which must not wait 5 ms for the one that works.
SWITCH_SECONDS = 0.0005


class WorkerLoop:
    """The work of one process. Belongs to the event loop that runs when it is made."""

    def __init__(self, broker: Broker, agents: Mapping[str, Agent], name: str) -> None:
        self._broker = broker
        self._agents = agents
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._connection: BrokerConnection | None = None
        self._pulse = StallDetector()

    async def open(self) -> None:
        """Connect. Raises: BrokerError."""
        self._connection = await self._broker.connect(f"{self._name} (work)")
        self._pulse.start()

    @property
    def busy(self) -> float:
        """For so many seconds the event loop has not moved; 0.0 while it does."""
        return self._pulse.standstill

    def begin(
        self,
        assignment: Assignment,
        heard: Callable[[str | None], object],
        waits: Callable[[bool], object] = lambda waits: None,
    ) -> OrderRunner:
        """A runner, which can be stopped from now on."""
        assert self._connection is not None  # for the type checker: it was opened
        return OrderRunner(self._connection, self._agents, assignment, heard, waits, self._pulse)

    def run(self, runner: OrderRunner) -> "concurrent.futures.Future[Ending]":
        """Let it work. Any thread."""
        return asyncio.run_coroutine_threadsafe(runner.run(), self._loop)

    def ask(self, runner: OrderRunner, call: Call) -> "concurrent.futures.Future[Reply]":
        """Ask something of its session; a stop is answered at once. Any thread."""
        if isinstance(call, StopCall):
            answered: concurrent.futures.Future[Reply] = concurrent.futures.Future()
            answered.set_result(runner.stop(call))
            return answered
        return asyncio.run_coroutine_threadsafe(runner.handle(call), self._loop)

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Call something in the event loop of the work. Any thread."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # it is closed: nothing is left that could hear it

    async def close(self) -> None:
        """Let go of the link."""
        self._pulse.stop()
        if self._connection is not None:
            await self._connection.close()
