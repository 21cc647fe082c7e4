"""Owns a worker: its agents, where its work runs, and the thread of its control plane. Knows nothing of orders."""

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
from ..agent.agent import Agent
from ..agent.target import load_agent
from ..errors import UsageError
from .broker import Broker
from .stats import Stats
from .supervisor import Settings, Supervisor
from .worker_loop import WorkerLoop

__all__ = ["Worker"]

TAKES = "agents of this process run in it: give them as 'module:agent' to have them in processes of their own"


class Worker:
    """Runs the turns of sessions that others host. `async with Worker("my_agents:helper", broker): …`

    agents       "module:agent", or several of them; or agents themselves, which then run in this process
    name         who it is among the workers; sessions can be pinned to it
    concurrency  how many sessions at once
    isolation    "process": each in a process that can be ended by force; "task": all in the event loop of `start()`
    grace        how long a turn that was told to stop at once may take before its process is ended
    attempts     how often a session that kills its workers is tried
    idle_for     how long a session is kept open after its last turn
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
    ) -> None:
        targets: tuple[str, ...] = ()
        if isinstance(agents, Agent):
            agents = {agents.name: agents}
        elif not isinstance(agents, Mapping):
            targets = (agents,) if isinstance(agents, str) else tuple(agents)
            agents = {agent.name: agent for agent in map(load_agent, targets)}
        if isolation == "process" and not targets:
            raise UsageError(TAKES)
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
        )
        self._workshop: WorkerLoop | None = None
        self._supervisor: Supervisor | None = None
        self._control: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Begin to take orders.

        Raises:
            BrokerError: there is no broker.
            LeaseInForce: the other workers of an agent use another lease.
        """
        loop = asyncio.get_running_loop()
        if not self._in_process:
            self._workshop = WorkerLoop(self._settings.broker, self._agents, self.name)
            await self._workshop.open()
        started: asyncio.Future[None] = loop.create_future()
        self._ended = loop.create_future()
        thread = threading.Thread(target=self._supervise, args=[loop, started], name=f"worker {self.name}", daemon=True)
        thread.start()
        try:
            await started
        except BaseException:
            if self._workshop is not None:
                await self._workshop.close()
            raise

    def _supervise(self, loop_tasks: asyncio.AbstractEventLoop, started: "asyncio.Future[None]") -> None:
        """The control plane: a thread with an event loop of its own."""
        assert self._ended is not None  # for the type checker: it was made by start()

        async def supervise() -> None:
            self._supervisor = Supervisor(self._settings, self._workshop, self.stats)
            self._control = asyncio.get_running_loop()
            await self._supervisor.run(lambda: loop_tasks.call_soon_threadsafe(_finish, started, None))

        failure: BaseException | None = None
        try:
            asyncio.run(supervise())
        except BaseException as error:
            failure = error
        try:
            loop_tasks.call_soon_threadsafe(_finish, started, failure)
            loop_tasks.call_soon_threadsafe(_finish, self._ended, failure)
        except RuntimeError:
            pass  # the program ends

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended. Whoever stops waiting does not end it.

        Args:
            timeout: Seconds to wait for.

        Raises:
            TimeoutError: It has not ended by then. It goes on.
            UsageError: It was not started.
            SafepointError: What has ended it.
        """
        if self._ended is None:
            raise UsageError("the worker was not started")
        async with asyncio.timeout(timeout):
            await asyncio.shield(self._ended)

    async def close(self, *, within: float = 0.0, give_back: bool = True, reason: str = "shutdown") -> None:
        """Take no more orders, and end.

        within     so many seconds for turns to reach a safe point; then they are stopped at once
        give_back  True: other workers go on with what is not done; False: it is ended here, as aborted
        """
        check_seconds("within", within)
        supervisor, control = self._supervisor, self._control
        if supervisor is None or control is None:
            return
        try:
            control.call_soon_threadsafe(supervisor.go, within, give_back, reason)
        except RuntimeError:
            pass  # it has ended already
        try:
            await self.wait()
        finally:
            if self._workshop is not None:
                await self._workshop.close()

    async def __aenter__(self) -> "Worker":
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _check_sendable(broker: Broker) -> None:
    """Raises: UsageError for a broker that lives in this process."""
    try:
        pickle.dumps(broker)
    except Exception as error:
        told = f"{type(broker).__name__} cannot be sent to processes of their own: use isolation='task'"
        raise UsageError(told) from error


def _finish(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # seen, also if nobody waits
