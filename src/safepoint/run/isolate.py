"""One call of a function in a child process, which can be killed. POSIX only. Tools and leaves are not known here.

**The child process.** It is a fresh interpreter, started by `subprocess`. It is not a fork, which would copy the locks
of a program with threads in whatever state they are. It is not started by multiprocessing either: its spawn and
forkserver share helper processes between calls, always load the program's own file, and do not manage the process
group. The price is the start of Python and the import of the function's module for each call. A thread supervises the
child in plain blocking code, as for programs, so it works the same on every event loop, even if the loop is busy or
closed.

**The gate before the first step.** Starting the child takes long, and the abort may come meanwhile. `run_isolated`
checks the signals before it starts the thread, the supervisor checks `kill` before it starts the process, and the
listeners that wake the supervisor are added before the process is started. So an abort at any moment either prevents
the process or is seen by `_exchange`. The child checks once more: `ParentConnection.raise_if_aborted` reads what has
arrived from the parent immediately before the function begins, because the thread that follows the parent may not have
run yet.

**Framing.** Parent and child exchange length-prefixed pickles over a pair of sockets (`isolated_child.py`). An answer
counts only when its whole frame has arrived. A child that is killed while it writes therefore leaves no answer, never a
truncated one; and an answer that was complete before the process died is not lost, because the supervisor reads what is
in the socket once more after the end of the process.
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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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

__all__ = ["ChildDied", "IsolatedEnd", "IsolationOptions", "call_isolated", "run_isolated", "target_of"]

T = TypeVar("T")

# How long after the answer the process, and the processes that it has started, may take to end by themselves.
LINGER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class IsolatedEnd:
    """How the process of a call ended.

    Attributes:
        pid: The process id.
        returncode: The exit code; negative for a signal.
        survivors: The pids of processes that it has started and that still run.
    """

    pid: int
    returncode: int | None
    survivors: tuple[int, ...] = ()


class ChildDied(SafepointError):
    """The child process ended without an answer.

    Attributes:
        function: The function that it ran.
        returncode: The exit code; negative for a signal.
        exit: What the function passed to `sys.exit()`; None if it did not call it.
    """

    def __init__(self, function: str, returncode: int | None, exit: str | None = None) -> None:
        super().__init__(function, returncode, exit)
        self.function, self.returncode, self.exit = function, returncode, exit

    def __str__(self) -> str:
        return f"the process of {self.function} ended without an answer: {_describe_exit(self.returncode)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationOptions:
    """How a call runs in its child process, and how it ends.

    Attributes:
        signal: The signal that `current_signal()` follows in the child, with its deadline and its reason.
        kill: The signal whose abort ends the process; by default `signal`.
        grace: The process group gets TERM on abort, and KILL after this many seconds.
        linger: How long after the answer the process, and what it has started, may take to end by themselves.
        on_start: Called with the process id, in the supervising thread.
    """

    signal: AbortSignal
    kill: AbortSignal | None = None
    grace: float = 2.0
    linger: float = LINGER_SECONDS
    on_start: Callable[[int], object] | None = None


@overload
async def run_isolated(
    fn: Callable[..., Awaitable[T]],
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
    fn: Callable[..., object],
    *args: object,
    signal: AbortSignal,
    kill: AbortSignal | None = None,
    grace: float = 2.0,
    on_start: Callable[[int], object] | None = None,
    **kwargs: object,
) -> object:
    """Call `fn(*args, **kwargs)` in a child process. A coroutine runs there under `asyncio.run`.

    A value that arrives in spite of an abort is returned. What the function leaves running in its process group ends
    with the call.

    Args:
        fn: The function, which the child process imports by its name.
        args: Its arguments; they must be picklable.
        signal: The signal that `current_signal()` follows in the child, with its deadline and its reason.
        kill: The signal whose abort ends the process; by default `signal`.
        grace: The process group gets TERM on abort, and KILL after this many seconds.
        on_start: Called with the process id, in the supervising thread.
        kwargs: Keyword arguments of the function.

    Raises:
        AbortError: `kill` was aborted. It is raised when the process group is empty; `.partial` is an IsolatedEnd.
        ChildDied: The process ended without an answer.
        UsageError: The function, its arguments or its value cannot be sent to another process.
        Exception: What the function raised.
    """
    options = IsolationOptions(signal=signal, kill=kill, grace=grace, on_start=on_start)
    return await call_isolated(fn, args, kwargs, options)


async def call_isolated(
    fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: IsolationOptions
) -> object:
    """Call `fn(*args, **kwargs)` as `run_isolated` does. The function's arguments may have the names of the options."""
    grace = check_seconds("grace", options.grace)
    target = _Target.of(fn)
    signal = options.signal
    kill = signal if options.kill is None else options.kill
    signal.raise_if_aborted()
    kill.raise_if_aborted()
    # A cancellation of the awaiting task must end the child as well, so the supervisor watches a signal of this call.
    controller = AbortController(kill)
    isolated = _ChildProcess(target, _pickled(target, args, kwargs), signal, controller.signal, options.linger)
    ended = start_in_thread(isolated.supervise, grace, options.on_start)
    ended.add_done_callback(lambda future: future.exception())  # mark it as retrieved, even if this call is cancelled
    try:
        with Guard(kill):
            await asyncio.wait([ended])
    except AbortError:
        await _wait_for_evidence(ended, grace)
    except asyncio.CancelledError:
        controller.abort(AbortReason("parent", "the task that awaited the call was cancelled"))
        await _wait_for_evidence(ended, grace)
        raise
    result = ended.result()
    report_survivors(result.end.survivors)
    return _outcome(result, signal, kill)


