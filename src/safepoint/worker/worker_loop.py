"""The event loop in which sessions run, with its connection to the broker. Other threads send it calls.

A blocked event loop can be noticed from another thread, and a stop is applied there without waiting for the loop.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping

from ..abort.event_loop import post
from ..agent.agent import Agent
from .broker import Broker, BrokerConnection
from .order_runner import OrderRunner
from .protocol import Assignment, Call, Ending, Reply
from .stop_reader import StallDetector

__all__ = ["SWITCH_SECONDS", "WorkerLoop"]

# The interval after which Python switches threads. A stop is acknowledged by another thread than the one that works,
# and must not wait the default 5 ms for its turn.
SWITCH_SECONDS = 0.0005


class WorkerLoop:
    """Runs orders in the event loop in which it is created. Its methods may be called from any thread."""

    def __init__(self, broker: Broker, agents: Mapping[str, Agent], name: str) -> None:
        self._broker = broker
        self._agents = agents
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._connection: BrokerConnection | None = None
        self._stall_detector = StallDetector()

    async def open(self) -> None:
        """Connect to the broker. Raises: BrokerError."""
        self._connection = await self._broker.connect(f"{self._name} (work)")
        self._stall_detector.start()

    @property
    def blocked_for(self) -> float:
        """The seconds for which the event loop has been blocked; 0.0 if it is not."""
        return self._stall_detector.stalled_for

    def create_runner(
        self,
        assignment: Assignment,
        on_turn: Callable[[str | None], object],
        on_waiting: Callable[[bool], object] = lambda waits: None,
    ) -> OrderRunner:
        """Create the runner of an order. It can be stopped from now on; `run()` starts its work."""
        assert self._connection is not None  # for the type checker: open() comes first
        return OrderRunner(self._connection, self._agents, assignment, on_turn, on_waiting, self._stall_detector)

    def run(self, runner: OrderRunner) -> "concurrent.futures.Future[Ending]":
        """Start the work of a runner."""
        return asyncio.run_coroutine_threadsafe(runner.run(), self._loop)

    def request(self, runner: OrderRunner, call: Call) -> "concurrent.futures.Future[Reply]":
        """Send a call to the session of a runner. A stop needs no event loop: use `OrderRunner.stop()` for it."""
        return asyncio.run_coroutine_threadsafe(runner.handle(call), self._loop)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call a function in the event loop. Does nothing once the loop is closed."""
        post(self._loop, callback, *args)

    async def close(self) -> None:
        """Close the connection."""
        self._stall_detector.stop()
        if self._connection is not None:
            await self._connection.close()
