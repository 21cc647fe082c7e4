"""Owns one call of a function in a process of its own, which can be killed. Knows nothing of tools and leaves.

The child is a fresh interpreter that `subprocess` starts. Never a fork, which copies the locks of a program with
threads in whatever state they are; and not multiprocessing's spawn or forkserver, which share helper processes between
calls, load the program's own file even where nobody needs it, and would leave the process group to us all the same.
The price is the start of Python and the import of the function's module, for each call. A thread supervises the child
in plain blocking code, as for programs: the same on every event loop, also when the loop is busy or gone. POSIX only.
"""

import asyncio
import inspect
import os
import pickle
import selectors
import signal as os_signals
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from ..abort import process_group
from ..abort.ambient import shield
from ..abort.clock import check_seconds
from ..abort.controller import AbortController
from ..abort.guard import Guard
from ..abort.process_group import POLL_SECONDS, collect, end_group, exit_watch, has_ended, members_of
from ..abort.process_tree import descendants, is_alive
from ..abort.processes import KILL_SECONDS, poke
from ..abort.reason import AbortError, AbortReason, error_from
from ..abort.resource_account import report_survivors
from ..abort.signal import AbortSignal
from ..abort.threads import start_in_thread
from ..errors import SafepointError, UsageError, describe
from . import isolated_child
from .isolated_child import MAIN, CallExited, CallRaised, CallReturned, Channel, ChildCall
from .time_limit import limit_of

__all__ = ["ChildDied", "IsolatedEnd", "run_isolated", "target_of"]

T = TypeVar("T")

# After the answer: how long the process, and what it has started, may take to be gone by themselves.
LINGER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class IsolatedEnd:
    """How the process of a call ended. `survivors`: pids that came from it and still run."""

    pid: int
    returncode: int | None
    survivors: tuple[int, ...] = ()


class ChildDied(SafepointError):
    """It ended without an answer. `.returncode` is negative for a signal; `.exit` is what was given to `sys.exit()`."""

    def __init__(self, function: str, returncode: int | None, exit: str | None = None) -> None:
        super().__init__(function, returncode, exit)
        self.function, self.returncode, self.exit = function, returncode, exit

    def __str__(self) -> str:
        return f"the process of {self.function} ended without an answer: {_how(self.returncode)}"


@overload
async def run_isolated(
    fn: Callable[..., Coroutine[Any, Any, T]],
    *args: object,
    signal: AbortSignal,
    kill: AbortSignal | None = None,
    grace: float = 2.0,
    on_start: Callable[[int], object] | None = None,
    **kwargs: object,
) -> T: ...
@overload
async def run_isolated(
    fn: Callable[..., T],
    *args: object,
    signal: AbortSignal,
    kill: AbortSignal | None = None,
    grace: float = 2.0,
    on_start: Callable[[int], object] | None = None,
    **kwargs: object,
) -> T: ...
async def run_isolated(
    fn: Callable[..., Any],
    *args: object,
    signal: AbortSignal,
    kill: AbortSignal | None = None,
    grace: float = 2.0,
    on_start: Callable[[int], object] | None = None,
    **kwargs: object,
) -> Any:
    """Call `fn(*args, **kwargs)` in a process of its own; a coroutine runs there under `asyncio.run`.

    In the child `current_signal()` follows `signal`, deadline and reason included. An abort of `kill` (by default the
    same signal) ends the process: its group gets TERM, and KILL after `grace` seconds. AbortError comes out when the
    group is empty, with an `IsolatedEnd` as its `.partial`; a value that comes all the same is kept. What a function
    leaves running in its group ends with the call. `on_start(pid)` is called in the supervising thread.
    Raises: AbortError; ChildDied; UsageError if function, arguments or value cannot travel; what `fn` raised.
    """
    grace = check_seconds("grace", grace)
    place = _Place.of(fn)
    kill = signal if kill is None else kill
    signal.raise_if_aborted()
    kill.raise_if_aborted()
    # Also a cancellation of the awaiting task must end the child, so the supervisor hears a signal of this call.
    controller = AbortController(kill)
    isolated = _Isolated(place, _pickled(place, args, kwargs), signal, controller.signal)
    ended = start_in_thread(isolated.supervise, grace, on_start)
    ended.add_done_callback(lambda future: future.exception())  # seen, also where a cancellation is what comes out
    try:
        with Guard(kill):
            await asyncio.wait([ended])
    except AbortError:
        await _settle(ended, grace)
    except asyncio.CancelledError:
        controller.abort(AbortReason("parent", "the task that awaited the call was cancelled"))
        await _settle(ended, grace)
        raise
    result = ended.result()
    report_survivors(result.end.survivors)
    return _outcome(result, signal, kill)


