"""A worker: its agents, where its work runs, and the thread of its control plane. Knows nothing of orders."""

import asyncio
import os
import pickle
import platform
import threading
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from ..abort.clock import check_seconds
from ..abort.event_loop import post, resolve
from ..agent.agent import Agent
from ..agent.target import load_agent
from ..errors import UsageError
from .broker import Broker
from .protocol import Stats
from .supervisor import Settings, Supervisor, WorkerTimings
from .worker_loop import WorkerLoop

__all__ = ["Worker"]

NEEDS_TARGETS = (
    "agents that are given as objects run in this process: give them as 'module:agent' for isolation='process'"
)


class Worker:
    """Runs the turns of sessions that servers host: `async with Worker("my_agents:helper", broker): …`.

    Attributes:
        name: The name of the worker.
        stats: Its counters.
    """

    def __init__(
        self,
        agents: "Agent | Mapping[str, Agent] | str | Sequence[str]",
        broker: Broker,
        *,
        name: str | None = None,
        concurrency: int = 8,
        isolation: Literal["process", "task"] | None = None,
        grace: float = 5.0,
        attempts: int = 10,
        idle_for: float = 1.0,
        timings: WorkerTimings | None = None,
    ) -> None:
        """Create a worker; `start()` starts it.

        Args:
            agents: "module:agent", or several of them; or agents themselves, which then run in this process.
            broker: Where orders come from.
            name: The name of the worker, to which sessions can be pinned; by default a new one.
            concurrency: How many sessions run at the same time.
            isolation: "process" to run each session in a process that can be killed, "task" to run all of them in the
                event loop of `start()`. By default "process" if `agents` are given as "module:agent".
            grace: How long a turn may take to end after an immediate stop before its process is killed.
            attempts: How many attempts are made at a session whose worker dies before its turns are given up.
            idle_for: How many seconds a session stays open after its last turn.
            timings: How often it announces itself, and how long it pauses when its processes do not start.

        Raises:
            UsageError: The arguments do not fit together.
        """
        targets: tuple[str, ...] = ()
        if isinstance(agents, Agent):
            agents = {agents.name: agents}
        elif not isinstance(agents, Mapping):
            targets = (agents,) if isinstance(agents, str) else tuple(agents)
            agents = {agent.name: agent for agent in map(load_agent, targets)}
        if isolation == "process" and not targets:
            raise UsageError(NEEDS_TARGETS)
        if not agents:
            raise UsageError("a worker needs at least one agent")
        if concurrency < 1 or attempts < 1:
            raise UsageError("concurrency and attempts must be at least 1")
        self._agents = dict(agents)
        if isolation != "task" and targets:
            _check_sendable(broker)
        self._in_process = isolation == "process" or (isolation is None and bool(targets))
        self.name = name or f"{platform.node() or 'worker'}-{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self.stats = Stats()
        self._settings = Settings(
            broker,
            self.name,
            tuple(agents),
            targets,
            concurrency,
            check_seconds("grace", grace),
            attempts,
            check_seconds("idle_for", idle_for),
            timings or WorkerTimings(),
        )
        self._worker_loop: WorkerLoop | None = None
        self._supervisor: Supervisor | None = None
        self._control: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start to take orders.

        Raises:
            BrokerError: The broker cannot be reached.
            LeaseInForce: The other workers of an agent use another lease.
        """
        loop = asyncio.get_running_loop()
        if not self._in_process:
            self._worker_loop = WorkerLoop(self._settings.broker, self._agents, self.name)
            await self._worker_loop.open()
        started: asyncio.Future[None] = loop.create_future()
        self._ended = loop.create_future()
        thread = threading.Thread(target=self._supervise, args=[loop, started], name=f"worker {self.name}", daemon=True)
        thread.start()
        try:
            await started
        except BaseException:
            if self._worker_loop is not None:
                await self._worker_loop.close()
            raise

    def _supervise(self, caller_loop: asyncio.AbstractEventLoop, started: "asyncio.Future[None]") -> None:
        """Run the control plane, in a thread with an event loop of its own."""
        assert self._ended is not None  # for the type checker: start() has set it

        async def supervise() -> None:
            self._supervisor = Supervisor(self._settings, self._worker_loop, self.stats)
            self._control = asyncio.get_running_loop()
            await self._supervisor.run(lambda: post(caller_loop, resolve, started, None))

        failure: BaseException | None = None
        try:
            asyncio.run(supervise())
        except BaseException as error:
            failure = error
        for future in (started, self._ended):
            post(caller_loop, _finish, future, failure)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended. Ending the wait does not end the worker.

        Args:
            timeout: Seconds to wait for.

        Raises:
            TimeoutError: It has not ended by then, and goes on.
            UsageError: It was not started.
            SafepointError: The error that has ended it.
        """
        if self._ended is None:
            raise UsageError("the worker was not started")
        async with asyncio.timeout(timeout):
            await asyncio.shield(self._ended)

    async def close(self, *, within: float = 0.0, give_back: bool = True, reason: str = "shutdown") -> None:
        """Take no more orders, end those that are held, and stop the worker.

        Args:
            within: The seconds in which running turns may reach a safe point; then they are stopped at once.
            give_back: True to leave open turns to other workers; False to end them here, as aborted.
            reason: The reason with which they are aborted.
        """
        check_seconds("within", within)
        supervisor, control = self._supervisor, self._control
        if supervisor is None or control is None:
            return
        post(control, supervisor.shut_down, within, give_back, reason)  # does nothing if it has ended already
        try:
            await self.wait()
        finally:
            if self._worker_loop is not None:
                await self._worker_loop.close()

    async def __aenter__(self) -> "Worker":
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _check_sendable(broker: Broker) -> None:
    """Refuse a broker that cannot be pickled for another process. Raises: UsageError."""
    try:
        pickle.dumps(broker)
    except Exception as error:
        why = f"{type(broker).__name__} cannot be used from other processes: use isolation='task'"
        raise UsageError(why) from error


def _finish(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    if error is None:
        resolve(future, None)
    elif not future.done():
        future.set_exception(error)
        future.exception()  # marks it as retrieved, in case nothing waits for it
