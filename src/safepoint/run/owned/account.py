"""Owns the account of one leaf: the programs and threads that it started, and what becomes of them.

A leaf that is interrupted takes along what it started: its programs get TERM, then KILL; functions that it has put in
threads are interrupted by the same rules as a synchronous leaf. A leaf that has finished keeps what it started. In both
cases what is left is in the receipt, by name.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, cast

from ...abort import AbortError, shield
from ...abort.process_tree import KILL_SECONDS, ProcessId, end_processes, is_alive
from ...abort.resource_account import Account, current_account, reset_account
from ...abort.threads import submit
from ..interrupt import AbortInterrupt, InterruptibleCall
from ..policy import Policy
from ..receipt import EntryBuilder, Fate, LeafKind, ReceiptBuilder
from .programs import FORKS, TERM_SECONDS, Program, program_from_pid, with_descendants
from .starter import Starter
from .threads import ThreadWork

__all__ = ["AccountLeaf", "ResourceAccount"]

T = TypeVar("T")
# How long an interrupted leaf waits for what it started, beyond the time that ending it should take.
PATIENCE_SECONDS = 0.5
# A program exists before Python knows its pid: for how long that is looked for, and how often.
START_SECONDS = 2.0
START_LOOK_SECONDS = 0.005
OUTLIVED = "it outlived the program it came from"


class AccountLeaf(Account, Protocol):
    """What an account asks of its leaf."""

    operation: str
    policy: Policy

    @property
    def receipt_builder(self) -> ReceiptBuilder: ...

    @property
    def being_interrupted(self) -> bool:
        """True: by its policy it is to end now."""
        ...

    @property
    def ended(self) -> bool:
        """True: it is over, and keeps what it has."""
        ...

    @property
    def reached(self) -> bool:
        """True: the interruption has reached the body, which may be cleaning up; or the leaf has ended."""
        ...

    @property
    def shielded(self) -> bool:
        """True: the body is inside of a `shield()`."""
        ...

    def cut(self, *, by_helper: bool) -> None:
        """Something under the body is about to be ended: it must not go on as if what it gets were whole."""
        ...

    def when_interrupted(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back `seconds` after the leaf began to be interrupted, if it still runs then."""
        ...


class _Thread:
    """A function that runs in a thread on an account."""

    def __init__(self, work: ThreadWork, name: str, *, helps: bool = False) -> None:
        self.work = work
        self.name = name
        self.helps = helps  # the leaf does not wait for it, and it may serve others
        self.cut = False  # a program that it had started was ended
        self.entry: EntryBuilder | None = None
        self.ended: Future[None] = Future()


