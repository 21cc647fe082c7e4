"""The messages between servers, workers and their processes, and how they are written as JSON.

Knows nothing of how they travel. A time limit is sent as the seconds that remain, because the clocks of two machines
differ.
"""

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from ..abort import AbortReason
from ..errors import UsageError, describe
from ..run.stop import NO_STOP, AckStatus, Scope, StopAt, StopOptions
from ..session.engine import SessionBusy, SessionEnded, WhenBusy
from ..session.host import ChangeAck
from .broker import BrokerError, Order, Queue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "WORK_MARKER",
    "AnswerCall",
    "Assignment",
    "Call",
    "CloseCall",
    "ContinueCall",
    "EditCall",
    "Ending",
    "ForgetCall",
    "OwnerEnded",
    "Placement",
    "ReleaseWhenIdle",
    "RemoveCall",
    "Reply",
    "SendCall",
    "SendCallHead",
    "Stats",
    "StopCall",
    "Unreadable",
    "WorkerInfo",
    "attempt_of",
    "call_from_json",
    "from_json",
    "is_control_entry",
    "queue_of",
    "to_json",
    "with_tried",
]

T = TypeVar("T")
# How the work on an order ended.
#   idle       nothing is left to do
#   left       handed over as requested; open turns are left for the next owner
#   fenced     another owner has written to the log
#   failed     an error ended the work
#   died       its process ended while it worked
#   unstarted  its process ended before it was ready, so nothing of the work has begun
Ending: TypeAlias = Literal["idle", "left", "fenced", "failed", "died", "unstarted"]


@dataclass
class Stats:
    """Counters since the worker was started.

    Attributes:
        taken: Orders that were taken.
        redelivered: Those of them that had been delivered before.
        fenced: Sessions that were lost to another owner.
        killed: Processes that were killed because a turn did not stop.
        dead: Orders that were given up.
        failed_starts: Processes that ended before they were ready.
    """

    taken: int = 0
    redelivered: int = 0
    fenced: int = 0
    killed: int = 0
    dead: int = 0
    failed_starts: int = 0


class Unreadable(BrokerError):
    """A message that cannot be understood: it comes from a newer version, or from a foreign program."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What is known of a session before it is opened.

    Attributes:
        agent: Its agent.
        worker: The worker that it is pinned to, if any.
        sub_agent: True if a turn of another session waits for the turns of this one.
        tried: Used in orders only: how many attempts were made with earlier orders for the same work.
    """

    agent: str
    worker: str | None = None
    sub_agent: bool = False
    tried: int = 0


# An inbox entry that only says that the session has work to do. Its next owner removes it.
WORK_MARKER = b"{}"


@dataclass(frozen=True, slots=True)
class OwnerEnded:
    """An inbox entry for the next owner of the session: a supervisor saw the process of this owner end.

    Attributes:
        owner: The owner, as it is written in the log.
    """

    owner: str
    kind: Literal["owner_ended"] = "owner_ended"


@dataclass(frozen=True, slots=True)
class SendCall:
    """A message for a session, in its inbox.

    Attributes:
        turn_id: The id of the turn that it starts.
        text: The message.
        seconds: What remains of the turn's time limit.
        when_busy: What to do if another turn is running.
    """

    turn_id: str
    text: str
    seconds: float | None = None
    when_busy: WhenBusy = "queue"


