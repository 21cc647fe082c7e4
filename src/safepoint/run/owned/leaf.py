"""Owns a leaf's side of its account: when it is being interrupted, what it then refuses, and what it waits for.

The other side, the list of what it started, is `account.py`. Knows nothing of how a leaf is run or written down.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

from ...abort import AbortSignal, Guard
from ..context import Context
from ..interrupt import AbortInterrupt, InterruptibleCall
from ..policy import LIMIT_GRACE_SECONDS, Policy
from ..receipt import ReceiptBuilder
from ..start_gate import StartGate
from .account import ResourceAccount
from .leftovers import end_tasks_of, has_tasks, running_behind
from .threads import ThreadWork

__all__ = ["OwningLeaf"]

T = TypeVar("T")


class OwningLeaf:
    """A leaf that knows what it starts. `leafrun.py` makes a whole leaf of it."""

    operation: str
    policy: Policy
    signal: AbortSignal
    outer: Context
    gate: StartGate

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None  # the one that runs the body, if it is awaited
        self.work: ThreadWork | None = None  # the body, if it runs in a thread
        self.owned: ResourceAccount | None = None  # what it has started, if anything
        self._ended = False
        self._cut = False  # something that the body had started was ended under it
        self._guard: Guard | None = None  # around the body, if it is awaited
        self._limit: AbortSignal | None = None  # its own time limit
        self._behind: Future[Any] | None = None  # the call in a thread for which it waited when it was interrupted

    @property
    def receipt_builder(self) -> ReceiptBuilder:
        """The ledger of the run."""
        return self.outer.receipt_builder

    def own(self) -> ResourceAccount:
        """Its account, made with the first thing that it starts."""
        if self.owned is None:
            self.owned = ResourceAccount(self)
        return self.owned

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """It puts a function in a thread: what to run there instead."""
        return fn if self._ended else self.own().thread(fn)

    def helper(self, fn: Callable[..., T], *, thread: threading.Thread | None = None) -> Callable[..., T]:
        """It has a function run in a thread that it does not await: what to run there instead."""
        return fn if self._ended else self.own().helper(fn, thread)

    def survivors(self, pids: Iterable[int]) -> None:
        """These processes came out of a program that it ran, and still run."""
        for_account = list(pids)
        if for_account:
            self.own().survivors(for_account)

    def knows_thread(self, thread: int) -> bool:
        """Whether what runs in this thread has a line of its own already."""
        here = self.work is not None and self.work.call.thread_id == thread
        return here or (self.owned is not None and self.owned.runs_in(thread))

    def call_here(self) -> "InterruptibleCall[Any] | None":
        """The function of this leaf that runs in this thread: its body, or one that it has put there."""
        if self.work is not None and self.work.runs_in(threading.get_ident()):
            return self.work.call
        return None if self.owned is None else self.owned.call_here()

    @property
    def ended(self) -> bool:
        """True: it is over, and keeps what it has."""
        return self._ended

    @property
    def being_interrupted(self) -> bool:
        """True: by its policy it is to end now. Not while it may still finish, nor where it only sees the signal."""
        if self._limit is not None and self._limit.aborted:
            return True
        if not self.signal.aborted or self.policy.on_abort == "cooperate":
            return False
        return self.policy.on_abort == "interrupt" or self.since_abort() >= self.policy.grace

    @property
    def reached(self) -> bool:
        """True: the interruption has reached the body, which may be cleaning up; or the leaf has ended."""
        if self._ended:
            return True
        if self.work is not None:
            return self.work.call.interrupted or self.work.call.ended
        return self._guard is not None and self._guard.delivered

    def when_interrupted(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back `seconds` after it began to be interrupted, if it still runs then."""

        def due() -> None:
            if self.being_interrupted:
                callback()

        self.gate.after_abort(seconds + (self.policy.grace if self.policy.on_abort == "finish" else 0.0), due)

    def refuse_if_stopped(self, what: Literal["programs", "connections"]) -> None:
        """Refuse to start one more. Raises: AbortInterrupt, while the interruption has not reached the body."""
        if self._ended or not self.being_interrupted or getattr(self.policy, what) != "end":
            return
        if self.work is not None and self.work.call.thread_id == threading.get_ident():
            self.work.call.interrupt()
            self.work.call.raise_if_owed()
        elif self.owned is not None and (call := self.owned.call_here()) is not None:
            # What a helper connects to may serve others.
            if what == "programs" or not self.owned.is_helper(call):
                call.interrupt()
                call.raise_if_owed()
        elif not self.reached and not self.shielded and self._runs_now():
            raise AbortInterrupt

    def _runs_now(self) -> bool:
        """Whether this is the task of the body. Tasks that it started may serve others, such as a shared client's."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # not on a loop
            return False

    @property
    def shielded(self) -> bool:
        """True: the body is inside of a `shield()`, so the interruption waits, and all that goes with it."""
        return self._guard is not None and self._guard.shielded

    @property
    def ends_connections(self) -> bool:
        """Whether its thread is freed from the connection it is blocked in."""
        return self.policy.connections == "end"

    @property
    def has_programs(self) -> bool:
        """Whether there may be a program of its own to end."""
        return self.owned is not None and self.owned.has_programs

    def end_programs(self) -> None:
        """End the programs that it started, if there are any."""
        if self.owned is not None:
            self.owned.end_programs()

    def cut(self, *, by_helper: bool) -> None:
        """Something under the body is about to be ended: it must not go on as if what it gets were whole."""
        self._cut = True
        if self.work is not None:
            self.work.cut_program(by_helper)

    def check_whole(self) -> None:
        """The awaited body has returned. Raises: AbortInterrupt, if something was ended under it: its value is void."""
        if self.owned is not None and self._guard is not None and self._guard.sent and self.being_interrupted:
            self.owned.end_programs()  # it has swallowed the interruption, perhaps of a wait for one of these
        if self._cut:
            raise AbortInterrupt

    async def end_owned(self) -> None:
        """After it was interrupted: wait until what it started has ended with it, or is known to go on."""
        if (call := running_behind(getattr(self._guard, "waited_for", None))) is not None:
            self._name_thread_behind(call)
        if not self.being_interrupted:
            return
        if self.policy.tasks == "end":
            await end_tasks_of(self, LIMIT_GRACE_SECONDS)
        if self.owned is not None:
            await self.owned.end()

    def _name_thread_behind(self, call: "Future[Any]") -> None:
        """It waited for a call in a thread of a pool. If the pool is ours, the call is on the account already."""
        if self.owned is None or not self.owned.runs:
            self._behind = call
            entry = self.receipt_builder.begin(f"{self.operation}/executor", "thread", owned=True)
            entry.end("still_running", note="it waited for a thread of an executor, which goes on")
            call.add_done_callback(lambda _: entry.end("finished"))

    @property
    def left_running(self) -> bool:
        """True: something that it started goes on, so that nobody can say what it has done in the end."""
        behind = self._behind is not None and self._behind.running()
        return behind or (self.owned is not None and self.owned.runs) or has_tasks(self)

    def since_abort(self) -> float:
        """Seconds since the abort, 0 before it."""
        at = self.signal.aborted_at
        return 0.0 if at is None else self.outer.clock.monotonic() - at
