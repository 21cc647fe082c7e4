"""The main program of a child process that works on orders for a supervisor.

The main thread runs the event loop in which sessions work. A second thread reads the supervisor's messages, so that a
stop is applied and acknowledged even while the event loop is blocked by a tool.
"""

import asyncio
import base64
import json
import logging
import math
import os
import pickle
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..abort import process_group
from ..agent.agent import Agent
from ..agent.target import load_agent
from ..errors import describe
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

    def __init__(self, supervisor: socket.socket) -> None:
        """Create it.

        Args:
            supervisor: The socket to the supervisor.
        """
        self._supervisor = supervisor
        self._received = b""  # and not handled yet
        self._lease_until = math.inf
        self._send_lock = threading.Lock()
        self._runner: OrderRunner | None = None
        self._work_ended = threading.Event()

    def send(self, **message: object) -> None:
        """Send a message to the supervisor. May be called from any thread."""
        try:
            with self._send_lock:
                self._supervisor.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the supervisor has died, which the thread in listen() notices

    def receive_setup(self) -> tuple[Broker, list[str], str]:
        """Wait for the first message: the broker, the agents to load and the name of the worker."""
        first: dict[str, str] = json.loads(self._next_line() or b"")
        setup: tuple[Broker, list[str], str] = pickle.loads(base64.b64decode(first["setup"]))
        return setup

    def _next_line(self) -> bytes | None:
        """Wait for the next message of the supervisor. Returns None if the supervisor has died.

        Messages that have already arrived are read before the clock is looked at. After a freeze of this process the
        lease that it knows of is always over, but the renewals that were sent meanwhile wait in the socket.

        Raises:
            TimeoutError: No message came until the lease was over.
        """
        while b"\n" not in self._received:
            with selectors.DefaultSelector() as selector:
                selector.register(self._supervisor, selectors.EVENT_READ)
                remaining = self._lease_until - time.monotonic()
                readable = selector.select(None if remaining == math.inf else max(remaining, 0.0))
                # A wait that times out during a freeze reports nothing, even if messages have arrived: look once more.
                if not readable and not selector.select(0.0):
                    raise TimeoutError
            try:
                received = self._supervisor.recv(2**16)
            except OSError:  # the supervisor was killed before it had read everything we sent
                received = b""
            if not received:
                return None
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line

    def listen(self, worker_loop: WorkerLoop) -> None:
        """Handle the supervisor's messages until it has died or the lease is over; then end this process.

        Runs in a thread of its own.
        """
        why = "its supervisor has died"
        try:
            while (line := self._next_line()) is not None:
                self._handle(worker_loop, json.loads(line))
        except TimeoutError:
            why = "its supervisor was silent until the lease was over"
            log.warning("%s: the work in this process ends", why)
        runner = self._runner
        if runner is not None:
            worker_loop.post(runner.revoke, why)
            self._work_ended.wait(ORPHAN_SECONDS)
        _kill_everything()

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


def _kill_everything() -> None:
    """Kill this process and everything it has started, whether in its process group or not."""
    for mark in os.environ.get(process_group.MARK, "").split()[-1:]:
        for pid in process_group.marked(mark):
            if pid != os.getpid():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Work on orders until the supervisor kills this process or dies."""
    sys.setswitchinterval(SWITCH_SECONDS)
    child = ExecutorProcess(socket.socket(fileno=int(sys.argv[1])))
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
