"""One call of a function in a child process, which can be killed. POSIX only. Tools and leaves are not known here.

**The child process.** It is a fresh interpreter (`start_python`) and not a process of multiprocessing, whose spawn and
forkserver share helper processes between calls, always load the program's own file, and do not manage the process
group. The price is the start of Python and the import of the function's module for each call.

**The gate before the first step.** Starting the child takes long, and the abort may come meanwhile. `call_isolated`
checks the signals before it starts the thread, the supervisor checks `kill` before it starts the process, and the
listeners that wake the supervisor are added before the process is started. So an abort at any moment either prevents
the process or is seen by `_exchange`. The child checks once more: `ParentConnection.raise_if_aborted` reads what has
arrived from the parent immediately before the function begins, because the thread that follows the parent may not have
run yet.

**The answer.** It counts only when its whole frame has arrived, so a child that is killed while it writes leaves no
answer, never a truncated one. An answer that was complete before the process died is not lost: the supervisor reads
what is in the socket once more after the end of the process.
"""

import inspect
import pickle
import signal as os_signals
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ..abort.clock import check_seconds
from ..abort.reason import AbortError, AbortReason, error_from
from ..abort.resource_account import report_survivors
from ..abort.signal import AbortSignal
from ..abort.time_limit import limit_of
from ..errors import SafepointError, UsageError, describe
from . import isolated_main
from .child import KILL_SECONDS, ChildProcess, Wakeups, start_python, supervised
from .frames import FrameChannel
from .import_target import ImportTarget, loads, main_source
from .isolated_main import Answer, CallExited, CallRaised, CallReturned, ChildCall, dumps
from .tree import POLL_SECONDS

__all__ = ["ChildDied", "IsolatedEnd", "IsolationOptions", "call_isolated"]

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


async def call_isolated(
    fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], options: IsolationOptions
) -> object:
    """Call `fn(*args, **kwargs)` in a child process. A coroutine runs there under `asyncio.run`.

    A value that arrives in spite of an abort is returned. What the function leaves running in its process group ends
    with the call.

    Args:
        fn: The function, which the child process imports by its name.
        args: Its arguments; they must be picklable.
        kwargs: Its keyword arguments, likewise.
        options: How the call runs, and how it ends.

    Raises:
        AbortError: `kill` was aborted. It is raised when the process group is empty; `.partial` is an IsolatedEnd.
        ChildDied: The process ended without an answer.
        UsageError: The function, its arguments or its value cannot be sent to another process.
        Exception: What the function raised.
    """
    grace = check_seconds("grace", options.grace)
    target = ImportTarget.of(fn)
    signal = options.signal
    kill = signal if options.kill is None else options.kill
    signal.raise_if_aborted()
    kill.raise_if_aborted()
    call = _IsolatedCall(target, _pickled(target, args, kwargs), signal, options.linger)
    result = await supervised(
        lambda kill: call.supervise(kill, grace, options.on_start), kill, seconds=grace + KILL_SECONDS
    )
    report_survivors(result.end.survivors)
    return _outcome(result, signal, kill)


def _pickled(target: ImportTarget, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
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


class _IsolatedCall:
    """One call in its child process, until nothing of the process is left. All methods run in one thread."""

    def __init__(self, target: ImportTarget, arguments: bytes, signal: AbortSignal, linger: float) -> None:
        self._target = target
        self._arguments = arguments
        self._signal = signal
        self._linger_seconds = linger
        self._reason_sent = False

    def supervise(self, kill: AbortSignal, grace: float, on_start: Callable[[int], object] | None) -> _CallEnd:
        """Run the process until its answer or its end, and make sure that nothing of it remains."""
        kill.raise_if_aborted()
        with (
            Wakeups() as self._wakeups,
            kill.add_listener(self._wakeups.wake),
            self._signal.add_listener(self._wakeups.wake),
        ):
            # The function's name is only for people who look at the list of processes.
            child, connection = start_python(isolated_main.__name__, self._target.name)
            with connection, child, child.end_watched(self._wakeups) as seconds:
                self._channel = FrameChannel(connection, self._wakeups.selector)
                if on_start is not None:
                    on_start(child.pid)
                stopped = self._exchange(child, kill, seconds)
                if not stopped:
                    self._linger(child, kill)
                # While the process lives it is the subreaper of what it has started, so all of that can be found.
                child.end_group(grace, KILL_SECONDS, self._transfer_or_wait)
                survivors = child.survivors()
                end = IsolatedEnd(child.pid, child.collect(), survivors)
        return self._ended(stopped, end)

    def _exchange(self, child: ChildProcess, kill: AbortSignal, seconds: float | None) -> bool:
        """Exchange messages until there is an answer or the child has ended.

        Returns:
            True if the child must be stopped before that.
        """
        target, steps, main = self._target.name, self._target.wrappers, main_source()
        self._channel.send(dumps(ChildCall(target, steps, self._arguments, main, sys.argv, limit_of(self._signal))))
        while True:
            over, killed = child.has_ended(), kill.aborted
            if over or killed:
                self._channel.transfer()  # what has arrived by now counts
            if over or self._channel.received.complete:
                return False
            if killed:
                return True
            self._transfer_or_wait(seconds)

    def _linger(self, child: ChildProcess, kill: AbortSignal) -> None:
        """Give the process, and the processes that it has started, time to end by themselves."""
        until = time.monotonic() + self._linger_seconds
        while not child.has_ended() or child.members():
            if kill.aborted or time.monotonic() >= until:
                return
            self._transfer_or_wait(POLL_SECONDS)

    def _transfer_or_wait(self, seconds: float | None) -> None:
        """Transfer what can be transferred now, or wait for it at most this long."""
        # If the abort also ends the process, TERM was sent before this. In the child, the thread that receives the
        # reason must not compete with the main thread, which may miss a signal that comes after it has given up the
        # GIL and before it blocks.
        if self._signal.aborted and not self._reason_sent:
            self._reason_sent = True
            self._channel.send(dumps((self._signal.reason or AbortReason()).to_dict()))
        self._wakeups.wait(seconds)

    def _ended(self, stopped: bool, end: IsolatedEnd) -> _CallEnd:
        target = self._target.name
        value: object = None
        error: Exception | None = None
        answer = self._channel.received.take()
        if answer is None:
            return _CallEnd(None, None if stopped else ChildDied(target, end.returncode), stopped, end)
        match cast(Answer, pickle.loads(answer)):
            case CallExited(code):
                error = ChildDied(target, end.returncode, code)
            case CallReturned(pickled):
                try:
                    value = loads(pickled)
                except Exception as failure:
                    what = f"{type(failure).__name__}: {failure}"
                    error = UsageError(
                        f"the value of {target} cannot be read in this process ({what}); return plain data"
                    )
            case CallRaised() as raised:
                revived = error = isolated_main.revived(raised)
                revived.add_note(f"In process {end.pid}, which ran {target}:\n{raised.traceback}")
        return _CallEnd(value, error, stopped and error is not None, end)


def _describe_exit(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = os_signals.Signals(-returncode).name
    except ValueError:  # most real-time signals have a number only
        name = f"signal {-returncode}"
    return f"killed by {name}" + (" (by a user, or by the system for lack of memory)" if name == "SIGKILL" else "")
