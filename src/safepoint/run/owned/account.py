"""Owns the account of one leaf: the programs and threads that it has started, and how they are ended or named.

When a leaf is interrupted, what it started ends with it: its programs get TERM, then KILL, and functions that it has
put into threads are interrupted by the rules for synchronous leaves. When a leaf has finished, what it started
continues. In both cases the receipt names what still runs.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar, cast

from ...abort import AbortError, shield
from ...abort.resource_account import Account, current_account, reset_account
from ...abort.threads import submit
from ...process.tree import KILL_SECONDS, ProcessId, end_processes, is_alive
from ...receipt import Fate, LeafKind
from ..interrupt import AbortInterrupt, InterruptibleCall
from ..policy import Policy
from ..receipt_builder import EntryBuilder, ReceiptBuilder
from .programs import FORKS, TERM_SECONDS, Program, program_from_pid, ticks_since_boot, with_descendants
from .starter import Starter
from .threads import ThreadWork

__all__ = ["AccountLeaf", "ResourceAccount"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# How long an interrupted leaf waits for what it started, in addition to the time that ending it should take.
PATIENCE_SECONDS = 0.5
# The process of a program exists before Python knows its pid: how long to wait for the pid, and how often to look.
START_SECONDS = 2.0
START_LOOK_SECONDS = 0.005
OUTLIVED = "it outlived the program it came from"


class AccountLeaf(Account, Protocol):
    """The part of a leaf that its account uses."""

    operation: str
    policy: Policy

    @property
    def receipt_builder(self) -> ReceiptBuilder: ...

    @property
    def ends_programs_now(self) -> bool:
        """Whether the leaf is being interrupted and still runs, and its body is not inside a `shield()`."""
        ...

    @property
    def reached(self) -> bool:
        """Whether the interruption has reached the body, which may be cleaning up, or the leaf has ended."""
        ...

    @property
    def shielded(self) -> bool:
        """Whether the body is inside a `shield()`."""
        ...

    def cut(self, *, by_helper: bool) -> None:
        """Prepare the body: something that it waits for is about to be ended, so its result is dropped."""
        ...

    def when_interrupted(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back `seconds` after the leaf began to be interrupted, if it still runs then."""
        ...


class _ThreadFunction(Generic[T_co]):
    """A function that runs in a thread on an account.

    Args:
        work: The function.
        name: Its name in the receipt.
        is_helper: Whether the leaf does not wait for it, so that it may also work for others.
    """

    def __init__(self, work: ThreadWork[T_co], name: str, *, is_helper: bool = False) -> None:
        self.work = work
        self.name = name
        self.is_helper = is_helper
        self.cut = False  # whether a program that it had started was ended
        self.entry: EntryBuilder | None = None
        self.ended: Future[None] = Future()


