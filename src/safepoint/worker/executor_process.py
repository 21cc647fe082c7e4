"""Owns the process in which one order is worked on: a thread hears the supervisor, the main thread does the work.

The thread answers stops while the event loop is blocked. When the supervisor is gone, or was silent for a lease,
nothing is written any more, and everything that was started here ends.
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
from .protocol import Assignment, Call, Ending, Reply, from_json
from .worker_loop import SWITCH_SECONDS, WorkerLoop

__all__ = ["main"]

log = logging.getLogger("safepoint")
# When the supervisor has died, or is silent: how long what runs may take to end by itself.
ORPHAN_SECONDS = 3.0


class ExecutorProcess:
    """The other end of a `ProcessSeat`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._said = b""  # and not heard yet
        self._lease_until = math.inf  # of the monotonic clock, which processes of one machine share
        self._lock = threading.Lock()
        self._runner: OrderRunner | None = None
        self._over = threading.Event()

    def say(self, **said: Any) -> None:
        """Tell the supervisor. Any thread."""
        try:
            with self._lock:
                self._line.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            pass  # it has gone: the thread that hears it knows

    def setup(self) -> tuple[Broker, list[str], str]:
        """What the supervisor says first."""
        first: dict[str, str] = json.loads(self._next_line() or b"")
        given: tuple[Broker, list[str], str] = pickle.loads(base64.b64decode(first["setup"]))
        return given

    def _next_line(self) -> bytes | None:
        """What the supervisor says next; None: it has gone.

        What it has said already is heard before the clock is looked at: whoever was frozen has something to read.

        Raises:
            TimeoutError: It was silent until the lease was over.
        """
        while b"\n" not in self._said:
            with selectors.DefaultSelector() as selector:
                selector.register(self._line, selectors.EVENT_READ)
                left = self._lease_until - time.monotonic()
                heard = selector.select(None if left == math.inf else max(left, 0.0))
                # A wait that was cut short by a freeze ends without a look at what there is.
                if not heard and not selector.select(0.0):
                    raise TimeoutError
            try:
                received = self._line.recv(2**16)
            except OSError:  # it was killed with something of ours unread
                received = b""
            if not received:
                return None
            self._said += received
        line, _, self._said = self._said.partition(b"\n")
        return line

    def listen(self, workshop: WorkerLoop) -> None:
        """Hear the supervisor until it is gone, or the lease is over without a word. A thread of its own."""
        why = "its supervisor has died"
        try:
            while (line := self._next_line()) is not None:
                self._hear(workshop, json.loads(line))
        except TimeoutError:  # another worker may have the order
            why = "its supervisor was silent until the lease was over"
            log.warning("%s: what runs here ends", why)
        runner = self._runner
        if runner is not None:
            workshop.post(runner.cut, why)
            self._over.wait(ORPHAN_SECONDS)
        _end_everything()

    def _hear(self, workshop: WorkerLoop, said: dict[str, Any]) -> None:
        match said:
            case {"begin": about}:
                self._begin(workshop, from_json(Assignment, json.dumps(about).encode()))
            case {"run": True} if self._runner is not None:
                runner = self._runner
                workshop.run(runner).add_done_callback(lambda done: self._ended(runner, done))
            case {"n": number, "ask": call} if self._runner is not None:
                read: Call = from_json(Call, json.dumps(call).encode())
                answer, busy = workshop.ask(self._runner, read), workshop.busy
                answer.add_done_callback(lambda done: self._answer(number, done, busy))
            case {"lease_until": until} if self._runner is not None:
                self._lease_until = until
            case {"leave": within} if self._runner is not None:
                workshop.post(self._runner.leave, within)
            case _:
                pass

    def _answer(self, number: int, done: "Future[Reply]", busy: float) -> None:
        self.say(n=number, reply=asdict(done.result().while_blocked(busy)))

    def _begin(self, workshop: WorkerLoop, assignment: Assignment) -> None:
        self._over.clear()
        self._lease_until = math.inf  # until its supervisor says how long it is

        def tell(waits: bool) -> None:
            if self._runner is runner:  # a call that an earlier order has left behind says nothing of this one
                self.say(waits=waits)

        self._runner = runner = workshop.begin(assignment, lambda turn_id: self.say(runs=turn_id), tell)

    def _ended(self, runner: OrderRunner, done: "Future[Ending]") -> None:
        self._over.set()
        if self._runner is runner:
            self._runner = None
            self._lease_until = math.inf
        error = done.exception()
        if error is not None:
            log.error("the work failed", exc_info=error)
        self.say(over="failed" if error is not None else done.result())


def _end_everything() -> None:
    """This process, and whatever it has started, in its group or not."""
    for mark in os.environ.get(process_group.MARK, "").split()[-1:]:
        for pid in process_group.marked(mark):
            if pid != os.getpid():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Work until the supervisor has no more orders."""
    sys.setswitchinterval(SWITCH_SECONDS)
    child = ExecutorProcess(socket.socket(fileno=int(sys.argv[1])))
    try:
        broker, targets, name = child.setup()
        agents = {agent.name: agent for agent in map(load_agent, targets)}
        asyncio.run(_work(child, broker, agents, name))
    except Exception as error:
        # Heard only before it is ready: the supervisor tells what is wrong.
        child.say(failed=describe(error), broker_missing=isinstance(error, BrokerError))
        raise


async def _work(child: ExecutorProcess, broker: Broker, agents: Mapping[str, Agent], name: str) -> None:
    workshop = WorkerLoop(broker, agents, name)
    await workshop.open()
    child.say(ready=True)
    threading.Thread(target=child.listen, args=[workshop], daemon=True).start()
    await asyncio.Event().wait()
