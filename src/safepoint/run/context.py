"""The context of work: who may stop it, where it reports, and on which clock. It does not know what the work is."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

from ..abort import AbortController, AbortError, AbortSignal, Clock, current_clock, current_signal
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.event_loop import post
from ..abort.reason import caller, error_from
from ..abort.renamed_arguments import accepts_deadline
from ..events import Event, ProgressMade
from .journal import ChildProcessJournal, Journal
from .receipt_builder import ReceiptBuilder
from .start_gate import AbortTimers
from .stop import Stop, StopAt

if TYPE_CHECKING:
    from .once import RepeatableContext

__all__ = ["ChildContext", "ChildOptions", "Cleanup", "Context", "Work", "on_loop"]

log = logging.getLogger("safepoint")
Input = TypeVar("Input", contravariant=True)
Value = TypeVar("Value", covariant=True)

Cleanup: TypeAlias = Callable[[], object]

# A function that calls another one on the event loop. It is set in a thread that uses a context made for that loop,
# because receivers of events expect to be called there.
on_loop: ContextVar[Callable[[Callable[[], object]], object] | None] = ContextVar("safepoint_on_loop", default=None)


class Work(Protocol[Input, Value]):
    """The shape of everything that can be stopped: tools, nodes, agents, flows."""

    def __call__(self, ctx: "Context", value: Input, /) -> Awaitable[Value]:
        """Do the work.

        Raises:
            AbortError: The work was stopped.
            Exception: The work failed.
        """
        ...


class Stamp(TypedDict):
    """The fields that every event has in common: where and when it happened."""

    run_id: str
    path: tuple[str, ...]
    at: float
    calls: tuple[str, ...]


class Revocation:
    """Cuts an abandoned leaf off from its run: what it does later is dropped, and logged once."""

    __slots__ = ("_closed", "_outer", "_reported")

    def __init__(self, outer: "Revocation | None" = None) -> None:
        self._outer = outer
        self._closed = False
        self._reported = False

    @property
    def closed(self) -> bool:
        """Whether the leaf, or one around it, was abandoned."""
        return self._closed or (self._outer is not None and self._outer.closed)

    def close(self) -> None:
        """Drop everything from now on."""
        self._closed = True

    def report_late(self, what: str, ctx: "Context") -> None:
        """Log the first thing that an abandoned leaf did."""
        if not self._reported:
            self._reported = True
            log.warning(
                "%s was abandoned after the abort; what still comes from it is dropped (first: %s)",
                ctx.operation,
                what,
                extra=ctx.log_fields(),
            )


class KeptPartial:
    """How far the work of a run had come that raised an error: the last one, shared by all contexts of the run."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: tuple[BaseException, object] | None = None


