"""Owns where one order is worked on, as its supervisor sees it: in this process, or in a child that can be killed.

All of it runs in the supervisor's event loop, which never runs anybody's work. Knows nothing of leases.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, TypeAlias

from ..abort import process_group
from ..abort.process_group import collect
from .broker import Broker
from .order_runner import OrderRunner
from .protocol import Assignment, Call, Ending, Reply, StopCall, from_json
from .wait_helpers import set_within
from .worker_loop import WorkerLoop

__all__ = ["Executor", "InlineExecutor", "ProcessExecutor"]

log = logging.getLogger("safepoint")
# So long a process may take to answer a stop; then its supervisor answers for it. And so long whatever else is asked:
# a process that has just been started takes its time.
ANSWER_SECONDS = 0.1
CALL_SECONDS = 4.0


Heard: TypeAlias = Callable[[str | None], object]
Waits: TypeAlias = Callable[[bool], object]


def ignored(waits: bool) -> None:
    """For whoever does not want to know whether the work waits for a sub-agent."""


class Executor(Protocol):
    """Where an order is worked on."""

    def begin(self, assignment: Assignment, heard: Heard, waits: Waits = ignored) -> None:
        """Take an order. From now on it can be asked and stopped.

        Args:
            assignment: The order.
            heard: Is told which turn runs, and None when it has ended.
            waits: Is told True when the work waits for a sub-agent elsewhere, and False when it does not any more.
        """
        ...

    def renewed(self, until: float) -> None:
        """The order is held until this moment of the monotonic clock. Who hears nothing more by then has lost it."""
        ...

    async def run(self) -> Ending:
        """Until the work has ended, in one way or another."""
        ...

    async def ask(self, call: Call) -> Reply | None:
        """Ask something of the session. None: there is no answer."""
        ...

    def leave(self, within: float) -> None:
        """Make way for another worker."""
        ...

    def cut(self, why: str) -> None:
        """Write nothing any more, and end."""
        ...

    def kill(self) -> bool:
        """End it by force. False: here that is not possible."""
        ...


class InlineExecutor:
    """A seat in this process. What ignores every stop cannot be ended here."""

    def __init__(self, workshop: WorkerLoop) -> None:
        self._workshop = workshop
        self._runner: OrderRunner | None = None

    def begin(self, assignment: Assignment, heard: Heard, waits: Waits = ignored) -> None:
        """Take an order."""
        loop_tasks = asyncio.get_running_loop()

        def tell(call: Callable[[Any], object], told: object) -> None:
            with contextlib.suppress(RuntimeError):  # the supervisor has gone
                loop_tasks.call_soon_threadsafe(call, told)

        self._runner = self._workshop.begin(assignment, partial(tell, heard), partial(tell, waits))

    def renewed(self, until: float) -> None:
        """Here whoever works lives and dies with its supervisor."""

    @property
    def _begun(self) -> OrderRunner:
        assert self._runner is not None  # for the type checker: begin() comes first
        return self._runner

    async def run(self) -> Ending:
        """Until the work has ended. What nobody has thought of ends this order, and not the worker."""
        try:
            return await asyncio.wrap_future(self._workshop.run(self._begun))
        except Exception:
            log.exception("the work failed")
            return "failed"

    async def ask(self, call: Call) -> Reply | None:
        """Ask something of the session."""
        answer = self._workshop.ask(self._begun, call)
        busy = self._workshop.busy
        if answer.done():  # a stop: whoever waits for its answer waits for no event loop
            return answer.result().while_blocked(busy)
        try:
            async with asyncio.timeout(ANSWER_SECONDS if busy else CALL_SECONDS):
                reply = await asyncio.wrap_future(answer)
        except TimeoutError:
            return None
        return reply.while_blocked(busy)

    def leave(self, within: float) -> None:
        """Make way."""
        self._workshop.post(self._begun.leave, within)

    def cut(self, why: str) -> None:
        """Write nothing any more."""
        self._workshop.post(self._begun.cut, why)

    def kill(self) -> bool:
        """Not possible here."""
        return False


class ProcessExecutor:
    """A child process, for one order after the other. Its process group can be killed at any moment."""

    def __init__(self, broker: Broker, targets: Sequence[str], name: str) -> None:
        self._mark = uuid.uuid4().hex
        self._asked = 0
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._over: asyncio.Future[Ending] | None = None
        self._heard: Heard = lambda turn_id: None
        self._waits: Waits = ignored
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._start(theirs.fileno())
        except OSError:
            ours.close()
            raise
        self._ours = ours
        self._writer: asyncio.StreamWriter | None = None
        setup = pickle.dumps((broker, list(targets), name))
        self._unsent = [{"setup": base64.b64encode(setup).decode()}]
        self._ready = False
        self._killed = False
        self._settled = asyncio.Event()  # it is ready, or has ended
        self.failure = "it ended without a word"  # if it ends before it is ready
        self.broker_missing = False  # True: it did, because it did not reach the broker
        self.gone = asyncio.Event()
        self.alive = True

    def _start(self, line: int) -> "subprocess.Popen[bytes]":
        path = [str(entry) for entry in sys.path]
        start = f"import sys; sys.path[:] = {path!r}; from safepoint.worker.executor_process import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", start, str(line)],
            stdin=subprocess.DEVNULL,
            pass_fds=[line],
            env=process_group.with_mark(os.environ, self._mark),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The child's number."""
        return self._process.pid

    def begin(self, assignment: Assignment, heard: Heard, waits: Waits = ignored) -> None:
        """Take an order."""
        self._heard, self._waits = heard, waits
        self._over = asyncio.get_running_loop().create_future()
        self._say({"begin": asdict(assignment)})

    def renewed(self, until: float) -> None:
        """The child ends itself if it has heard nothing by then."""
        self._say({"lease_until": until})

    def _say(self, said: dict[str, Any]) -> None:
        if self._writer is None:
            self._unsent.append(said)
        elif self.alive:
            self._writer.write(json.dumps(said).encode() + b"\n")

    async def conversation(self) -> None:
        """Hear the child, for its whole life."""
        reader, self._writer = await asyncio.open_connection(sock=self._ours, limit=2**24)
        for said in self._unsent:
            self._say(said)
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except OSError:
            pass  # it was killed
        finally:
            self.alive = False
            self._writer.close()
            self._clean_up()

    def _hear(self, said: dict[str, Any]) -> None:
        match said:
            case {"ready": True}:
                self._ready = True
                self._settled.set()
            case {"failed": why, "broker_missing": bool(missing)}:
                self.failure, self.broker_missing = str(why), missing
            case {"n": number, "reply": reply}:
                waiting = self._replies.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(from_json(Reply, json.dumps(reply).encode()))
            case {"runs": turn_id}:
                self._heard(turn_id)
            case {"waits": bool(waits)}:
                self._waits(waits)
            case {"over": ending} if self._over is not None and not self._over.done():
                self._over.set_result(ending)
            case _:
                pass

    def _clean_up(self) -> None:
        """Nothing that it has started outlives it."""
        process_group.send(self.pid, signal.SIGKILL)
        for pid in process_group.marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        collect(self._process)
        self._settled.set()
        self.gone.set()
        if self._over is not None and not self._over.done():
            self._over.set_result(self._end)
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_result(Reply(False, "its process has died", error="broken"))

    @property
    def failed_to_start(self) -> bool:
        """True: it has ended before it was ready, and nobody has ended it. That is no fault of its order."""
        return not (self.alive or self._ready or self._killed)

    @property
    def _end(self) -> Ending:
        return "unstarted" if self.failed_to_start else "died"

    async def comes_up(self, seconds: float) -> bool:
        """Wait until it is ready to work. False: it has ended before, or is not ready after so many seconds."""
        await set_within(seconds, self._settled)
        return self._ready and self.alive

    async def run(self) -> Ending:
        """Until the work has ended."""
        assert self._over is not None  # for the type checker: begin() comes first
        if not self.alive:
            return self._end
        self._say({"run": True})
        return await self._over

    async def ask(self, call: Call) -> Reply | None:
        """Ask something of the session."""
        self._asked += 1
        number = self._asked
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[number] = waiting
        self._say({"n": number, "ask": asdict(call)})
        try:
            async with asyncio.timeout(ANSWER_SECONDS if isinstance(call, StopCall) else CALL_SECONDS):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self._replies.pop(number, None)

    def leave(self, within: float) -> None:
        """Make way."""
        self._say({"leave": within})

    def cut(self, why: str) -> None:
        """Write nothing any more. A child that may be stuck is not asked."""
        self.kill()

    def kill(self) -> bool:
        """End it by force."""
        self._killed = True
        process_group.send(self.pid, signal.SIGKILL)
        return True

    def dismiss(self) -> None:
        """It is not needed any more: end it, if it has no order."""
        if self._writer is not None:
            self._writer.close()
        self.kill()