class ResourceAccount:
    """What one leaf has started. Made when it starts its first program or thread: most leaves start none."""

    def __init__(self, leaf: AccountLeaf) -> None:
        self._leaf = leaf
        self._policy = leaf.policy
        self._lock = threading.RLock()  # a finalizer that the collector runs in here may start a program
        self._programs: list[Program] = []
        self._functions: list[_Thread] = []
        self._endings: list[Future[None]] = []
        self._signalled: set[ProcessId] = set()  # what we have ended
        self._lines: dict[ProcessId, EntryBuilder] = {}
        self._waits_for_start = False  # somebody looks for the pid of a program that is starting
        self._listed = False  # in the ledger, as one to be asked before each receipt
        leaf.when_interrupted(0.0, self._end)
        leaf.when_interrupted(leaf.policy.interrupt_after, self._interrupt)

    @property
    def ends_connections(self) -> bool:
        """Whether a thread is freed from the connection it is blocked in."""
        return self._policy.connections == "end"

    # What the leaf starts

    def add_program(self, program: Program) -> None:
        """The leaf has started, or is about to start, this program."""
        with self._lock:
            self._programs = [
                known for known in self._programs if known.popen is None or known.popen.returncode is None
            ]
            self._programs.append(program)
        program.starter.when_it_has_ended(self._starter_ended)
        self._list()

    @property
    def keeps(self) -> str:
        """Why a program that starts now is not ended by a stop; empty if it is."""
        if self._policy.programs == "leave":
            return "its policy is to leave programs running"
        return "started after the interruption had reached the function" if self._leaf.reached else ""

    def expect_program(self, keep: str, starter: Starter) -> None:
        """The leaf is about to fork, by hand."""
        FORKS.begin(self, keep or self.keeps, starter)
        self._list()

    def survivors(self, pids: Iterable[int]) -> None:
        """These processes came out of a program that has ended, and still run."""
        for pid in pids:
            if (program := program_from_pid(pid, keep=OUTLIVED)) is not None:
                self.add_program(program)

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """The function, to be run in another thread on this account: one knows when it has really ended.

        It gets a line in the receipt only if it is still at work when the leaf is stopped, or the run ends.
        """

        def accounted(*args: Any, **kwargs: Any) -> T:
            value: T = self._run(_Thread(self._work(fn, args, kwargs), _name_of(fn)))
            return value

        return accounted

    def helper(self, fn: Callable[..., T], own: threading.Thread | None = None) -> Callable[..., T]:
        """The function, to be run in a thread for which the leaf does not wait, on this account.

        It is not interrupted, nor freed from what it is blocked in. What it starts is the leaf's: it ends with the
        leaf, and what the function makes of that is dropped.

        Args:
            fn: The function.
            own: The thread, if it is started for this function alone: nobody learns there how the function ended.
        """

        def accounted(*args: Any, **kwargs: Any) -> T:
            thread = _Thread(self._work(fn, args, kwargs), _name_of(fn) if own is None else own.name, helps=True)
            token = current_account.set(self._leaf)
            try:
                value: T = self._run(thread)
                return value
            except AbortInterrupt:
                if own is None:
                    raise
                return cast(T, None)
            finally:
                reset_account(token)
                self._starter_ended(None)

        return accounted

    def _work(self, fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ThreadWork:
        call = InterruptibleCall(functools.partial(fn, *args, **kwargs), interruptible=self._policy.interruptible)
        return ThreadWork(call, self)

    def _run(self, thread: "_Thread") -> Any:
        """The thread's part."""
        with self._lock:
            self._functions.append(thread)
        self._list()
        fate: Fate = "finished"
        try:
            return thread.work.run()
        except AbortInterrupt:
            fate = "stopped"
            raise
        finally:
            with self._lock:  # `_function_line` checks under this lock whether it still runs
                self._functions.remove(thread)
                entry = thread.entry
            if entry is not None:
                entry.end(fate)
            thread.ended.set_result(None)

    # Ending it

    def _end(self) -> None:
        """End the programs, and free the threads from what they are blocked in. What is ending already stays so."""
        if self._leaf.shielded:
            return  # its body cleans up in peace; when that is over, it ends, and this is done then
        for thread in self._snapshot():
            if not thread.helps:
                self._function_line(thread)
                thread.work.end()
        self.end_programs()

    def _starter_ended(self, _: object) -> None:
        """A task has ended that had started a program: with the leaf, if that is being interrupted."""
        if self._leaf.being_interrupted and not self._leaf.ended and not self._leaf.shielded:
            self.end_programs()

    def _interrupt(self) -> None:
        for thread in self._snapshot():
            if not thread.helps:
                thread.work.interrupt()

    def _snapshot(self) -> "list[_Thread]":
        with self._lock:
            return list(self._functions)

    def runs_in(self, ident: int) -> bool:
        """Whether a function on this account runs in this thread."""
        return any(thread.work.runs_in(ident) for thread in self._snapshot())

    def call_here(self) -> "InterruptibleCall[Any] | None":
        """The function on this account that runs in this thread."""
        here = threading.get_ident()
        return next((thread.work.call for thread in self._snapshot() if thread.work.runs_in(here)), None)

    def is_helper(self, call: "InterruptibleCall[Any]") -> bool:
        """Whether this function runs in a thread for which the leaf does not wait."""
        return any(thread.work.call is call and thread.helps for thread in self._snapshot())

    @property
    def has_programs(self) -> bool:
        """Whether there may be a program to end."""
        return bool(self._programs) or FORKS.has(self)

    def end_programs(self) -> None:
        """End the programs of the leaf and all that descends from them."""
        FORKS.find_for(self)
        with self._lock:
            ending = [(program, process) for program in self._programs if (process := program.to_end()) is not None]
            for program, _ in ending:
                program.ending = True
            if any(program.starting for program in self._programs) and not self._waits_for_start:
                self._waits_for_start = True
                submit(self._end_when_started)
            if not ending:
                return
            ended: Future[None] = Future()
            self._endings.append(ended)
        # Armed before the first signal: what was cut off must not look whole to the function that waits for it.
        starters = {program.starter.call for program, _ in ending}
        threads = self._snapshot()
        helpers = [thread for thread in threads if thread.helps and thread.work.call in starters]
        for thread in helpers:
            thread.work.cut()
            thread.cut = True
        self._leaf.cut(by_helper=bool(helpers))
        for thread in threads:
            if not thread.helps:
                thread.work.cut_program(by_helper=bool(helpers))
        self._signalled.update(process for _, process in ending)
        lines = {process: self._line(process, program.called) for program, process in ending}
        submit(functools.partial(self._end_all, lines, ended))

    def _end_when_started(self) -> None:
        """A program was about to start when the others were ended: its process exists before Python knows its pid."""
        until = time.monotonic() + START_SECONDS
        while any(program.starting for program in list(self._programs)) and time.monotonic() < until:
            time.sleep(START_LOOK_SECONDS)
        self._waits_for_start = False
        self._starter_ended(None)

    def _end_all(self, lines: dict[ProcessId, EntryBuilder], ended: "Future[None]") -> None:
        try:
            everything = with_descendants(lines)
            self._signalled.update(everything)
            left = end_processes(everything, grace=TERM_SECONDS)
            for process, entry in lines.items():
                if process not in left:
                    entry.end("stopped")
            for process in left:
                entry = lines.get(process) or self._line(process, "process")
                entry.end("still_running", note="it did not end after KILL")
        finally:
            with self._lock:
                self._endings.remove(ended)
            ended.set_result(None)

    async def end(self) -> None:
        """End what the leaf started, and wait until it has ended; not longer than that can take."""
        self._end()
        with self._lock:
            programs = [asyncio.wrap_future(ending) for ending in self._endings]
            ending = [thread for thread in self._functions if thread.cut or not thread.helps]
            functions = [asyncio.wrap_future(thread.ended) for thread in ending]
        await _wait_for(functions, self._policy.interrupt_after + PATIENCE_SECONDS)
        await _wait_for(programs, TERM_SECONDS + KILL_SECONDS + PATIENCE_SECONDS)

    # Telling of it

    @property
    def runs(self) -> bool:
        """True: something that the leaf started is still at work."""
        return bool(self._functions) or any(program.living() for program in list(self._programs))

    def write_down(self) -> bool:
        """Bring the receipt's lines up to date. False: there is nothing left that could change."""
        FORKS.find_for(self)
        with self._lock:
            ended = self._leaf.reached and not self._endings  # then a program without a process never got one
            self._programs = [known for known in self._programs if not (known.over or (ended and not known.living()))]
            programs = list(self._programs)
        for program in programs:
            process = program.living()
            if process is not None and not program.ending:
                self._line(process, program.called).end("still_running", note=program.note)
        for function in self._snapshot():
            if (line := self._function_line(function)) is not None:
                note = "a thread that the leaf started" if function.helps else ""
                line.end("still_running", where=function.work.call.where(), note=note)
        for process, entry in list(self._lines.items()):
            if not is_alive(process):
                entry.end("stopped" if process in self._signalled else "finished")
        with self._lock:
            self._listed = bool(self._programs or self._functions) or FORKS.has(self)
            return self._listed

    def _list(self) -> None:
        """Have `write_down` called before each receipt, as long as there is something to tell."""
        with self._lock:
            listed, self._listed = self._listed, True
        if not listed:
            self._leaf.receipt_builder.add_updater(self.write_down)

    def _function_line(self, function: "_Thread") -> EntryBuilder | None:
        """The receipt entry of a function; None if it has returned and has no entry."""
        with self._lock:
            if function.entry is None and function in self._functions:
                function.entry = self._begin(function.name, "thread")
            return function.entry

    def _begin(self, name: str, kind: LeafKind) -> EntryBuilder:
        entry = self._leaf.receipt_builder.begin(f"{self._leaf.operation}/{name}", kind, owned=True)
        entry.fate = "still_running"
        return entry

    def _line(self, process: ProcessId, name: str) -> EntryBuilder:
        with self._lock:  # one entry per process: a second one would stay `still_running` for ever
            entry = self._lines.get(process)
            if entry is None:
                entry = self._lines[process] = self._begin(name, "program")
                entry.pid, entry.pid_started = process.pid, process.started
            return entry


async def _wait_for(endings: "list[asyncio.Future[None]]", seconds: float) -> None:
    """Wait for all of them, at most so long. What goes on then is named in the receipt."""
    try:
        with shield(seconds):
            if endings:
                await asyncio.wait(endings)
    except AbortError:
        pass


def _name_of(fn: Callable[..., object]) -> str:
    while isinstance(fn, functools.partial):
        # asyncio.to_thread gives partial(context.run, function, …)
        inner = fn.args[0] if fn.args and getattr(fn.func, "__name__", "") == "run" else fn.func
        if not callable(inner):
            break
        fn = inner
    return str(getattr(fn, "__name__", type(fn).__name__))
