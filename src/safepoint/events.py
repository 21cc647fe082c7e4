"""The events of runs, turns and sessions: a closed union of frozen dataclasses, `Event`. Receivers are not known here.

Events come up, commands go down, and the names of events are in the past tense. Every event has the fields of
`EventBase`, and `event.kind` tells events apart, for type checkers too. A new kind of event has to be added to `Event`,
and nowhere else. docs/events.md lists all of them with their fields.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .messages import CallStatus, FinishReason, Message
from .outcome import Outcome, Status
from .receipt import Fate, LeafKind, Usage

if TYPE_CHECKING:
    from .wire import event_from_json, event_to_json
else:  # on first use: they need pydantic, which the classes do not
    from .lazy_imports import lazy_imports as _lazy_imports

    __getattr__ = _lazy_imports(__name__, {"event_from_json": "safepoint.wire", "event_to_json": "safepoint.wire"})

__all__ = [
    "AbortIgnored",
    "AnswerFinished",
    "AnswerRestarted",
    "AnswerStarted",
    "CallRecorded",
    "CleanupFailed",
    "Event",
    "FlowSaved",
    "LeafAbandoned",
    "LeafEnded",
    "LeafStarted",
    "LoopIdle",
    "LoopStopping",
    "NodeEnded",
    "PartRecorded",
    "ProgressMade",
    "QuestionAnswered",
    "QuestionAsked",
    "QuestionWithdrawn",
    "RecordDelayed",
    "RetryScheduled",
    "RunEnded",
    "RunStarted",
    "SessionClosed",
    "SessionOpened",
    "StopRequested",
    "TextStreamed",
    "ToolCalled",
    "ToolEnded",
    "TurnEdited",
    "TurnEnded",
    "TurnForgotten",
    "TurnPlanned",
    "TurnPreempted",
    "TurnQueued",
    "TurnStarted",
    "UnknownEvent",
    "event_from_json",
    "event_to_json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBase:
    """Where and when something happened.

    Attributes:
        run_id: The id of the run or the turn.
        path: The names of the operations from the root of the run to this one.
        at: The date, in seconds since 1970.
        calls: The ids of the tool calls around the operation, the outermost first.
    """

    run_id: str
    path: tuple[str, ...]
    at: float
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(EventBase):
    """A run has started."""

    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(EventBase):
    """A run has ended. This is its last event."""

    status: Status
    kind: Literal["run_ended"] = "run_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafStarted(EventBase):
    """The body of a leaf begins to run."""

    leaf: LeafKind
    kind: Literal["leaf_started"] = "leaf_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafEnded(EventBase):
    """A leaf that had started has ended, or was left behind (`still_running`)."""

    leaf: LeafKind
    fate: Fate
    seconds: float
    kind: Literal["leaf_ended"] = "leaf_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortIgnored(EventBase):
    """A leaf still runs long after the abort. `where` is the `file:line` at which it is stuck."""

    seconds: float
    where: str | None
    note: str = ""
    kind: Literal["abort_ignored"] = "abort_ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafAbandoned(EventBase):
    """The run goes on without a leaf that did not end. Its later events and its result are dropped."""

    seconds: float
    where: str | None
    kind: Literal["leaf_abandoned"] = "leaf_abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMade(EventBase):
    """An operation reports how far it is."""

    message: str
    fraction: float | None = None
    kind: Literal["progress_made"] = "progress_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStarted(EventBase):
    """A request goes to a model; `step` counts the requests of this run from 1."""

    model: str
    step: int
    kind: Literal["answer_started"] = "answer_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(EventBase):
    """A piece of the model's answer."""

    text: str
    kind: Literal["text_streamed"] = "text_streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRestarted(EventBase):
    """The answer broke off and is requested again: remove the text that was streamed of it from the screen."""

    kind: Literal["answer_restarted"] = "answer_restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinished(EventBase):
    """The model's answer is complete, or was cut off (`interrupted`). `usage` is what it used.

    `finish_reason` says why it ended: `stop`, `tool_calls`, `length` (the token limit), `content_filter`, `refusal` or
    `paused`. It is None if the answer was interrupted, and in records of versions that did not write it.
    """

    text: str
    interrupted: bool
    usage: Usage
    finish_reason: FinishReason | None = None
    kind: Literal["answer_finished"] = "answer_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(EventBase):
    """The model calls a tool. `arguments` is the JSON text as the model wrote it.

    `idempotency_key` never changes for this call, even when the call runs again. It is empty in records of versions
    that did not write it.
    """

    call_id: str
    name: str
    arguments: str
    idempotency_key: str = ""
    kind: Literal["tool_called"] = "tool_called"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecorded(EventBase):
    """The body of a tool call begins next. A tool that may have effects waits until this event survives a crash.

    So a call without this event has not begun, and a call with this event but without a result may have had effects.
    `effects` is what the tool declares: `irreversible` if it declares nothing, `child` for a sub-agent or flow.
    """

    call_id: str
    name: str
    effects: str
    idempotency_key: str
    kind: Literal["call_recorded"] = "call_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecorded(EventBase):
    """A part of a tool call or node (`ctx.once`) has a result, so it does not run again. `value` is its JSON text."""

    scope: str
    key: str
    value: str
    kind: Literal["part_recorded"] = "part_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDelayed(EventBase):
    """The next step waits for a record to be written, and has been waiting for this many seconds."""

    seconds: float
    kind: Literal["record_delayed"] = "record_delayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(EventBase):
    """A tool call has ended; `status` says how."""

    call_id: str
    name: str
    status: CallStatus
    content: str
    kind: Literal["tool_ended"] = "tool_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnded(EventBase):
    """A node of a flow has completed with this output. `target` is the next node, or None at an end."""

    output: str
    target: str | None
    kind: Literal["node_ended"] = "node_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSaved(EventBase):
    """A flow that runs inside a tool call has reached a new position. After a crash it continues from there.

    `checkpoint` is the JSON text of its Checkpoint. The event comes before the first node, after each node that has
    ended, and inside a scatter at most four times in a second.
    """

    flow: str
    checkpoint: str
    kind: Literal["flow_saved"] = "flow_saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled(EventBase):
    """An attempt failed; the next one comes after `delay` seconds."""

    attempt: int
    delay: float
    error: str
    kind: Literal["retry_scheduled"] = "retry_scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(EventBase):
    """A person is asked a question."""

    question_id: str
    text: str
    options: tuple[str, ...] = field(default=())
    kind: Literal["question_asked"] = "question_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswered(EventBase):
    """The person has answered."""

    question_id: str
    text: str
    kind: Literal["question_answered"] = "question_answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionWithdrawn(EventBase):
    """The question no longer needs an answer: remove it from the screen."""

    question_id: str
    kind: Literal["question_withdrawn"] = "question_withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupFailed(EventBase):
    """A clean-up raised or took too long. The outcome does not change."""

    message: str
    kind: Literal["cleanup_failed"] = "cleanup_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(EventBase):
    """An event that a newer version of Safepoint has written, of a kind that this version does not know.

    It keeps its number in the log, the fields of EventBase and its text, so that two versions can run side by side:
    readers of a log skip it, and code that forwards events forwards it unchanged.

    Attributes:
        name: The kind that the newer version has given it.
        document: The JSON text, as it was read.
    """

    name: str
    document: str
    kind: Literal["unknown_event"] = "unknown_event"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlanned(EventBase):
    """A turn of a loop is being planned, for this number of items."""

    turn_id: str
    items: int
    kind: Literal["turn_planned"] = "turn_planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(EventBase):
    """A turn begins to work, on this number of items."""

    turn_id: str
    items: int
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPreempted(EventBase):
    """A turn is to stop for a newer item; `at_point` is the name of the StopAt."""

    turn_id: str
    at_point: str
    kind: Literal["turn_preempted"] = "turn_preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(EventBase):
    """A turn has ended. This is its only end, with its whole outcome.

    `resumable` is true if the turn was aborted only because its host was shut down: whoever opens the session next may
    continue it.
    """

    turn_id: str
    outcome: Outcome[Any]
    resumable: bool = False
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(EventBase):
    """A session was opened in this process, with this agent."""

    agent: str
    kind: Literal["session_opened"] = "session_opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(EventBase):
    """A session was closed in this process. This is its last event here.

    `left` is the number of turns that remain for the next opening: those that wait, and one that can be resumed.
    """

    reason: str
    left: int = 0
    kind: Literal["session_closed"] = "session_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(EventBase):
    """A turn was accepted. `messages` is None if a function will make them when the turn begins.

    `continues` is the id of the stopped turn that this one continues. `resumes` counts how many times the work was
    resumed automatically after its process had died, this time included.
    """

    turn_id: str
    messages: tuple[Message, ...] | None
    continues: str | None = None
    resumes: int = 0
    kind: Literal["turn_queued"] = "turn_queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEdited(EventBase):
    """The messages of a waiting turn were replaced."""

    turn_id: str
    messages: tuple[Message, ...]
    kind: Literal["turn_edited"] = "turn_edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(EventBase):
    """A stop of a turn was requested. After a crash this record decides: the turn is not run again.

    `at_point` is the name of the StopAt. Work that has not ended `abandon` seconds after the abort is left behind.
    """

    turn_id: str
    at_point: str
    reason: str
    reason_kind: str
    abandon: float | None = None
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForgotten(EventBase):
    """A turn was removed: the conversation is again as it was before it."""

    turn_id: str
    kind: Literal["turn_forgotten"] = "turn_forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopIdle(EventBase):
    """A loop has nothing to do and waits for items."""

    kind: Literal["loop_idle"] = "loop_idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStopping(EventBase):
    """A loop starts no further turn. `at_point` is the name of the StopAt for the running one."""

    at_point: str
    cause: str
    kind: Literal["loop_stopping"] = "loop_stopping"


Event: TypeAlias = (
    RunStarted
    | RunEnded
    | TurnPlanned
    | TurnStarted
    | TurnPreempted
    | TurnEnded
    | SessionOpened
    | SessionClosed
    | TurnQueued
    | TurnEdited
    | StopRequested
    | TurnForgotten
    | LoopIdle
    | LoopStopping
    | AnswerStarted
    | TextStreamed
    | AnswerRestarted
    | AnswerFinished
    | ToolCalled
    | CallRecorded
    | ToolEnded
    | PartRecorded
    | RecordDelayed
    | LeafStarted
    | LeafEnded
    | AbortIgnored
    | LeafAbandoned
    | NodeEnded
    | FlowSaved
    | ProgressMade
    | RetryScheduled
    | QuestionAsked
    | QuestionAnswered
    | QuestionWithdrawn
    | CleanupFailed
    | UnknownEvent
)