class Context:
    """What work gets besides its input. Children share the run's id, receipt, journal, event listener and clean-ups.

    Args:
        name: The name of the operation.
        signal: The signal that stops the work.
        timeout: Seconds after which the work is stopped; its outcome is then TimedOut.
        emit: The function that receives the events.
        run_id: The id of the run; by default a new one.
        controller: The controller of this run alone, which a stop aborts. Its signal replaces `signal`.

    Attributes:
        abort_timers: What is due when leaves go on after an abort.
        calls: The ids of the tool calls around this work, the outermost first.
        is_run: Whether this is the context of a whole run, so that an agent or flow that gets it need not start one
            inside it.
        journal: The durable record of the run.
        path: The names of the operations from the root of the run to this one.
        receipt_builder: The entries of the receipt, one for each leaf.
        stop: The live stop request of the run.
    """

    __slots__ = (
        "_kept",
        "_repeatable",
        "_revocation",
        "_runs",
        "_sink",
        "abort_timers",
        "calls",
        "cleanups",
        "clock",
        "is_run",
        "journal",
        "path",
        "receipt_builder",
        "run_id",
        "signal",
        "stop",
    )

    @accepts_deadline
    def __init__(
        self,
        name: str = "run",
        *,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        emit: Callable[[Event], object] | None = None,
        run_id: str | None = None,
        controller: AbortController | None = None,
    ) -> None:
        self.clock: Clock = current_clock()
        self.signal: AbortSignal = AbortSignal.never() if signal is None else signal
        if timeout is not None:
            limit = Deadline(check_seconds("timeout", timeout), "deadline", caller(1))
            # The order decides which reason counts if both are aborted: a person's comes before the time limit's.
            self.signal = AbortSignal.any([self.signal, limit])
        if controller is not None:
            self.signal = controller.signal
        self.run_id = run_id or uuid.uuid4().hex
        self.path: tuple[str, ...] = (name,)
        self.calls: tuple[str, ...] = ()
        self.journal = Journal()
        self._repeatable: RepeatableContext | None = None
        self.stop = Stop(controller, self.clock)
        self.is_run = True
        self.receipt_builder = ReceiptBuilder(self.clock)
        self.abort_timers = AbortTimers(self.signal, self.clock)
        self.cleanups: list[tuple[Context, Cleanup]] = []
        self._runs: dict[str, int] | None = None
        self._sink = emit
        self._revocation = Revocation()
        self._kept = KeptPartial()

    def child(self, name: str | None, **options: "Unpack[ChildOptions]") -> "ChildContext":
        """Make the context of a part of this work, with a path one step deeper.

        Args:
            name: The name of the part. None if it has the path of this context.
            **options: What differs from this context: see `ChildContext`.
        """
        return ChildContext(self, name, **options)

    def unstoppable_child(self, name: str) -> "Context":
        """Make the context of a part that no stop reaches, such as a clean-up."""
        child = self.child(name, signal=AbortSignal.never())
        child.stop = Stop(None, self.clock)
        return child

    def child_run(self, name: str | None, controller: AbortController) -> "Context":
        """Make the context of a run inside this one, with an abort and safe points of its own.

        A second run of the same name gets the name `name#2`, so that the events of both can be told apart.

        Args:
            name: The name of the run. None if the operation around it has the run's name already.
            controller: The controller of the run alone.

        Returns:
            The context. Call `stop.close()` on it when the run has ended.
        """
        child = self.child(None if name is None else self._count_run(name), signal=controller.signal)
        child.stop = Stop(controller, self.clock, self.stop)
        child.is_run = True
        return child

    def _count_run(self, name: str) -> str:
        if self._runs is None:
            self._runs = {}
        number = self._runs[name] = self._runs.get(name, 0) + 1
        return name if number == 1 else f"{name}#{number}"

    @property
    def runs_inside(self) -> int:
        """How many runs were begun directly inside this work, by their names."""
        return 0 if self._runs is None else sum(self._runs.values())

    def __reduce__(self) -> "tuple[Callable[..., Context], tuple[object, ...]]":
        # In another process the context keeps its name and gets the signal of that process. Events are not sent back.
        return _unpickled, (self.path, self.run_id, self.calls)

    def new_revocation(self) -> Revocation:
        """Make a revocation for a part that may be abandoned. Closing this context's own closes it too."""
        return Revocation(self._revocation)

    @property
    def operation(self) -> str:
        """The path as one word, for people: `run/search`."""
        return "/".join(self.path)

    @property
    def repeatable(self) -> "RepeatableContext | None":
        """The context of the innermost work that may run again: this one, or one around it."""
        return self._repeatable

    @property
    def has_listener(self) -> bool:
        """Whether events are received at all. If not, they need not be created."""
        return self._sink is not None

    def send_events_to(self, sink: Callable[[Event], object]) -> None:
        """Set the receiver of events. Call it before the run begins: existing child contexts keep what they had."""
        self._sink = sink

    def emit(self, event: Event) -> None:
        """Report what happened. Events of an abandoned leaf are dropped; an error of the receiver is logged."""
        if self._revocation.closed:
            self._revocation.report_late(type(event).__name__, self)
        elif self._sink is not None:
            post = on_loop.get()
            if post is None:
                self._send(self._sink, event)
            else:
                post(partial(self._send, self._sink, event))

    def _send(self, sink: Callable[[Event], object], event: Event) -> None:
        try:
            sink(event)
        except Exception:
            message = "%s: the receiver of its events failed at %s"
            log.warning(message, self.operation, type(event).__name__, exc_info=True, extra=self.log_fields())

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report how far the operation is.

        Args:
            message: A text for people.
            fraction: From 0 to 1, if known.
        """
        self.emit(ProgressMade(**self.stamp(), message=message, fraction=fraction))

    def stamp(self) -> Stamp:
        """Return the fields that every event has: run, path, date, and the tool calls around it."""
        return {"run_id": self.run_id, "path": self.path, "at": self.clock.time(), "calls": self.calls}

    async def safe_point(self) -> None:
        """Mark a place where stopping loses nothing: a stop that waits for a safe point takes effect here.

        Raises:
            AbortError: The work was stopped.
        """
        await asyncio.sleep(0)  # let other tasks run, one of which may request a stop
        self.signal.raise_if_aborted()
        if self.stop.due(StopAt.SAFE_POINT):
            raise error_from(self.stop.reason)

    def log_fields(self) -> dict[str, object]:
        """Return the fields for `logging`'s `extra`, which name the run and the operation."""
        return {"run_id": self.run_id, "operation": self.operation}

    def on_exit(self, cleanup: Cleanup) -> None:
        """Run `cleanup` when the run ends, however it ends: last in, first out, shielded and limited in time.

        A synchronous function runs in a thread. If it must run on the event loop's thread, make it an async function.
        """
        self.raise_if_abandoned("on_exit()")
        self.cleanups.append((self, cleanup))

    def keep_partial(self, error: BaseException, partial: object) -> None:
        """Keep how far work had come that is about to raise `error`. If `error` ends the run, it is the run's partial.

        Args:
            error: The error.
            partial: The work done so far. It takes precedence over the `partial` of an AbortError.
        """
        self._kept.last = (error, partial)

    def take_partial(self, error: BaseException) -> object:
        """Return how far work had come that raised this error, and forget it. None if that was not kept."""
        last = self._kept.last
        if last is not None and last[0] is error:
            self._kept.last = None
            return last[1]
        return error.partial if isinstance(error, AbortError) else None

    @property
    def abandoned(self) -> bool:
        """Whether the run goes on without this work. What comes from it is dropped."""
        return self._revocation.closed

    def raise_if_abandoned(self, what: str) -> None:
        """Refuse an abandoned leaf, which may begin nothing.

        Args:
            what: What the leaf wanted to do, for the log.

        Raises:
            AbortError: The leaf was abandoned.
        """
        if self._revocation.closed:
            self._revocation.report_late(what, self)
            self.signal.raise_if_aborted()


