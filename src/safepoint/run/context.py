"""Owns the context of work: who may stop it, where it reports, on which clock. Knows nothing of what the work is."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Protocol, TypeAlias, TypedDict, TypeVar

from ..abort import AbortController, AbortSignal, Clock, current_clock, current_signal
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.reason import caller, error_from
from ..abort.renamed_arguments import accepts_deadline
from .events import Event, ProgressMade
from .journal import Journal
from .receipt import ReceiptBuilder
from .start_gate import AbortTimers
from .stop import Stop, StopAt

__all__ = ["Cleanup", "Context", "Work", "on_loop"]

log = logging.getLogger("safepoint")
Input = TypeVar("Input", contravariant=True)
Value = TypeVar("Value", covariant=True)

Cleanup: TypeAlias = Callable[[], object]

# Set in a thread that is given a context made for the loop: calls a function on that loop. Receivers of events expect
# to be called there.
on_loop: ContextVar[Callable[[Callable[[], object]], object] | None] = ContextVar("safepoint_on_loop", default=None)


class Work(Protocol[Input, Value]):
    """Everything that can be stopped has this shape: tools, nodes, agents, flows."""

    def __call__(self, ctx: "Context", value: Input, /) -> Awaitable[Value]:
        """Do it. Raises what went wrong, or AbortError."""
        ...


class Stamp(TypedDict):
    """What every event says of its place."""

    run_id: str
    path: tuple[str, ...]
    at: float
    calls: tuple[str, ...]


class Revocation:
    """Stands between an abandoned leaf and its run: what comes late is dropped, and said once."""

    __slots__ = ("_closed", "_outer", "_told")

    def __init__(self, outer: "Revocation | None" = None) -> None:
        self._outer = outer
        self._closed = False
        self._told = False

    @property
    def closed(self) -> bool:
        """True: nothing gets through any more."""
        return self._closed or (self._outer is not None and self._outer.closed)

    def close(self) -> None:
        """Let nothing through from now on."""
        self._closed = True

    def late(self, what: str, ctx: "Context") -> None:
        """Something came late."""
        if not self._told:
            self._told = True
            log.warning(
                "%s was abandoned after the abort; what still comes from it is dropped (first: %s)",
                ctx.operation,
                what,
                extra=ctx.log_fields(),
            )


class Context:
    """What work is given beside its input. Children share the run's id, ledger, journal, sink and clean-ups.

    Attributes:
        calls: The ids of the tool calls around this work, the outermost first.
        journal: What the run has on record.
    """

    __slots__ = (
        "_revocation",
        "_sink",
        "alarm",
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
            # In one instant the person comes before the clock: the order of this list decides.
            self.signal = AbortSignal.any([self.signal, limit])
        if controller is not None:  # of this run alone: a stop becomes its abort
            self.signal = controller.signal
        self.run_id = run_id or uuid.uuid4().hex
        self.path: tuple[str, ...] = (name,)
        self.calls: tuple[str, ...] = ()
        self.journal = Journal()
        self.stop = Stop(controller, self.clock)
        self.is_run = True  # a run's own: work that is given it need not make one below
        self.receipt_builder = ReceiptBuilder(self.clock)
        self.alarm = AbortTimers(self.signal, self.clock)
        self.cleanups: list[Cleanup] = []
        self._sink = emit
        self._revocation = Revocation()

    def child(
        self,
        name: str,
        *,
        signal: AbortSignal | None = None,
        revocation: Revocation | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        kind: "type[Context] | None" = None,
    ) -> "Context":
        """The context of a part: one step deeper, by default under the same signal.

        `loop`: the part runs in a thread, and its events must get back to this loop.
        `kind`: the part is given a richer context; whoever asks for it fills in the rest.
        """
        kind = kind or Context
        child = kind.__new__(kind)
        child.clock = self.clock
        same = signal is None or signal is self.signal
        child.signal = self.signal if signal is None else signal
        child.alarm = self.alarm if same else AbortTimers(child.signal, self.clock)
        child.run_id = self.run_id
        child.path = (*self.path, name)
        child.calls = self.calls
        child.journal = self.journal
        child.stop = self.stop
        child.is_run = False
        child.receipt_builder = self.receipt_builder
        child.cleanups = self.cleanups
        child._sink = self._sink if self._sink is None or loop is None else _posted(self._sink, loop)
        child._revocation = self._revocation if revocation is None else revocation
        return child

    def below(self, name: str | None, controller: AbortController) -> "Context":
        """The context of a run inside this one: it has an abort and safe points of its own. Close its `stop` after.

        `name` None: the operation around it is already named after it.
        """
        child = self.child(name or "", signal=controller.signal)
        if name is None:
            child.path = self.path
        child.stop = Stop(controller, self.clock, self.stop)
        child.is_run = True
        return child

    def __reduce__(self) -> "tuple[Callable[..., Context], tuple[object, ...]]":
        # In another process it has the same name and the signal that is there; events are not carried back.
        return _carried, (self.path, self.run_id)

    def new_revocation(self) -> Revocation:
        """A fence for a part that may be abandoned: it closes with this context's own."""
        return Revocation(self._revocation)

    @property
    def operation(self) -> str:
        """The path as one word, for people: `run/search`."""
        return "/".join(self.path)

    @property
    def listened(self) -> bool:
        """False: nobody receives events, they need not be made."""
        return self._sink is not None

    def listen(self, sink: Callable[[Event], object]) -> None:
        """Send the events here. Before the run begins: contexts that exist already keep what they had."""
        self._sink = sink

    def emit(self, event: Event) -> None:
        """Report what happened. What an abandoned leaf reports is dropped; what a listener raises is not ours."""
        if self._revocation.closed:
            self._revocation.late(type(event).__name__, self)
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
            told = "%s: whoever listens to its events failed at %s"
            log.warning(told, self.operation, type(event).__name__, exc_info=True, extra=self.log_fields())

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Say how far the operation is."""
        self.emit(ProgressMade(**self.stamp(), message=message, fraction=fraction))

    def stamp(self) -> Stamp:
        """What every event says of its place: run, path, date, and the tool calls around it."""
        return {"run_id": self.run_id, "path": self.path, "at": self.clock.time(), "calls": self.calls}

    async def safe_point(self) -> None:
        """Stopping here loses nothing: a stop that waits for a safe point is honoured here. Raises: AbortError."""
        await asyncio.sleep(0)  # the others have their turn, one of whom may ask for a stop
        self.signal.raise_if_aborted()
        if self.stop.due(StopAt.SAFE_POINT):
            raise error_from(self.stop.reason)

    def log_fields(self) -> dict[str, object]:
        """For `logging`'s `extra`: every record says of which run and operation it speaks."""
        return {"run_id": self.run_id, "operation": self.operation}

    def on_exit(self, cleanup: Cleanup) -> None:
        """Run this when the run ends, on every path: last in, first out, shielded and bounded.

        A synchronous function runs in a thread. What must run on the loop's own thread is to be an async function.
        """
        self.admit("on_exit()")
        self.cleanups.append(cleanup)

    def admit(self, what: str) -> None:
        """Raises: AbortError for an abandoned leaf, which may begin nothing."""
        if self._revocation.closed:
            self._revocation.late(what, self)
            self.signal.raise_if_aborted()


def _posted(sink: Callable[[Event], object], loop: asyncio.AbstractEventLoop) -> Callable[[Event], object]:
    def post(event: Event) -> None:
        loop.call_soon_threadsafe(sink, event)

    return post


def _carried(path: tuple[str, ...], run_id: str) -> Context:
    ctx = Context(signal=current_signal(), run_id=run_id)
    ctx.path = path
    return ctx
