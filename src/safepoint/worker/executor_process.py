"""The main program of a child process that works on orders for a supervisor.

The main thread runs the event loop in which sessions work. A second thread reads the supervisor's messages, so that a
stop is applied and acknowledged even while the event loop is blocked by a tool.
"""

import asyncio
import json
import logging
import math
import pickle
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from ..agent.agent import Agent
from ..agent.target import load_agent
from ..errors import describe
from ..process.frames import FrameSocket
from ..process.group import kill_own_processes
from .broker import Broker, BrokerError
from .order_runner import OrderRunner
from .protocol import Assignment, Ending, Reply, StopCall, call_from_json, from_json
from .worker_loop import SWITCH_SECONDS, WorkerLoop

__all__ = ["main"]

log = logging.getLogger("safepoint")
# How long running work may take to end by itself when the supervisor has died or is silent. Then it is killed.
ORPHAN_SECONDS = 3.0


class ExecutorProcess:
    """The child's end of a `ProcessExecutor`.

    The process must not outlive its right to write. Three cases end it, and each has its own mechanism:

    - The supervisor ends the work, or loses the lease and knows it: it sends a message, or kills this process.
    - The supervisor dies: the socket reports the end of the stream, and `listen()` returns from its loop.
    - The supervisor is frozen, or this process is: no message arrives. With every renewal the supervisor sends the time
      until which the lease holds, on the monotonic clock that all processes of a machine share. If that time passes
      without a later one, another worker may have the order, so this process ends.

    In each case the store is blocked before anything is waited for: whatever the work still does in its last
    `ORPHAN_SECONDS`, it can no longer write a record. The compare-and-set of the log would refuse such a record too,
    but only once the next owner has written its first one.
    """

    def __init__(self, supervisor: FrameSocket) -> None:
        """Create it.

        Args:
            supervisor: The socket to the supervisor.
        """
        self._supervisor = supervisor
        self._lease_until = math.inf
        self._runner: OrderRunner | None = None
        self._work_ended = threading.Event()

    def send(self, **message: object) -> None:
        """Send a message to the supervisor. May be called from any thread."""
        # If the supervisor has died, the thread in listen() notices it.
        self._supervisor.send(json.dumps(message).encode())

    def receive_setup(self) -> tuple[Broker, list[str], str]:
        """Wait for the first message: the broker, the agents to load and the name of the worker."""
        setup: tuple[Broker, list[str], str] = pickle.loads(self._supervisor.receive() or b"")
        return setup

    def _next_message(self) -> bytes | None:
        """Wait for the next message of the supervisor. Returns None if the supervisor has died.

        Messages that have already arrived are read before the clock is looked at. After a freeze of this process the
        lease that it knows of is always over, but the renewals that were sent meanwhile wait in the socket.

        Raises:
            TimeoutError: No message came until the lease was over.
        """
        remaining = self._lease_until - time.monotonic()
        return self._supervisor.receive(None if remaining == math.inf else max(remaining, 0.0))

    def listen(self, worker_loop: WorkerLoop) -> None:
        """Handle the supervisor's messages until it has died or the lease is over; then end this process.

        Runs in a thread of its own.
        """
        why = "its supervisor has died"
        try:
            while (message := self._next_message()) is not None:
                self._handle(worker_loop, json.loads(message))
        except TimeoutError:
            why = "its supervisor was silent until the lease was over"
            log.warning("%s: the work in this process ends", why)
        runner = self._runner
        if runner is not None:
            worker_loop.post(runner.revoke, why)
            self._work_ended.wait(ORPHAN_SECONDS)
        kill_own_processes()

    def _handle(self, worker_loop: WorkerLoop, message: dict[str, Any]) -> None:
        match message:
            case {"begin": assignment}:
                self._begin(worker_loop, from_json(Assignment, json.dumps(assignment).encode()))
            case {"run": True} if self._runner is not None:
                runner = self._runner
                worker_loop.run(runner).add_done_callback(lambda done: self._send_ending(runner, done))
            case {"n": number, "ask": data} if self._runner is not None:
                call, blocked_for = call_from_json(json.dumps(data).encode()), worker_loop.blocked_for
                if isinstance(call, StopCall):  # applied in this thread, because the event loop may be blocked
                    self._send_reply(number, self._runner.stop(call), blocked_for)
                    return
                answer = worker_loop.request(self._runner, call)
                answer.add_done_callback(lambda done: self._send_reply(number, done.result(), blocked_for))
            case {"lease_until": until} if self._runner is not None:
                self._lease_until = until
            case {"leave": within} if self._runner is not None:
                worker_loop.post(self._runner.hand_over, within)
            case _:
                pass

    def _send_reply(self, number: int, reply: Reply, blocked_for: float) -> None:
        self.send(n=number, reply=asdict(reply.while_blocked(blocked_for)))

    def _begin(self, worker_loop: WorkerLoop, assignment: Assignment) -> None:
        self._work_ended.clear()
        self._lease_until = math.inf  # until the supervisor reports it

        def on_waiting(waits: bool) -> None:
            if self._runner is runner:  # a tool that an earlier order has abandoned must not report for this one
                self.send(waits=waits)

        self._runner = runner = worker_loop.create_runner(
            assignment, lambda turn_id: self.send(runs=turn_id), on_waiting
        )

    def _send_ending(self, runner: OrderRunner, done: "Future[Ending]") -> None:
        self._work_ended.set()
        if self._runner is runner:
            self._runner = None
            self._lease_until = math.inf
        error = done.exception()
        if error is not None:
            log.error("the work failed", exc_info=error)
        self.send(over="failed" if error is not None else done.result())


def main() -> None:
    """Work on orders until the supervisor kills this process or dies."""
    sys.setswitchinterval(SWITCH_SECONDS)
    child = ExecutorProcess(FrameSocket(socket.socket(fileno=int(sys.argv[1]))))
    try:
        broker, targets, name = child.receive_setup()
        agents = {agent.name: agent for agent in map(load_agent, targets)}
        asyncio.run(_work(child, broker, agents, name))
    except Exception as error:
        # The supervisor uses this message only if the process was not ready yet: it logs what is wrong.
        child.send(failed=describe(error), broker_missing=isinstance(error, BrokerError))
        raise


async def _work(child: ExecutorProcess, broker: Broker, agents: Mapping[str, Agent], name: str) -> None:
    worker_loop = WorkerLoop(broker, agents, name)
    await worker_loop.open()
    child.send(ready=True)
    threading.Thread(target=child.listen, args=[worker_loop], daemon=True).start()
    await asyncio.Event().wait()
