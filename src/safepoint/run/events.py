"""Owns what can happen on the way: a closed union of frozen events. Knows nothing of who listens.

Events come up, commands go down. Names are in the past tense. Every event says of which run and on which path, from the
root of the run to the operation, it speaks, and inside of which tool calls it happened. A new kind of event goes into
`Event` and nowhere else.
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
    """Work was given to `settle`."""

    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(EventBase):
    """The one terminal event of a run: nothing of it comes afterwards."""

    status: Status
    kind: Literal["run_ended"] = "run_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafStarted(EventBase):
    """The body of a leaf begins."""

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
    """A leaf still runs long after the abort. `where` is the file:line at which it is stuck."""

    seconds: float
    where: str | None
    note: str = ""
    kind: Literal["abort_ignored"] = "abort_ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafAbandoned(EventBase):
    """The run goes on without a leaf that did not end. Whatever comes from it later is dropped."""

    seconds: float
    where: str | None
    kind: Literal["leaf_abandoned"] = "leaf_abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMade(EventBase):
    """An operation says how far it is."""

    message: str
    fraction: float | None = None
    kind: Literal["progress_made"] = "progress_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStarted(EventBase):
    """A model is asked; `step` counts the requests of this run from 1."""

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
    """The answer broke off and is asked for again: what was streamed of it does not count, take it off the screen."""

    kind: Literal["answer_restarted"] = "answer_restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinished(EventBase):
    """The model's answer is whole, or was cut off (`interrupted`); `usage` is what it cost."""

    text: str
    interrupted: bool
    usage: Usage
    kind: Literal["answer_finished"] = "answer_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(EventBase):
    """The model wants a tool; `arguments` is the JSON text as the model wrote it.

    `idempotency_key`: the same for this call for life; empty in records of versions that did not write it.
    """

    call_id: str
    name: str
    arguments: str
    idempotency_key: str = ""
    kind: Literal["tool_called"] = "tool_called"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecorded(EventBase):
    """The body of a tool call begins next. Where effects matter, it waits until this event survives a crash.

    So a call of which this was never written has not begun, and one that has no result after it may have had effects.
    `effects`: as declared by the tool, `irreversible` if it says nothing, `child` for a sub-agent or flow.
    """

    call_id: str
    name: str
    effects: str
    idempotency_key: str
    kind: Literal["call_recorded"] = "call_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecorded(EventBase):
    """A part of a tool call or node (`ctx.once`) has a result, as JSON text in `value`: it does not run again."""

    scope: str
    key: str
    value: str
    kind: Literal["part_recorded"] = "part_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDelayed(EventBase):
    """What must be on record first takes long to write: for so many seconds now the next step has not begun."""

    seconds: float
    kind: Literal["record_delayed"] = "record_delayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(EventBase):
    """What became of a tool call."""

    call_id: str
    name: str
    status: CallStatus
    content: str
    kind: Literal["tool_ended"] = "tool_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnded(EventBase):
    """A node of a flow has ended well, by this output. `target` is the next node, or None at an end."""

    output: str
    target: str | None
    kind: Literal["node_ended"] = "node_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSaved(EventBase):
    """A flow that runs inside of a tool call has reached a new place. It is what a crash is recovered from.

    `checkpoint` is the JSON text of its Checkpoint. One comes before the first node, one after every node that has
    ended, and inside of a scatter at most four in a second.
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
    """A person is asked."""

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
    """The question needs no answer any more: take it off the screen."""

    question_id: str
    kind: Literal["question_withdrawn"] = "question_withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupFailed(EventBase):
    """A clean-up raised or took too long. The outcome does not change."""

    message: str
    kind: Literal["cleanup_failed"] = "cleanup_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(EventBase):
    """An event of a kind that a newer version of Safepoint has written and this one does not know.

    It has its number in the log, its place and its text, so that two versions can run side by side: whoever reads a log
    passes it over, and whoever passes events on passes it on unchanged.

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