def target_of(fn: Callable[..., object]) -> str:
    """Return the `module:qualname` by which a child process imports this function.

    It also works in decorators, while the module is being loaded: what cannot be checked until the module is complete
    is checked by the call.

    Raises:
        UsageError: A child process cannot import the function.
    """
    return _Target.of(fn, defining=True).name


@dataclass(frozen=True, slots=True)
class _Target:
    """How a child process finds a function.

    Attributes:
        callable: The function, without wrappers that are no functions.
        name: The name of its module and its qualified name.
        wrappers: How many wrappers are around the function under that name.
    """

    callable: Callable[..., object]
    name: str
    wrappers: int

    @staticmethod
    def of(fn: Callable[..., object], *, defining: bool = False) -> "_Target":
        if not defining and (path := isolated_child.loading_main()) is not None:
            raise UsageError(
                f"{path} starts a call in a child process while that process loads the file to find its function; put"
                ' the code that starts the program under `if __name__ == "__main__":`'
            )
        plain: Callable[..., object] = next(
            (layer for layer in _wrapper_layers(fn) if inspect.isroutine(layer) or inspect.isclass(layer)), fn
        )
        function: object = plain.__func__ if inspect.ismethod(plain) else plain
        module, name = _import_name(function)
        if not module or not name:
            raise _refusal(fn, "it is no function with a name of its own", "Use a function that was made with `def`")
        if name.endswith("<lambda>"):
            raise _refusal(function, "a lambda has no name to import it by", "Use `def` at the top level of a module")
        if "<locals>" in name:
            raise _refusal(function, "it is defined inside a function", "Move it to the top level of its module")
        if module in MAIN and isolated_child.main_source() is None:
            raise _refusal(function, "there is no file to import __main__ from", "Put the function in a module")
        if function is not plain:
            _check_owner(plain)
        wrappers = _count_wrappers(function, module, name, defining=defining)
        return _Target(plain, f"{MAIN[0] if module in MAIN else module}:{name}", wrappers)

    @property
    def owner(self) -> tuple[object, ...]:
        """The object to which a method is bound; it is sent as the first argument."""
        return (self.callable.__self__,) if inspect.ismethod(self.callable) else ()


def _count_wrappers(function: object, module: str, name: str, *, defining: bool) -> int:
    module_object = sys.modules.get(module)
    if defining and (module in MAIN or getattr(getattr(module_object, "__spec__", None), "_initializing", False)):
        return 0
    found: object = module_object
    for part in name.split("."):
        found = getattr(found, part, None)
    for wrappers, layer in enumerate(_wrapper_layers(found)):
        # While a module is loaded again, its names still refer to the functions of the first time.
        if layer is function or (defining and _import_name(layer) == (module, name)):
            return wrappers
    what = "does not exist" if found is None else f"is {found!r}, which does not lead to it by `__wrapped__`"
    advice = "Make that name refer to it; a decorator does so with `functools.wraps`"
    raise _refusal(function, f"{module}:{name}, by which a process would import it, {what}", advice)


