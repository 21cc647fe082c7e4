"""Owns what can happen on the way: a closed union of frozen events. Knows nothing of who listens.

Events come up, commands go down. Names are in the past tense. Every event says of which run and on which path, from the
root of the run to the operation, it speaks. A new kind of event goes into `Event` and nowhere else.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .messages import CallStatus, Message
from .outcome import Outcome, Status
from .receipt import Fate, LeafKind, Usage

__all__ = [
    "AbortIgnored",
    "AnswerFinished",
    "AnswerRestarted",
    "AnswerStarted",
    "CleanupFailed",
    "Event",
    "LeafAbandoned",
    "LeafEnded",
    "LeafStarted",
    "LoopIdle",
    "LoopStopping",
    "NodeEnded",
    "ProgressMade",
    "QuestionAnswered",
    "QuestionAsked",
    "QuestionWithdrawn",
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
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    run_id: str
    path: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(_Happened):
    """Work was given to `settle`."""

    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(_Happened):
    """The one terminal event of a run: nothing of it comes afterwards."""

    status: Status
    kind: Literal["run_ended"] = "run_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafStarted(_Happened):
    """The body of a leaf begins."""

    leaf: LeafKind
    kind: Literal["leaf_started"] = "leaf_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafEnded(_Happened):
    """A leaf that had started has ended, or was left behind (`still_running`)."""

    leaf: LeafKind
    fate: Fate
    seconds: float
    kind: Literal["leaf_ended"] = "leaf_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortIgnored(_Happened):
    """A leaf still runs long after the abort. `where` is the file:line at which it is stuck."""

    seconds: float
    where: str | None
    note: str = ""
    kind: Literal["abort_ignored"] = "abort_ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafAbandoned(_Happened):
    """The run goes on without a leaf that did not end. Whatever comes from it later is dropped."""

    seconds: float
    where: str | None
    kind: Literal["leaf_abandoned"] = "leaf_abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMade(_Happened):
    """An operation says how far it is."""

    message: str
    fraction: float | None = None
    kind: Literal["progress_made"] = "progress_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlanned(_Happened):
    """A turn of a loop is being planned, for so many items."""

    turn_id: str
    items: int
    kind: Literal["turn_planned"] = "turn_planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(_Happened):
    """A turn begins to work, on so many items."""

    turn_id: str
    items: int
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPreempted(_Happened):
    """A turn is to make way for something newer; `at` says when."""

    turn_id: str
    at_point: str
    kind: Literal["turn_preempted"] = "turn_preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(_Happened):
    """The one end of a turn, with everything there is to say of it.

    `resumable`: it was aborted only because its host was shut down: whoever opens the session next may go on with it.
    """

    turn_id: str
    outcome: Outcome[Any]
    resumable: bool = False
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(_Happened):
    """A session is live, in this process, with this agent."""

    agent: str
    kind: Literal["session_opened"] = "session_opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(_Happened):
    """The last event of a session's life in this process.

    `left`: how many turns it leaves for whoever opens it next: those that wait, and one that may be resumed.
    """

    reason: str
    left: int = 0
    kind: Literal["session_closed"] = "session_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(_Happened):
    """A turn was accepted, with these messages; None: a function will make them. `continues`: a stopped turn.

    `resumes`: how many times the work was resumed by itself after its process had died, this time included.
    """

    turn_id: str
    messages: tuple[Message, ...] | None
    continues: str | None = None
    resumes: int = 0
    kind: Literal["turn_queued"] = "turn_queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEdited(_Happened):
    """The messages of a turn that waits were replaced."""

    turn_id: str
    messages: tuple[Message, ...]
    kind: Literal["turn_edited"] = "turn_edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(_Happened):
    """Somebody asked for a turn to stop. After a crash this record decides: the turn is not run again."""

    turn_id: str
    at_point: str
    reason: str
    reason_kind: str
    abandon: float | None = None  # what has not ended this many seconds after the abort is left behind
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForgotten(_Happened):
    """The conversation is again as it was before this turn."""

    turn_id: str
    kind: Literal["turn_forgotten"] = "turn_forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopIdle(_Happened):
    """A loop has nothing to do, and waits for items."""

    kind: Literal["loop_idle"] = "loop_idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStopping(_Happened):
    """A loop starts no further turn; `at_point` says what happens to the running one."""

    at_point: str
    cause: str
    kind: Literal["loop_stopping"] = "loop_stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStarted(_Happened):
    """A model is asked; `step` counts the requests of this run from 1."""

    model: str
    step: int
    kind: Literal["answer_started"] = "answer_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(_Happened):
    """A piece of the model's answer."""

    text: str
    kind: Literal["text_streamed"] = "text_streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRestarted(_Happened):
    """The answer broke off and is asked for again: what was streamed of it does not count, take it off the screen."""

    kind: Literal["answer_restarted"] = "answer_restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinished(_Happened):
    """The model's answer is whole, or was cut off (`interrupted`); `usage` is what it cost."""

    text: str
    interrupted: bool
    usage: Usage
    kind: Literal["answer_finished"] = "answer_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(_Happened):
    """The model wants a tool; `arguments` is the JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    kind: Literal["tool_called"] = "tool_called"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(_Happened):
    """What became of a tool call."""

    call_id: str
    name: str
    status: CallStatus
    content: str
    kind: Literal["tool_ended"] = "tool_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnded(_Happened):
    """A node of a flow has ended well, by this output. `target` is the next node, or None at an end."""

    output: str
    target: str | None
    kind: Literal["node_ended"] = "node_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled(_Happened):
    """An attempt failed; the next one comes after `delay` seconds."""

    attempt: int
    delay: float
    error: str
    kind: Literal["retry_scheduled"] = "retry_scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(_Happened):
    """A person is asked."""

    question_id: str
    text: str
    options: tuple[str, ...] = field(default=())
    kind: Literal["question_asked"] = "question_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswered(_Happened):
    """The person has answered."""

    question_id: str
    text: str
    kind: Literal["question_answered"] = "question_answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionWithdrawn(_Happened):
    """The question needs no answer any more: take it off the screen."""

    question_id: str
    kind: Literal["question_withdrawn"] = "question_withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupFailed(_Happened):
    """A clean-up raised or took too long. The outcome does not change."""

    message: str
    kind: Literal["cleanup_failed"] = "cleanup_failed"


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
    | ToolEnded
    | LeafStarted
    | LeafEnded
    | AbortIgnored
    | LeafAbandoned
    | NodeEnded
    | ProgressMade
    | RetryScheduled
    | QuestionAsked
    | QuestionAnswered
    | QuestionWithdrawn
    | CleanupFailed
)