@dataclass(frozen=True, slots=True)
class SendCallHead:
    """The part of a `SendCall` that every version understands."""

    turn_id: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class StopCall:
    """A request to stop a turn; also the durable record of that request.

    Attributes:
        turn_id: The turn.
        at: The name of the `StopAt` where it stops; None is the default.
        within: The seconds after which a stop at a safe point becomes an immediate one.
        reason: The `AbortReason`, as data.
        id: Identifies the request. One request is delivered twice, directly and through the record.
        abandon: The seconds after which work that ignores the stop is abandoned.
        scope: Whether sub-agents stop at their own safe points.
    """

    turn_id: str
    at: Annotated[str, Field(pattern=f"^({'|'.join(StopAt.__members__)})$")] | None = None
    within: float | None = None
    reason: dict[str, object] = field(default_factory=dict)
    id: str = ""
    abandon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    scope: Scope | None = None
    kind: Literal["stop"] = "stop"

    @classmethod
    def of(cls, turn_id: str, options: StopOptions, origin: str | None) -> "StopCall":
        """The call for the arguments of a `stop()`.

        Args:
            turn_id: The turn.
            options: The arguments.
            origin: The `file:line` that called `stop()`.

        Raises:
            UsageError: The arguments make no sense.
        """
        request = options.request(NO_STOP, now=0.0, origin=origin)
        reason = (request.reason or AbortReason()).to_dict()
        return cls(turn_id, request.at.name, options.within, reason, uuid.uuid4().hex, options.abandon, options.scope)

    @property
    def stop_at(self) -> StopAt | None:
        """Where the turn stops; None if the request does not say."""
        return None if self.at is None else StopAt[self.at]

    @property
    def abort_reason(self) -> AbortReason:
        """The reason of the stop."""
        return AbortReason.from_dict(self.reason)


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Answer a question."""

    question_id: str
    text: str
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True, slots=True)
class EditCall:
    """Replace the message of a turn that waits."""

    turn_id: str
    text: str
    kind: Literal["edit"] = "edit"


@dataclass(frozen=True, slots=True)
class RemoveCall:
    """Remove a turn that waits from the queue."""

    turn_id: str
    kind: Literal["remove"] = "remove"


@dataclass(frozen=True, slots=True)
class ForgetCall:
    """Restore the conversation to what it was before its last turn."""

    turn_id: str
    kind: Literal["forget"] = "forget"


@dataclass(frozen=True, slots=True)
class ContinueCall:
    """Continue a turn that was stopped."""

    turn_id: str | None
    kind: Literal["continue"] = "continue"


@dataclass(frozen=True, slots=True)
class CloseCall:
    """Stop everything that runs in the session, and close it."""

    reason: str
    kind: Literal["close"] = "close"


@dataclass(frozen=True, slots=True)
class ReleaseWhenIdle:
    """Close the session as soon as it has nothing to do, because other orders wait for its place."""

    kind: Literal["hurry"] = "hurry"


# What the owner of a live session can be requested to do.
Call: TypeAlias = Annotated[
    StopCall | AnswerCall | EditCall | RemoveCall | ForgetCall | ContinueCall | CloseCall | ReleaseWhenIdle,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a session's owner to a `Call`.

    Attributes:
        ok: True if it was done.
        message: Text for a person; the error message if `error` is set.
        status: For a stop, what became of it.
        turn_id: The turn that the call had an effect on.
        error: The kind of error that was raised; empty if there was none.
        busy: The seconds for which the event loop of the session has been blocked.
        recorded: True if the effect is in the log. Workers of older versions do not report it.
        heard: False if a supervisor replies because the process that runs the session does not: the call may never
            reach it.
    """

    ok: bool = True
    message: str = ""
    status: AckStatus = "unknown"
    turn_id: str = ""
    error: Literal["", "usage", "busy", "opening", "ended", "broken"] = ""
    busy: float = 0.0
    recorded: bool = False
    heard: bool = True

    @classmethod
    def to_change(cls, ack: ChangeAck) -> "Reply":
        """The reply to an `EditCall` or a `RemoveCall`."""
        return cls(ack.accepted, ack.message, recorded=ack.level == "recorded")

    def raise_error(self) -> "Reply":
        """Return this reply, or raise the error it carries."""
        match self.error:
            case "":
                return self
            case "usage":
                raise UsageError(self.message)
            case "busy" | "opening":
                raise SessionBusy(self.message)
            case "ended":
                raise SessionEnded(self.message)
            case "broken":
                raise BrokerError(self.message)

    def while_blocked(self, seconds: float) -> "Reply":
        """The same reply, with a note that the event loop has been blocked for this long; 0.0 if it is not."""
        if not seconds:
            return self
        message = f"{self.message} (its event loop has not moved for {seconds:.1f} s)".strip()
        return replace(self, message=message, busy=seconds)

    @staticmethod
    def from_error(error: Exception) -> "Reply":
        """The reply that reports an error."""
        match error:
            case SessionBusy():
                return Reply(False, str(error), error="busy")
            case SessionEnded():
                return Reply(False, str(error), error="ended")
            case UsageError():
                return Reply(False, str(error), error="usage")
            case _:
                return Reply(False, describe(error), error="broken")