def _wrapper_layers(fn: object) -> Iterator[Any]:
    """The callable, what it wraps, and so on."""
    yield fn
    for _ in range(50):  # limited, because some objects claim to wrap something at every level
        try:
            fn = isolated_child.inner(fn)
        except AttributeError:
            return
        yield fn


def _import_name(fn: object) -> tuple[str | None, str | None]:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)


def _check_owner(method: Callable[..., object]) -> None:
    owner = getattr(method, "__self__", None)
    try:
        pickle.dumps(owner)
    except Exception as error:
        what = f"it is a method of a {type(owner).__qualname__}, which cannot be pickled ({describe(error)})"
        raise _refusal(method, what, "Use a function, and pass it what it needs as arguments") from error


def _refusal(fn: object, what: str, advice: str) -> UsageError:
    code = getattr(fn, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return UsageError(f"{name}{where} cannot run in a child process: {what}. {advice}, or run it in a thread.")


def _pickled(target: _Target, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    try:
        return pickle.dumps(((*target.owner, *args), dict(kwargs)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        named: dict[str, object] = {f"number {index}": value for index, value in enumerate(args)} | dict(kwargs)
        try:
            named = inspect.signature(target.callable).bind_partial(*args, **kwargs).arguments
        except (TypeError, ValueError):
            pass  # the arguments do not fit, or there is no signature: name them by their numbers
        culprits = [name for name, value in named.items() if not _can_be_pickled(value)]
        which = f"argument {culprits[0]}" if len(culprits) == 1 else f"arguments {', '.join(culprits or named)}"
        raise UsageError(
            f"{which} of {target.name} cannot be sent to its process ({describe(error)}); pass plain data"
        ) from error


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _CallEnd:
    """What the supervisor found.

    Attributes:
        value: The value of the function, if it returned one.
        error: What the function raised, or why there is no answer.
        stopped: Whether the process was ended because of an abort.
        end: How the process ended.
    """

    value: object
    error: Exception | None
    stopped: bool
    end: IsolatedEnd


def _outcome(ended: _CallEnd, signal: AbortSignal, kill: AbortSignal) -> object:
    error, reason = ended.error, signal.reason
    if ended.stopped:
        raise error_from(kill.reason or AbortReason(), ended.end) from error
    if isinstance(error, AbortError) and reason is not None and error.reason == reason:
        # The function raised our own abort. Raise it with our own reason, whose cause could not be sent to the child.
        raise error_from(reason, ended.end if error.partial is None else error.partial) from error
    if error is not None:
        raise error
    return ended.value


async def _wait_for_evidence(ended: "asyncio.Future[_CallEnd]", grace: float) -> None:
    """Wait until the supervisor knows how the process ended, for no longer than it needs at most."""
    with shield(grace + KILL_SECONDS + 10):
        await asyncio.wait([ended])


class _ChildProcess:
    """One child process, from its start to the end of its process group. All methods run in one thread."""

    def __init__(
        self, target: _Target, arguments: bytes, signal: AbortSignal, kill: AbortSignal, linger: float
    ) -> None:
        self._target = target
        self._arguments = arguments
        self._signal = signal
        self._kill = kill
        self._linger_seconds = linger
        self._mark = uuid.uuid4().hex
        self._reason_sent = False

    def supervise(self, grace: float, on_start: Callable[[int], object] | None) -> _CallEnd:
        """Run the process until its answer or its end, and make sure that nothing of it remains."""
        self._kill.raise_if_aborted()
        ours, theirs = socket.socketpair()
        self._wake_receiver, wake_sender = socket.socketpair()
        with ours, theirs, self._wake_receiver, wake_sender, selectors.DefaultSelector() as self._selector:
            self._selector.register(self._wake_receiver, selectors.EVENT_READ)
            self._channel = Channel(ours, self._selector)
            with (
                self._kill.add_listener(lambda: poke(wake_sender)),
                self._signal.add_listener(lambda: poke(wake_sender)),
            ):
                process = self._start(theirs.fileno())
                theirs.close()
                with _not_left_running(process), exit_watch(process.pid, self._selector) as watched:
                    if on_start is not None:
                        on_start(process.pid)
                    stopped = self._exchange(process, None if watched else POLL_SECONDS)
                    if not stopped:
                        self._linger(process)
                    # Before the first signal: while the process lives it is their subreaper, so they can be found.
                    family = descendants([process.pid])
                    if members_of(process):
                        end_group(process, grace=grace, kill=KILL_SECONDS, wait=self._transfer_or_wait)
                    alive = [descendant.pid for descendant in family if is_alive(descendant)]
                    survivors = sorted({*members_of(process), *process_group.marked(self._mark), *alive})
                    end = IsolatedEnd(process.pid, collect(process), tuple(survivors))
        return self._ended(stopped, end)

    def _start(self, line: int) -> "subprocess.Popen[bytes]":
        path = [str(entry) for entry in sys.path]
        start = f"import sys; sys.path[:] = {path!r}; from {isolated_child.__name__} import main; main()"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
        return subprocess.Popen(
            # The function's name is only for people who look at the list of processes.
            [sys.executable, *flags, "-c", start, str(line), self._target.name],
            stdin=subprocess.DEVNULL,
            pass_fds=[line],
            env=process_group.with_mark(os.environ, self._mark),
            start_new_session=True,
        )

    def _exchange(self, process: "subprocess.Popen[bytes]", seconds: float | None) -> bool:
        """Exchange messages until there is an answer or the child has ended.

        Returns:
            True if the child must be stopped before that.
        """
        target, steps, main = self._target.name, self._target.wrappers, isolated_child.main_source()
        self._channel.send(ChildCall(target, steps, self._arguments, main, sys.argv, limit_of(self._signal)))
        while True:
            over, killed = has_ended(process), self._kill.aborted
            if over or killed:
                self._channel.transfer()  # what has arrived by now counts
            if over or self._channel.answered:
                return False
            if killed:
                return True
            self._transfer_or_wait(seconds)

    def _linger(self, process: "subprocess.Popen[bytes]") -> None:
        """Give the process, and the processes that it has started, time to end by themselves."""
        until = time.monotonic() + self._linger_seconds
        while not has_ended(process) or members_of(process):
            if self._kill.aborted or time.monotonic() >= until:
                return
            self._transfer_or_wait(POLL_SECONDS)

    def _transfer_or_wait(self, seconds: float | None) -> None:
        """Transfer what can be transferred now, or wait for it at most this long."""
        # If the abort also ends the process, TERM was sent before this. In the child, the thread that receives the
        # reason must not compete with the main thread, which may miss a signal that comes after it has given up the
        # GIL and before it blocks.
        if self._signal.aborted and not self._reason_sent:
            self._reason_sent = True
            self._channel.send((self._signal.reason or AbortReason()).to_dict())
        for key, _ in self._selector.select(seconds):
            if key.data is self._channel:
                self._channel.transfer()
            elif key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(64)
            else:  # the child has ended: one wake-up is enough
                self._selector.unregister(key.fileobj)

    def _ended(self, stopped: bool, end: IsolatedEnd) -> _CallEnd:
        target = self._target.name
        value: object = None
        error: Exception | None = None
        match self._channel.answer():
            case None:
                return _CallEnd(None, None if stopped else ChildDied(target, end.returncode), stopped, end)
            case CallExited(code):
                error = ChildDied(target, end.returncode, code)
            case CallReturned(pickled):
                try:
                    value = isolated_child.loads(pickled)
                except Exception as failure:
                    what = f"{type(failure).__name__}: {failure}"
                    error = UsageError(
                        f"the value of {target} cannot be read in this process ({what}); return plain data"
                    )
            case CallRaised() as raised:
                revived = error = isolated_child.revived(raised)
                revived.add_note(f"In process {end.pid}, which ran {target}:\n{raised.traceback}")
        return _CallEnd(value, error, stopped and error is not None, end)


@contextmanager
def _not_left_running(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    except BaseException:  # the supervisor failed, and nothing else would stop the child
        process_group.send(process.pid, os_signals.SIGKILL)
        collect(process)
        raise


def _describe_exit(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = os_signals.Signals(-returncode).name
    except ValueError:  # most real-time signals have a number only
        name = f"signal {-returncode}"
    return f"killed by {name}" + (" (by a user, or by the system for lack of memory)" if name == "SIGKILL" else "")