class ChildOptions(TypedDict, total=False):
    """In what the context of a part may differ from the one around it."""

    signal: AbortSignal | None
    revocation: Revocation | None
    loop: asyncio.AbstractEventLoop | None


class ChildContext(Context):
    """The context of a part of a run: a leaf, a branch, a run inside the run. Everything else is the run's.

    Contexts with more in them, such as that of a tool call, derive from it.

    Args:
        outer: The context of the work around it.
        name: The name of the part. None if it has the path of the work around it.
        signal: The signal of the part; by default that of the work around it.
        revocation: What cuts the part off if it is abandoned; by default that of the work around it.
        loop: The event loop on which events must be emitted, if the part runs in a thread.
    """

    __slots__ = ()

    def __init__(
        self,
        outer: Context,
        name: str | None,
        *,
        signal: AbortSignal | None = None,
        revocation: Revocation | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        # Every field of a Context is set here: its constructor is for a whole run, which makes them anew.
        self.clock = outer.clock
        same = signal is None or signal is outer.signal
        self.signal = outer.signal if signal is None else signal
        self.abort_timers = outer.abort_timers if same else AbortTimers(self.signal, outer.clock)
        self.run_id = outer.run_id
        self.path = outer.path if name is None else (*outer.path, name)
        self.calls = outer.calls
        self.journal = outer.journal
        self._repeatable = outer.repeatable
        self.stop = outer.stop
        self.is_run = False
        self.receipt_builder = outer.receipt_builder
        self.cleanups = outer.cleanups
        self._runs = None
        self._sink = outer._sink if outer._sink is None or loop is None else _posting(outer._sink, loop)
        self._revocation = outer._revocation if revocation is None else revocation
        self._kept = outer._kept


def _posting(sink: Callable[[Event], object], loop: asyncio.AbstractEventLoop) -> Callable[[Event], object]:
    return lambda event: post(loop, sink, event)


def _unpickled(path: tuple[str, ...], run_id: str, calls: tuple[str, ...]) -> Context:
    ctx = Context(signal=current_signal(), run_id=run_id)
    ctx.path, ctx.calls = path, calls
    ctx.journal = ChildProcessJournal()
    return ctx