@dataclass(frozen=True, slots=True)
class Assignment:
    """An order, as the process that works on it receives it.

    Attributes:
        session: The session that has work to do.
        agent: The agent of the session.
        worker: The worker that holds the order.
        attempt: Which attempt at the work this is, starting with 1.
        resume: True if turns that a crash interrupted are resumed.
        idle_for: The seconds for which the session stays open without work.
        offered: True if the worker has the agent. False if it was started without, and the session may run on no
            other worker.
    """

    session: str
    agent: str
    worker: str
    attempt: int = 1
    resume: bool = True
    idle_for: float = 1.0
    offered: bool = True

    @property
    def owner(self) -> str:
        """The name under which the log of the session is written as long as this order is held."""
        return f"{self.worker}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The announcement of a worker.

    Attributes:
        name: The name of the worker.
        agents: The agents that it offers.
        live: How many orders it holds.
        concurrency: How many orders it may hold.
        isolation: "process" or "task".
        version: The version of Safepoint.
        pid: The process id of its supervisor.
        machine: The name of its machine.
        since: When it was started, as a Unix time.
        draining: True if it is shutting down.
        taken: See `Stats`, as for the five fields that follow.
        redelivered: Orders that were delivered before.
        fenced: Sessions that were lost to another owner.
        killed: Processes that were killed because a turn did not stop.
        dead: Orders that were given up.
        failed_starts: Processes that ended before they were ready.
        lease: The lease that it uses, in seconds; 0.0 for versions that do not report it.
    """

    name: str
    agents: tuple[str, ...]
    live: int
    concurrency: int
    isolation: str
    version: str
    pid: int
    machine: str
    since: float
    draining: bool = False
    taken: int = 0
    redelivered: int = 0
    fenced: int = 0
    killed: int = 0
    dead: int = 0
    failed_starts: int = 0
    lease: float = 0.0


def is_control_entry(data: bytes) -> bool:
    """Whether an inbox entry is a marker for the next owner of the session, and not a message."""
    try:
        from_json(OwnerEnded, data)
    except Unreadable:
        return data == WORK_MARKER
    return True


def queue_of(placement: Placement) -> Queue:
    """The queue for the orders of a session."""
    if placement.worker is not None:
        return ("at", placement.worker)
    return ("sub" if placement.sub_agent else "any", placement.agent)


def with_tried(order: bytes, tried: int) -> bytes:
    """The data of an order, changed for a new order for the same work. Unreadable data is returned unchanged."""
    try:
        placement = from_json(Placement, order)
    except Unreadable:
        return order
    return order if placement.tried == tried else to_json(replace(placement, tried=tried))


def attempt_of(order: Order) -> int:
    """Which attempt at its work an order is. The broker counts only the deliveries of this one order."""
    try:
        placement = from_json(Placement, order.data)
    except Unreadable:
        return order.attempt
    return placement.tried + order.attempt


# Building an adapter takes milliseconds, so there is one for each type, built when it is first needed.
_adapters: dict[type, TypeAdapter[Any]] = {}


@cache
def _call_adapter() -> "TypeAdapter[Call]":
    return TypeAdapter(Call)


def to_json(message: "DataclassInstance") -> bytes:
    """Encode a message."""
    return json.dumps(asdict(message), ensure_ascii=False).encode()


def from_json(kind: type[T], data: bytes) -> T:
    """Decode a message. Unknown fields are ignored. Raises: Unreadable."""
    adapter: TypeAdapter[T] = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
    return _validated(adapter, data)


def call_from_json(data: bytes) -> Call:
    """Decode a `Call` of any kind. Raises: Unreadable."""
    return _validated(_call_adapter(), data)


def _validated(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole of it"
        raise Unreadable(f"a message cannot be understood ({where}: {first['msg']}): {data[:200]!r}") from None
