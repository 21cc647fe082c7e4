"""The events of a run: a closed union of frozen dataclasses, `Event`. This module does not know who receives them.

Events come up, commands go down, and the names of events are in the past tense. Every event has the fields of
`EventBase`. A new kind of event has to be added to `Event`, and nowhere else.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .event_base import EventBase
from .messages import CallStatus
from .outcome import Status
from .receipt import Fate, LeafKind, Usage
from .turn_events import (
    LoopIdle,
    LoopStopping,
    SessionClosed,
    SessionOpened,
    StopRequested,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnPlanned,
    TurnPreempted,
    TurnQueued,
    TurnStarted,
)

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
]


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
    """The model's answer is complete, or was cut off (`interrupted`). `usage` is what it used."""

    text: str
    interrupted: bool
    usage: Usage
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