def target_of(fn: Callable[..., object]) -> str:
    """The `module:qualname` by which a child process imports this function. Raises: UsageError if it cannot.

    For decorators too: while the module is being loaded, what only its end can show is left to the call.
    """
    return _Place.of(fn, defining=True).target


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a child finds a function: its name, and how many wrappers lie around it under that name."""

    callable: Any
    target: str
    steps: int

    @staticmethod
    def of(fn: Callable[..., object], *, defining: bool = False) -> "_Place":
        if not defining and (path := isolated_child.loading_main()) is not None:
            raise UsageError(
                f"{path} starts a call in a process while that process loads the file to find its function; put what"
                ' starts the program under `if __name__ == "__main__":`'
            )
        plain = next((layer for layer in _layers(fn) if inspect.isroutine(layer) or inspect.isclass(layer)), fn)
        function: Any = plain.__func__ if inspect.ismethod(plain) else plain
        module, name = _name(function)
        if not module or not name:
            raise _refusal(fn, "it is no function with a name of its own", "Give a function that was made with `def`")
        if name.endswith("<lambda>"):
            raise _refusal(function, "a lambda has no name to import it by", "Use `def` at the top level of a module")
        if "<locals>" in name:
            raise _refusal(function, "it is defined inside a function", "Move it to the top level of its module")
        if module in MAIN and isolated_child.main_source() is None:
            raise _refusal(function, "there is no file to import __main__ from", "Put the function in a module")
        if function is not plain:
            _check_owner(plain)
        steps = _steps(function, module, name, defining=defining)
        return _Place(plain, f"{MAIN[0] if module in MAIN else module}:{name}", steps)

    @property
    def owner(self) -> tuple[object, ...]:
        """What a method is bound to: it travels as the first argument."""
        return (self.callable.__self__,) if inspect.ismethod(self.callable) else ()


def _steps(function: object, module: str, name: str, *, defining: bool) -> int:
    home: Any = sys.modules.get(module)
    if defining and (module in MAIN or getattr(getattr(home, "__spec__", None), "_initializing", False)):
        return 0
    found = home
    for part in name.split("."):
        found = getattr(found, part, None)
    for steps, layer in enumerate(_layers(found)):
        # A module that is loaded again still holds the functions of the first time, under the same names.
        if layer is function or (defining and _name(layer) == (module, name)):
            return steps
    what = "is not there" if found is None else f"is {found!r}, which leads to it by no `__wrapped__`"
    advice = "Let that name stand for it; a decorator does so with `functools.wraps`"
    raise _refusal(function, f"{module}:{name}, by which a process would import it, {what}", advice)


def _layers(fn: object) -> Iterator[Any]:
    """The callable, what it wraps, and so on. Some objects claim to wrap for ever: no decorator stack is so deep."""
    yield fn
    for _ in range(50):
        try:
            fn = isolated_child.inner(fn)
        except AttributeError:
            return
        yield fn


def _name(fn: object) -> tuple[str | None, str | None]:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)


def _check_owner(method: Any) -> None:
    try:
        pickle.dumps(method.__self__)
    except Exception as error:
        kind = type(method.__self__).__qualname__
        what = f"it is a method of a {kind}, which cannot be pickled ({describe(error)})"
        raise _refusal(method, what, "Use a function, and give it what it needs as arguments") from error


def _refusal(fn: object, what: str, advice: str) -> UsageError:
    code = getattr(fn, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return UsageError(f"{name}{where} cannot run in a process of its own: {what}. {advice}, or run it in a thread.")


def _pickled(place: _Place, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    try:
        return pickle.dumps(((*place.owner, *args), kwargs), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        named: dict[str, object] = {f"number {index}": value for index, value in enumerate(args)} | kwargs
        try:
            named = inspect.signature(place.callable).bind_partial(*args, **kwargs).arguments
        except (TypeError, ValueError):
            pass  # it does not fit, or there is no signature: then numbers have to do
        culprits = [name for name, value in named.items() if not _can_travel(value)]
        which = f"argument {culprits[0]}" if len(culprits) == 1 else f"arguments {', '.join(culprits or named)}"
        raise UsageError(
            f"{which} of {place.target} cannot be sent to its process ({describe(error)}); give plain data"
        ) from error


def _can_travel(value: object) -> bool:
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Ended:
    """What the supervisor found: an answer, or none, and how the process ended."""

    value: object
    error: Exception | None
    stopped: bool
    end: IsolatedEnd


def _outcome(ended: _Ended, signal: AbortSignal, kill: AbortSignal) -> Any:
    error, reason = ended.error, signal.reason
    if ended.stopped:
        raise error_from(kill.reason or AbortReason(), ended.end) from error
    if isinstance(error, AbortError) and reason is not None and error.reason == reason:
        # Our own abort has come back: with our own reason, whose cause could not travel.
        raise error_from(reason, ended.end if error.partial is None else error.partial) from error
    if error is not None:
        raise error
    return ended.value


async def _settle(ended: "asyncio.Future[_Ended]", grace: float) -> None:
    """Wait until the supervisor has the evidence; it needs no longer than this."""
    with shield(grace + KILL_SECONDS + 10):
        await asyncio.wait([ended])


class _Isolated:
    """One child, from its start to the end of its group. All of it runs in one thread."""

    def __init__(self, place: _Place, arguments: bytes, signal: AbortSignal, kill: AbortSignal) -> None:
        self._place = place
        self._arguments = arguments
        self._signal = signal
        self._kill = kill
        self._mark = uuid.uuid4().hex
        self._told = False

    def supervise(self, grace: float, on_start: Callable[[int], object] | None) -> _Ended:
        """Run it to its answer or its end, and see to it that nothing of it is left."""
        self._kill.raise_if_aborted()
        ours, theirs = socket.socketpair()
        self._heard, tell = socket.socketpair()
        with ours, theirs, self._heard, tell, selectors.DefaultSelector() as self._selector:
            self._selector.register(self._heard, selectors.EVENT_READ)
            self._line = Channel(ours, self._selector)
            with self._kill.add_listener(lambda: poke(tell)), self._signal.add_listener(lambda: poke(tell)):
                process = self._start(theirs.fileno())
                theirs.close()
                with _not_left_running(process), exit_watch(process.pid, self._selector) as watched:
                    if on_start is not None:
                        on_start(process.pid)
                    stopped = self._converse(process, None if watched else POLL_SECONDS)
                    if not stopped:
                        self._linger(process)
                    family = descendants([process.pid])  # before the first signal: it is their subreaper
                    if members_of(process):
                        end_group(process, grace=grace, kill=KILL_SECONDS, wait=self._carry)
                    living = [descendant.pid for descendant in family if is_alive(descendant)]
                    survivors = sorted({*members_of(process), *process_group.marked(self._mark), *living})
                    end = IsolatedEnd(process.pid, collect(process), tuple(survivors))
        return self._ended(stopped, end)

    def _start(self, line: int) -> "subprocess.Popen[bytes]":
        path = [str(entry) for entry in sys.path]
        start = f"import sys; sys.path[:] = {path!r}; from {isolated_child.__name__} import main; main()"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
        return subprocess.Popen(
            # The function's name is for whoever looks at the list of processes.
            [sys.executable, *flags, "-c", start, str(line), self._place.target],
            stdin=subprocess.DEVNULL,
            pass_fds=[line],
            env=process_group.with_mark(os.environ, self._mark),
            start_new_session=True,
        )

    def _converse(self, process: "subprocess.Popen[bytes]", seconds: float | None) -> bool:
        """Talk until there is an answer or the child has ended (False), or until it must be stopped (True)."""
        target, steps, main = self._place.target, self._place.steps, isolated_child.main_source()
        self._line.send(ChildCall(target, steps, self._arguments, main, sys.argv, limit_of(self._signal)))
        while True:
            over, killed = has_ended(process), self._kill.aborted
            if over or killed:
                self._line.carry()  # what has come by now counts
            if over or self._line.answered:
                return False
            if killed:
                return True
            self._carry(seconds)

    def _linger(self, process: "subprocess.Popen[bytes]") -> None:
        """Let the process, and what it has started, end by themselves."""
        until = time.monotonic() + LINGER_SECONDS
        while not has_ended(process) or members_of(process):
            if self._kill.aborted or time.monotonic() >= until:
                return
            self._carry(POLL_SECONDS)

    def _carry(self, seconds: float | None) -> None:
        """Move what can be moved now, or wait for it at most this long."""
        # Where the abort also kills, TERM has gone before: the thread that hears the abort must not compete with the
        # main thread, which may miss a signal that comes between giving up the interpreter and blocking.
        if self._signal.aborted and not self._told:
            self._told = True
            self._line.send((self._signal.reason or AbortReason()).to_dict())
        for key, _ in self._selector.select(seconds):
            if key.data is self._line:
                self._line.carry()
            elif key.fileobj is self._heard:
                self._heard.recv(64)
            else:  # woken by the child's end: once is enough
                self._selector.unregister(key.fileobj)

    def _ended(self, stopped: bool, end: IsolatedEnd) -> _Ended:
        target = self._place.target
        value: object = None
        error: Exception | None = None
        match self._line.answer():
            case None:
                return _Ended(None, None if stopped else ChildDied(target, end.returncode), stopped, end)
            case CallExited(code):
                error = ChildDied(target, end.returncode, code)
            case CallReturned(pickled):
                try:
                    value = isolated_child.loads(pickled)
                except Exception as failure:
                    what = f"{type(failure).__name__}: {failure}"
                    error = UsageError(f"what {target} returned cannot be read here ({what}); return plain data")
            case CallRaised() as raised:
                revived = error = isolated_child.revived(raised)
                revived.add_note(f"In process {end.pid}, which ran {target}:\n{raised.traceback}")
        return _Ended(value, error, stopped and error is not None, end)


@contextmanager
def _not_left_running(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    except BaseException:  # a failure of the supervisor: nobody would be left to stop the child
        process_group.send(process.pid, os_signals.SIGKILL)
        collect(process)
        raise


def _how(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = os_signals.Signals(-returncode).name
    except ValueError:  # most real-time signals have a number only
        name = f"signal {-returncode}"
    return f"killed by {name}" + (" (by somebody, or by the system for want of memory)" if name == "SIGKILL" else "")
