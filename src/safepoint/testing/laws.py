"""Owns the laws, which say what must be true after a stop, and the record of a run that they check.

A law is a function of a `RecordedRun` that yields one sentence per breach, or raises AssertionError. Reports show its
name. Knows nothing of how runs are made, nor of `safepoint.run`: any object with a `status` is an outcome, any object
with `still_running` is a receipt, and an event is named by its `kind` or its class.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import TypeAlias

from ..abort import AbortError, AbortReason
from .inject.chain import place, short
from .inject.points import Mode, Point
from .inject.probe import RecordedEffect

__all__ = [
    "DEFAULT_LAWS",
    "Law",
    "RecordedRun",
    "RunEnding",
    "ends",
    "events_are_paired",
    "no_descriptor_left",
    "no_effect_after_the_stop",
    "no_listener_left",
    "no_process_left",
    "no_result_lost",
    "no_stream_open",
    "no_task_left",
    "no_thread_left",
    "no_timer_armed",
    "outcome_is_the_stop",
    "pairs",
    "works_again",
]

STATUSES = ("completed", "aborted", "timed_out", "failed")


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: by a value, an outcome or an exception.

    Attributes:
        status: That of an outcome (completed, aborted, timed_out, failed), or cancelled, or hung.
        value: What a completed run has returned.
        reason: Why it was aborted.
        error: The exception that it raised.
        still_running: How much its receipt lists as still running.
        where: Where the exception was raised, as `file:line`.
    """

    status: str
    value: object = None
    reason: AbortReason | None = None
    error: BaseException | None = None
    still_running: int = 0
    where: str = ""

    def __str__(self) -> str:
        why = self.error if self.error is not None else self.reason
        return self.status if why is None else f"{self.status}: {why!r}{self.where and f' at {self.where}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Everything that is known of one run after its end. Leftovers are listed as texts.

    Attributes:
        point: Where it was aborted, or None.
        mode: How it was aborted, or None.
        reason: The reason of the abort.
        ending: How it ended.
        observed: Whether any code has asked or observed the signal.
        repeatable: For a run without an abort, whether the run before it had the same value.
        interrupted: The places that the abort has interrupted.
        events: The events that it emitted.
        effects: Its effects on the world.
        tasks: Tasks that still exist.
        threads: Threads that still exist.
        processes: Child processes that still exist.
        descriptors: Descriptors that are still open.
        streams: Async generators that were not closed.
        timers: Timers that would still fire.
        listeners: How many listeners and guards are still registered.
        clean: The run without an abort from before.
        again: The run without an abort from afterwards.
    """

    point: Point | None
    mode: Mode | None
    reason: AbortReason | None
    ending: RunEnding
    observed: bool = True
    repeatable: bool = True
    interrupted: tuple[str, ...] = ()
    events: tuple[object, ...] = ()
    effects: tuple[RecordedEffect, ...] = ()
    tasks: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    timers: tuple[str, ...] = ()
    listeners: int = 0
    clean: "RecordedRun | None" = field(default=None, repr=False)
    again: "RecordedRun | None" = field(default=None, repr=False)


Law: TypeAlias = Callable[[RecordedRun], Iterable[str]]


def ending_of(value: object) -> RunEnding:
    """The ending of a scenario that returned. The value may be an outcome, or a result with an `outcome`."""
    outcome = getattr(value, "outcome", None) or value
    status = getattr(outcome, "status", None)
    if status not in STATUSES:
        return RunEnding("completed", value)
    reason, error = getattr(outcome, "reason", None), getattr(outcome, "error", None)
    return RunEnding(
        status,
        getattr(outcome, "value", None),
        reason if isinstance(reason, AbortReason) else None,
        error if isinstance(error, BaseException) else None,
        len(getattr(getattr(outcome, "receipt", None), "still_running", ())),
    )


def ending_of_error(error: BaseException) -> RunEnding:
    """The ending of a scenario that raised. An exception group that contains only aborts is an abort."""
    if isinstance(error, asyncio.CancelledError):
        return RunEnding("cancelled", error=error)
    reason: AbortReason | None = None
    for leaf in _leaves(error):
        if not isinstance(leaf, AbortError):
            file, line = place([(frame.f_code, line) for frame, line in walk_tb(leaf.__traceback__)])
            return RunEnding("failed", error=error, where=f"{short(file)}:{line}")
        reason = reason or leaf.reason
    return RunEnding("timed_out" if reason is not None and reason.timed_out else "aborted", None, reason, error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def ends(run: RecordedRun) -> Iterator[str]:
    """It ends by itself, in time."""
    if run.ending.status == "hung":
        yield "\n".join([f"the run hangs: {run.ending.error}", *run.tasks])


def outcome_is_the_stop(run: RecordedRun) -> Iterator[str]:
    """The outcome is our abort, with our reason. Completed only if nothing was left to interrupt."""
    ending = run.ending
    match run.mode, ending.status:
        case (None, "completed") | ("cancel", "cancelled"):
            return
        case None, _:
            yield f"without any abort it does not complete: {ending}"
        case "cancel", _:
            yield f"the task was cancelled from outside, and what came out is {ending}: CancelledError was swallowed"
        case _, "aborted":
            if ending.reason != run.reason:
                yield f"aborted for another reason than ours: {ending.reason} instead of {run.reason}"
        case _, "completed":
            if run.interrupted:
                yield f"completed, although the abort had interrupted it at {', '.join(run.interrupted)}: swallowed"
            elif run.clean is not None and not run.clean.observed:
                yield "completed, as if nothing had happened: nothing in it ever looks at the signal"
        case _, status:
            yield f"an abort is never reported as {status}: {ending}"


def no_result_lost(run: RecordedRun) -> Iterator[str]:
    """What completes has the value it always has. (Only if two clean runs agreed on one.)"""
    if run.ending.status == "completed" and run.clean is not None and run.clean.repeatable:
        value, expected = run.ending.value, run.clean.ending.value
        if value != expected:
            yield f"completed with {value!r}, but the result is {expected!r}"


def no_task_left(run: RecordedRun) -> Iterator[str]:
    """Every task has ended, except those that the receipt lists as still running."""
    if len(run.tasks) > run.ending.still_running:
        yield from (f"a task is left: {task}" for task in run.tasks)


def no_thread_left(run: RecordedRun) -> Iterator[str]:
    """Every thread has ended, except idle ones of a pool and those that the receipt lists as still running."""
    if len(run.threads) > run.ending.still_running:
        yield from (f"a thread is left: {thread}" for thread in run.threads)


def no_process_left(run: RecordedRun) -> Iterator[str]:
    """Every child process has ended and was collected, except those that the receipt lists as still running."""
    if len(run.processes) > run.ending.still_running:
        yield from (f"a child process is left: {process}" for process in run.processes)


def no_descriptor_left(run: RecordedRun) -> Iterator[str]:
    """Every file and socket is closed."""
    yield from (f"a file descriptor is left open: {descriptor}" for descriptor in run.descriptors)


def no_stream_open(run: RecordedRun) -> Iterator[str]:
    """Every async generator has run to its end or was closed explicitly, not by the garbage collector."""
    yield from (f"an async generator was not closed: {stream}" for stream in run.streams)


def no_listener_left(run: RecordedRun) -> Iterator[str]:
    """Nothing is registered with the signal, or with a signal that was given to `probe.watch()`."""
    if run.listeners:
        yield f"listeners or guards are left on the signal: {run.listeners}"


def no_timer_armed(run: RecordedRun) -> Iterator[str]:
    """No timer is left armed. Not checked if tasks are left, because these may wait for their timers."""
    if not run.tasks:
        yield from (f"a timer is left armed: {timer}" for timer in run.timers)


def no_effect_after_the_stop(run: RecordedRun) -> Iterator[str]:
    """There is no effect after `abort()` has returned, except clean-up that was recorded as such."""
    for effect in run.effects:
        if effect.late and not effect.cleanup:
            yield f"an effect after the stop: {effect.what!r}, recorded at {effect.place}"


def works_again(run: RecordedRun) -> Iterator[str]:
    """The same scenario, run once more without an abort, completes as it always does."""
    if run.again is not None:
        yield from (f"run once more: {breach}" for breach in ends(run.again))
        if run.again.ending.status not in ("completed", "hung"):
            yield f"run once more without an abort it does not complete: {run.again.ending}"
        yield from (f"run once more: {breach}" for breach in no_result_lost(run.again))


ENDINGS = {"started": ("ended",), "asked": ("answered", "withdrawn"), "opened": ("closed",)}


def pairs(endings: dict[str, tuple[str, ...]] = ENDINGS, *, terminal: str | None = None) -> Law:
    """Make a law over events: `tool_started` needs its `tool_ended`, and the last event is the terminal one.

    Names of classes (`ToolStarted`), strings (`tool_started`) and kinds are treated alike.

    Args:
        endings: For each last word of a begin, the last words that end it.
        terminal: The name of the last event. By default the first event decides: if it is a begin, the last event
            must be its end.
    """

    def events_are_paired(run: RecordedRun) -> Iterator[str]:
        """Every begin has its end among the events, and the last event is the terminal one."""
        begun: list[object] = []
        for event in run.events:
            if _words(event)[1] in endings:
                begun.append(event)
            else:
                ended = [each for each in begun if _ends(event, each, endings)]
                begun = [each for each in begun if each is not (ended or [None])[0]]
        yield from (f"{name_of(event)} has no end among the events" for event in begun)
        if run.events:
            yield from _last(run.events, endings, terminal)

    return events_are_paired


def _ends(event: object, begun: object, endings: dict[str, tuple[str, ...]]) -> bool:
    subject, verb = _words(begun)
    return _words(event) in [(subject, end) for end in endings[verb]] and _identity(event) == _identity(begun)


def _last(events: tuple[object, ...], endings: dict[str, tuple[str, ...]], terminal: str | None) -> Iterator[str]:
    last = name_of(events[-1])
    subject, verb = _words(events[0])
    if terminal is not None:
        if last.lower().replace("_", "") != terminal.lower().replace("_", ""):
            yield f"the last event is {last}, not the terminal {terminal}"
    elif verb in endings and _words(events[-1]) not in [(subject, end) for end in endings[verb]]:
        yield f"the last event is {last}, not the end of {name_of(events[0])}"


def name_of(event: object) -> str:
    """The name of an event: its `kind`, itself if it is a string, or its class."""
    kind = getattr(event, "kind", None)
    return kind if isinstance(kind, str) else event if isinstance(event, str) else type(event).__name__


def _words(event: object) -> tuple[str, str]:
    """The subject and the verb of an event: ("tool", "started") for `tool_started` and for `ToolStarted`."""
    spread = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name_of(event))
    subject, _, verb = spread.replace(".", "_").replace(" ", "_").rpartition("_")
    return subject.strip("_"), verb


def _identity(event: object) -> tuple[object, ...]:
    """The values that distinguish two events of one kind."""
    return tuple(str(getattr(event, name, None)) for name in ("run_id", "path", "question_id", "call_id", "id"))


events_are_paired = pairs()

DEFAULT_LAWS: tuple[Law, ...] = (
    ends,
    outcome_is_the_stop,
    no_result_lost,
    no_task_left,
    no_thread_left,
    no_process_left,
    no_descriptor_left,
    no_stream_open,
    no_listener_left,
    no_timer_armed,
    events_are_paired,
    no_effect_after_the_stop,
    works_again,
)