class ResourceAccount:
    """The programs and threads of one leaf. Made when it starts the first of them: most leaves start none."""

    def __init__(self, leaf: AccountLeaf) -> None:
        self._leaf = leaf
        self._policy = leaf.policy
        # Reentrant: the garbage collector may run a finalizer while the lock is held, and that may start a program.
        self._lock = threading.RLock()
        self._programs: list[Program] = []
        self._functions: list[_ThreadFunction[object]] = []
        self._endings: list[Future[None]] = []
        self.has_ended_programs = False  # the leaf's value may be computed from a partial result
        self._signalled: set[ProcessId] = set()  # the processes that this account has ended
        self._process_entries: dict[ProcessId, EntryBuilder] = {}
        self._waits_for_start = False  # whether a thread waits for the pid of a program that is starting
        self._registered = False  # whether the receipt calls `update_receipt`
        leaf.when_interrupted(0.0, self._end)
        leaf.when_interrupted(leaf.policy.interrupt_after, self._interrupt)

    @property
    def ends_connections(self) -> bool:
        """Whether the connection in which a thread is blocked is ended."""
        return self._policy.connections == "end"

    # What the leaf starts

    def add_program(self, program: Program) -> None:
        """Add a program that the leaf has started or is about to start."""
        with self._lock:
            self._programs = [
                known for known in self._programs if known.popen is None or known.popen.returncode is None
            ]
            self._programs.append(program)
        program.starter.add_done_callback(self._on_starter_ended)
        self._note_program()
        self._register()

    @property
    def keep_reason(self) -> str:
        """Why a stop will not end a program that starts now; empty if it will."""
        if self._policy.programs == "leave":
            return "its policy is to leave programs running"
        return "started after the interruption had reached the function" if self._leaf.reached else ""

    def expect_program(self, keep_reason: str, starter: Starter) -> None:
        """Note that the leaf is about to fork without `Popen`."""
        FORKS.begin(self, keep_reason or self.keep_reason, starter)
        self._note_program()
        self._register()

    def _note_program(self) -> None:
        receipt_builder = self._leaf.receipt_builder
        if receipt_builder.programs_since is None:
            receipt_builder.programs_since = ticks_since_boot()

    def survivors(self, pids: Iterable[int]) -> None:
        """Add processes that were started by a program which has ended, and that still run."""
        for pid in pids:
            if (program := program_from_pid(pid, keep_reason=OUTLIVED)) is not None:
                self.add_program(program)

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function that will run in another thread, so that its real end is known.

        It gets an entry in the receipt only if it still runs when the leaf is stopped or the run ends.
        """

        def accounted(*args: object, **kwargs: object) -> T:
            return self._run(_ThreadFunction(self._work(functools.partial(fn, *args, **kwargs)), _name_of(fn)))

        return accounted

    def helper(self, fn: Callable[..., T], own: threading.Thread | None = None) -> Callable[..., T]:
        """Wrap a function that will run in a thread for which the leaf does not wait.

        The function is not interrupted, and what it is blocked in is not ended. But programs that it starts belong to
        the leaf and end with it, and what the function then returns is dropped.

        Args:
            fn: The function.
            own: The thread, if it was started for this function alone, so that no code there sees how it ended.
        """

        def accounted(*args: object, **kwargs: object) -> T:
            work = self._work(functools.partial(fn, *args, **kwargs))
            function = _ThreadFunction(work, _name_of(fn) if own is None else own.name, is_helper=True)
            token = current_account.set(self._leaf)
            try:
                return self._run(function)
            except AbortInterrupt:
                if own is None:
                    raise
                return cast(T, None)  # `Thread.run` ignores the value
            finally:
                reset_account(token)
                self._on_starter_ended(None)

        return accounted

    def _work(self, fn: Callable[[], T]) -> ThreadWork[T]:
        return ThreadWork(InterruptibleCall(fn, interruptible=self._policy.interruptible), self)

    def _run(self, function: _ThreadFunction[T]) -> T:
        """Call the function. Runs in its thread."""
        with self._lock:
            self._functions.append(function)
        self._register()
        fate: Fate = "finished"
        try:
            return function.work.run()
        except AbortInterrupt:
            fate = "stopped"
            raise
        finally:
            with self._lock:  # `_function_entry` checks under this lock whether the function still runs
                self._functions.remove(function)
                entry = function.entry
            if entry is not None:
                entry.end(fate)
            function.ended.set_result(None)

    # Ending it

    def _end(self) -> None:
        """End the programs and what the threads are blocked in. Can be called again while that is going on."""
        if self._leaf.shielded:
            return  # the body is cleaning up; `end()` is called when the leaf ends
        for function in self._snapshot():
            if not function.is_helper:
                self._function_entry(function)
                function.work.end()
        self.end_programs()

    def _on_starter_ended(self, _: object) -> None:
        """End programs that were kept because the task that had started them still ran."""
        if self._leaf.ends_programs_now:
            self.end_programs()

    def _interrupt(self) -> None:
        for function in self._snapshot():
            if not function.is_helper:
                function.work.interrupt()

    def _snapshot(self) -> list[_ThreadFunction[object]]:
        with self._lock:
            return list(self._functions)

    def runs_in(self, ident: int) -> bool:
        """Whether a function on this account runs in this thread."""
        return any(function.work.runs_in(ident) for function in self._snapshot())

    def call_here(self) -> "InterruptibleCall[object] | None":
        """The function on this account that runs in this thread."""
        here = threading.get_ident()
        return next((function.work.call for function in self._snapshot() if function.work.runs_in(here)), None)

    def is_helper(self, call: "InterruptibleCall[object]") -> bool:
        """Whether this function runs in a thread for which the leaf does not wait."""
        return any(function.work.call is call and function.is_helper for function in self._snapshot())

    @property
    def has_programs(self) -> bool:
        """Whether there may be a program to end."""
        return bool(self._programs) or FORKS.has(self)

    def end_programs(self) -> None:
        """End the programs of the leaf and their descendants."""
        FORKS.find_for(self)
        with self._lock:
            candidates = [(program, program.process_to_end()) for program in self._programs]
            ending = [(program, process) for program, process in candidates if process is not None]
            for program, _ in ending:
                program.ending = True
            starting = any(program.starting for program in self._programs)
            # Already here: another thread that comes next finds no program to end, and must know why.
            self.has_ended_programs = self.has_ended_programs or bool(ending) or starting
            if starting and not self._waits_for_start:
                self._waits_for_start = True
                submit(self._end_when_started)
            if not ending:
                return
            ended: Future[None] = Future()
            self._endings.append(ended)
        # Before the first signal, set up the functions that may wait for a program to be interrupted. In the reverse
        # order, a function could see the end of its program and use the partial result.
        starters = {program.starter.call for program, _ in ending}
        functions = self._snapshot()
        helpers = [function for function in functions if function.is_helper and function.work.call in starters]
        for function in helpers:
            function.work.cut()
            function.cut = True
        self._leaf.cut(by_helper=bool(helpers))
        for function in functions:
            if not function.is_helper:
                function.work.cut_program(by_helper=bool(helpers))
        self._signalled.update(process for _, process in ending)
        entries = {process: self._process_entry(process, program.current_name) for program, process in ending}
        submit(functools.partial(self._end_all, entries, ended))

    def _end_when_started(self) -> None:
        """Wait for the pid of a program that was about to start when the others were ended, and end it as well."""
        until = time.monotonic() + START_SECONDS
        while any(program.starting for program in list(self._programs)) and time.monotonic() < until:
            time.sleep(START_LOOK_SECONDS)
        self._waits_for_start = False
        self._on_starter_ended(None)

    def _end_all(self, entries: dict[ProcessId, EntryBuilder], ended: "Future[None]") -> None:
        try:
            processes = with_descendants(entries)
            self._signalled.update(processes)
            remaining = end_processes(processes, grace=TERM_SECONDS)
            for process, entry in entries.items():
                if process not in remaining:
                    entry.end("stopped")
            for process in remaining:
                entry = entries.get(process) or self._process_entry(process, "process")
                entry.end("still_running", note="it did not end after KILL")
        finally:
            with self._lock:
                self._endings.remove(ended)
            ended.set_result(None)

    async def end(self) -> None:
        """End what the leaf started and wait until it has ended, with a time limit."""
        self._end()
        with self._lock:
            programs = [asyncio.wrap_future(ending) for ending in self._endings]
            ending = [function for function in self._functions if function.cut or not function.is_helper]
            functions = [asyncio.wrap_future(function.ended) for function in ending]
        await _wait_for(functions, self._policy.interrupt_after + PATIENCE_SECONDS)
        await _wait_for(programs, TERM_SECONDS + KILL_SECONDS + PATIENCE_SECONDS)

    # The entries in the receipt

    @property
    def runs(self) -> bool:
        """Whether something that the leaf started still runs."""
        return bool(self._functions) or any(program.living_process() for program in list(self._programs))

    def update_receipt(self) -> bool:
        """Bring the entries in the receipt up to date. False if nothing is left that could change."""
        FORKS.find_for(self)
        with self._lock:
            # Once the leaf has ended, a program that has no process will not get one: its start has failed.
            ended = self._leaf.reached and not self._endings
            self._programs = [
                program
                for program in self._programs
                if not (program.has_ended or (ended and not program.living_process()))
            ]
            programs = list(self._programs)
        for program in programs:
            process = program.living_process()
            if process is not None and not program.ending:
                self._process_entry(process, program.current_name).end("still_running", note=program.note)
        for function in self._snapshot():
            if (entry := self._function_entry(function)) is not None:
                note = "a thread that the leaf started" if function.is_helper else ""
                entry.end("still_running", where=function.work.call.where(), note=note)
        for process, entry in list(self._process_entries.items()):
            if not is_alive(process):
                entry.end("stopped" if process in self._signalled else "finished")
        with self._lock:
            self._registered = bool(self._programs or self._functions) or FORKS.has(self)
            return self._registered

    def _register(self) -> None:
        """Have `update_receipt` called before each receipt, until it returns False."""
        with self._lock:
            registered, self._registered = self._registered, True
        if not registered:
            self._leaf.receipt_builder.add_updater(self.update_receipt)

    def _function_entry(self, function: _ThreadFunction[object]) -> EntryBuilder | None:
        """The receipt entry of a function; None if it has returned and has no entry."""
        with self._lock:
            if function.entry is None and function in self._functions:
                function.entry = self._begin(function.name, "thread")
            return function.entry

    def _begin(self, name: str, kind: LeafKind) -> EntryBuilder:
        entry = self._leaf.receipt_builder.begin(f"{self._leaf.operation}/{name}", kind, owned=True)
        entry.fate = "still_running"
        return entry

    def _process_entry(self, process: ProcessId, name: str) -> EntryBuilder:
        with self._lock:  # one entry per process: a second one would stay `still_running` for ever
            entry = self._process_entries.get(process)
            if entry is None:
                entry = self._process_entries[process] = self._begin(name, "program")
                entry.pid, entry.pid_started = process.pid, process.started
            return entry


async def _wait_for(endings: "list[asyncio.Future[None]]", seconds: float) -> None:
    """Wait for all of them, at most `seconds`. The receipt names what still runs then."""
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
