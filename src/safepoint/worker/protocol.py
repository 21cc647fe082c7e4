"""Owns what servers and workers say to each other, as JSON: what is asked of a session, and what is answered.

Knows nothing of how it travels. Deadlines travel as the seconds that are left: no two clocks agree.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from ..abort import AbortReason
from ..errors import UsageError, describe
from ..run.stop import AckStatus, Scope, StopAt
from ..session.acknowledgements import ChangeAck
from ..session.engine import SessionBusy, SessionEnded, WhenBusy
from .broker import BrokerError, Order, Queue

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
    "StopCall",
    "Unreadable",
    "WorkerInfo",
    "attempt_of",
    "from_json",
    "is_note",
    "queue_of",
    "to_json",
    "with_tried",
]

T = TypeVar("T")
# How the work on an order ended: nothing left to do; as told, with turns left; another owner came; it could not be
# done; its process died; its process ended before it was ready, so that nothing of the work has begun.
Ending: TypeAlias = Literal["idle", "left", "fenced", "failed", "died", "unstarted"]


class Unreadable(BrokerError):
    """A message that cannot be understood: from a newer version, or from somebody else."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What is known of a session before it is opened: its agent, and the one worker it must run on, if any.

    Attributes:
        sub_agent: A turn of another session waits for the turns of this one.
        tried: Used in orders only: how many attempts were made with earlier orders for the same work.
    """

    agent: str
    worker: str | None = None
    sub_agent: bool = False
    tried: int = 0


# In an inbox: there is work in this session, whatever else the inbox says. Whoever owns it next takes it out.
WORK_MARKER = b"{}"


@dataclass(frozen=True, slots=True)
class OwnerEnded:
    """In an inbox, for whoever owns the session next: the process of this owner has ended. Its supervisor has seen it.

    owner  as it is written in the log
    """

    owner: str
    kind: Literal["owner_ended"] = "owner_ended"


@dataclass(frozen=True, slots=True)
class SendCall:
    """A message for a session, in its inbox. `seconds`: what is left of its timeout."""

    turn_id: str
    text: str
    seconds: float | None = None
    when_busy: WhenBusy = "queue"


@dataclass(frozen=True, slots=True)
class SendCallHead:
    """As much of a message as every version understands: which turn it is, and what was said."""

    turn_id: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class StopCall:
    """Stop a turn; also the durable record of it. `id` tells one that comes both ways from two."""

    turn_id: str
    at: Annotated[str, Field(pattern=f"^({'|'.join(StopAt.__members__)})$")] | None = None
    within: float | None = None
    reason: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    abandon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    scope: Scope | None = None
    kind: Literal["stop"] = "stop"

    @property
    def point(self) -> StopAt | None:
        """When."""
        return None if self.at is None else StopAt[self.at]

    @property
    def why(self) -> AbortReason:
        """Why."""
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
    """Take a turn that waits out of the queue."""

    turn_id: str
    kind: Literal["remove"] = "remove"


@dataclass(frozen=True, slots=True)
class ForgetCall:
    """Take the conversation back to before its last turn."""

    turn_id: str
    kind: Literal["forget"] = "forget"


@dataclass(frozen=True, slots=True)
class ContinueCall:
    """Go on with a turn that was stopped."""

    turn_id: str | None
    kind: Literal["continue"] = "continue"


@dataclass(frozen=True, slots=True)
class CloseCall:
    """Stop what runs in the session, and let it go."""

    reason: str
    kind: Literal["close"] = "close"


@dataclass(frozen=True, slots=True)
class ReleaseWhenIdle:
    """Others wait for this place: do not stay open when there is nothing to do."""

    kind: Literal["hurry"] = "hurry"


# What the owner of a session is asked while it is live.
Call: TypeAlias = Annotated[
    StopCall | AnswerCall | EditCall | RemoveCall | ForgetCall | ContinueCall | CloseCall | ReleaseWhenIdle,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the owner says. `error`: the kind of error it is, in which case `message` tells. `busy`: see there.

    `recorded`: what was asked for is on record. An older worker does not say so.
    `heard`: False where a supervisor answers for a process that does not: what was asked may never reach it.
    """

    ok: bool = True
    message: str = ""
    status: AckStatus = "unknown"  # of a stop
    turn_id: str = ""
    error: Literal["", "usage", "busy", "opening", "ended", "broken"] = ""
    busy: float = 0.0  # for so many seconds its event loop has not moved
    recorded: bool = False
    heard: bool = True

    @classmethod
    def to_change(cls, ack: ChangeAck) -> "Reply":
        """What is said of a turn that was to be edited or removed."""
        return cls(ack.accepted, ack.message, recorded=ack.level == "recorded")

    def raise_error(self) -> "Reply":
        """Raises: what the session raised there."""
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
        """The same, said by a thread while the event loop has not moved for so many seconds; 0: it moves."""
        if not seconds:
            return self
        told = f"{self.message} (its event loop has not moved for {seconds:.1f} s)".strip()
        return replace(self, message=told, busy=seconds)

    @staticmethod
    def of(error: Exception) -> "Reply":
        """An error as an answer."""
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
    """An order as the process gets it that works on it.

    resume   go on with what a crash has interrupted
    offered  the worker has the agent; False: it was started without, and the session may run nowhere else
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
        """Who writes the log of the session, as long as this order is held."""
        return f"{self.worker}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of itself."""

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
    lease: float = 0.0  # 0.0: of a version that does not say


def is_note(data: bytes) -> bool:
    """Whether what an inbox has is for the next owner of the session, and no message."""
    try:
        from_json(OwnerEnded, data)
    except Unreadable:
        return data == WORK_MARKER
    return True


def queue_of(place: Placement) -> Queue:
    """Whose orders a session has."""
    if place.worker is not None:
        return ("at", place.worker)
    return ("sub" if place.sub_agent else "any", place.agent)


def with_tried(order: bytes, tried: int) -> bytes:
    """What an order says, for another order for the same work. What cannot be read stays as it is."""
    try:
        place: Placement = from_json(Placement, order)
    except Unreadable:
        return order
    return order if place.tried == tried else to_json(replace(place, tried=tried))


def attempt_of(order: Order) -> int:
    """Which attempt this is at the work that the order is for. The broker counts deliveries of this order alone."""
    try:
        place: Placement = from_json(Placement, order.data)
    except Unreadable:
        return order.attempt
    return place.tried + order.attempt


ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def to_json(said: Any) -> bytes:
    """As it travels."""
    return json.dumps(asdict(said), ensure_ascii=False).encode()


def from_json(kind: "type[T] | Any", data: bytes) -> T:
    """`to_json()` backwards; unknown fields are ignored. Raises: Unreadable."""
    adapter = ADAPTERS.get(kind) or ADAPTERS.setdefault(kind, TypeAdapter(kind))
    try:
        read: T = adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole of it"
        raise Unreadable(f"a message cannot be understood ({where}: {first['msg']}): {data[:200]!r}") from None
    return read
