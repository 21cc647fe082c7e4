"""Owns a leaf's side of its account: when the leaf is being interrupted, what it then refuses, and what it waits for.

The other side, the list of what the leaf started, is `account.py`. Knows nothing of how a leaf is run and recorded.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Literal, TypeVar

from ...abort import AbortSignal, Guard
from ..context import Context
from ..interrupt import AbortInterrupt, InterruptibleCall
from ..policy import LIMIT_GRACE_SECONDS, Policy
from ..receipt_builder import ReceiptBuilder
from ..start_gate import StartGate
from .account import ResourceAccount
from .leftovers import end_tasks_of, executor_call_behind, has_tasks
from .threads import ThreadWork

__all__ = ["OwningLeaf"]

T = TypeVar("T")


class OwningLeaf:
    """The part of a leaf that knows what the leaf has started. `LeafRun` (`run/leaf_run.py`) is the whole leaf."""

    operation: str
    policy: Policy
    signal: AbortSignal
    outer: Context
    gate: StartGate

    # Defaults of the class, and not set by a constructor: most leaves keep nearly all of them, and an awaited leaf
    # would spend a tenth of its time on setting them.
    task: asyncio.Task[object] | None = None  # the task that runs the body, if the body is awaited
    work: ThreadWork[object] | None = None  # the body, if it runs in a thread
    owned: ResourceAccount | None = None  # what the leaf has started, if anything
    _ended = False
    _cut = False  # whether something that the body waits for was ended
    _guard: Guard | None = None  # around the body, if the body is awaited
    _limit: AbortSignal | None = None  # the leaf's own time limit
    _executor_call: "Future[object] | None" = None  # for which the body waited when it was interrupted

    @property
    def receipt_builder(self) -> ReceiptBuilder:
        """The receipt builder of the run."""
        return self.outer.receipt_builder

    def ensure_account(self) -> ResourceAccount:
        """The account of the leaf, made with the first thing that it starts."""
        if self.owned is None:
            self.owned = ResourceAccount(self)
        return self.owned

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function that the leaf puts into a thread."""
        return fn if self._ended else self.ensure_account().thread(fn)

    def helper(self, fn: Callable[..., T], *, thread: threading.Thread | None = None) -> Callable[..., T]:
        """Wrap a function that the leaf puts into a thread for which it does not wait."""
        return fn if self._ended else self.ensure_account().helper(fn, thread)

    def survivors(self, pids: Iterable[int]) -> None:
        """Add processes that a program of the leaf has started, and that outlived it."""
        surviving = list(pids)
        if surviving:
            self.ensure_account().survivors(surviving)

    def knows_thread(self, thread: int) -> bool:
        """Whether the function that runs in this thread has an entry in the receipt already."""
        here = self.work is not None and self.work.call.thread_id == thread
        return here or (self.owned is not None and self.owned.runs_in(thread))

    def call_here(self) -> "InterruptibleCall[object] | None":
        """The function of this leaf that runs in this thread: its body, or one that it has put there."""
        if self.work is not None and self.work.runs_in(threading.get_ident()):
            return self.work.call
        return None if self.owned is None else self.owned.call_here()

    @property
    def ends_programs_now(self) -> bool:
        """Whether the leaf is being interrupted and still runs, and its body is not inside a `shield()`."""
        return self.being_interrupted and not self._ended and not self.shielded

    @property
    def being_interrupted(self) -> bool:
        """Whether the leaf must end now by its policy: its own limit is up, or the run was aborted."""
        if self._limit is not None and self._limit.aborted:
            return True
        if not self.signal.aborted or self.policy.on_abort == "cooperate":
            return False
        return self.policy.on_abort == "interrupt" or self.since_abort() >= self.policy.grace

    @property
    def reached(self) -> bool:
        """Whether the interruption has reached the body, which may be cleaning up, or the leaf has ended."""
        if self._ended:
            return True
        if self.work is not None:
            return self.work.call.interrupted or self.work.call.ended
        return self._guard is not None and self._guard.delivered

    def when_interrupted(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back `seconds` after the leaf began to be interrupted, if it still runs then."""

        def due() -> None:
            if self.being_interrupted:
                callback()

        self.gate.after_abort(seconds + (self.policy.grace if self.policy.on_abort == "finish" else 0.0), due)

    def refuse_if_stopped(self, what: Literal["programs", "connections"]) -> None:
        """Refuse to start something while the leaf is being interrupted and its body does not know yet.

        Without this, the body could start a program after the list of programs to end was made, and that program would
        survive the stop. Once the interruption has reached the body, its clean-up code may start programs again.

        Args:
            what: What is about to be started.

        Raises:
            AbortInterrupt: The leaf is being interrupted, and its policy ends such things.
        """
        if self._ended or not self.being_interrupted or getattr(self.policy, what) != "end":
            return
        if self.work is not None and self.work.call.thread_id == threading.get_ident():
            self.work.call.interrupt()
            self.work.call.raise_if_requested()
        elif self.owned is not None and (call := self.owned.call_here()) is not None:
            # A connection of a helper is allowed, because it may serve other callers.
            if what == "programs" or not self.owned.is_helper(call):
                call.interrupt()
                call.raise_if_requested()
        elif not self.reached and not self.shielded and self._runs_now():
            raise AbortInterrupt

    def _runs_now(self) -> bool:
        """Whether the current task is that of the body. Tasks that the body started may serve other callers."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # no running loop
            return False

    @property
    def shielded(self) -> bool:
        """Whether the body is inside a `shield()`, so that the interruption and its consequences wait."""
        return self._guard is not None and self._guard.shielded

    @property
    def ends_connections(self) -> bool:
        """Whether the connection in which its thread is blocked is ended."""
        return self.policy.connections == "end"

    @property
    def has_programs(self) -> bool:
        """Whether the leaf may have a program to end."""
        return self.owned is not None and self.owned.has_programs

    def end_programs(self) -> None:
        """End the programs that the leaf has started."""
        if self.owned is not None:
            self.owned.end_programs()

    def cut(self, *, by_helper: bool) -> None:
        """Prepare the body: something that it waits for is about to be ended, so its result is dropped."""
        self._cut = True
        if self.work is not None:
            self.work.cut_program(by_helper)

    def check_whole(self) -> None:
        """Refuse the value of an awaited body that was computed from a partial result.

        Raises:
            AbortInterrupt: Something that the body waited for was ended.
        """
        if self.owned is not None and self._guard is not None and self._guard.sent and self.being_interrupted:
            self.owned.end_programs()  # the body has swallowed the interruption, perhaps of a wait for a program
        if self._cut or (self.owned is not None and self.owned.has_ended_programs):
            raise AbortInterrupt

    def end_owned(self, error: BaseException | None = None) -> Coroutine[object, object, None] | None:
        """Look for what the leaf has started and an interruption ends.

        Args:
            error: What the body raised, if it raised.

        Returns:
            What to await until all of it has ended or is recorded as still running. None if there is nothing.
        """
        if isinstance(error, GeneratorExit):
            return None  # the coroutine of the body is being closed, and cannot wait
        waiting = getattr(self._guard, "waited_for", None)
        # The usual case first: only the task's own callback waited.
        if isinstance(waiting, list) and len(waiting) > 1 and (call := executor_call_behind(waiting)) is not None:
            self._record_executor_call(call)
        if (self.owned is None and self.policy.tasks != "end") or not self.being_interrupted:
            return None
        return self._end_owned()

    async def _end_owned(self) -> None:
        if self.policy.tasks == "end":
            await end_tasks_of(self, LIMIT_GRACE_SECONDS)
        if self.owned is not None:
            await self.owned.end()

    def _record_executor_call(self, call: "Future[object]") -> None:
        """Record the call in a pool's thread for which the body waited, unless it is on the account already."""
        if self.owned is None or not self.owned.runs:
            self._executor_call = call
            entry = self.receipt_builder.begin(f"{self.operation}/executor", "thread", owned=True)
            entry.end("still_running", note="it waited for a thread of an executor, which still runs")
            call.add_done_callback(lambda _: entry.end("finished"))

    @property
    def left_running(self) -> bool:
        """Whether something that the leaf started still runs, so that its final effects are unknown."""
        calling = self._executor_call is not None and self._executor_call.running()
        return calling or (self.owned is not None and self.owned.runs) or has_tasks(self)

    def since_abort(self) -> float:
        """The seconds since the abort; 0 before it."""
        at = self.signal.aborted_at
        return 0.0 if at is None else self.outer.clock.monotonic() - at
