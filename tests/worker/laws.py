"""Owns what must be true of a session's log, whatever has failed meanwhile. Pure: it is given all there is to know."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from safepoint.events import AnswerStarted, SessionOpened, ToolCalled, TurnEnded, TurnQueued, TurnStarted
from safepoint.run import Aborted, Outcome
from safepoint.session import LoggedEvent

# How often a turn is resumed after its process died, as docs/operations.md says.
MAX_RESUMES = 3

# So long what was stopped may still be on its way when the answer has come: another process hears of it at that time.
SLACK = 0.3


@dataclass(frozen=True)
class Stopped:
    """A stop as its caller saw it: when it was asked for, how long the answer took, and what it was."""

    turn_id: str
    at: float  # when it was answered
    seconds: float
    status: str
    level: str
    message: str
    slack: float = SLACK
    limit: float = 2.0

    @property
    def binds(self) -> bool:
        """True: the turn was told to be stopped."""
        return self.status in ("accepted", "already_stopping")


@dataclass
class Story:
    """What the test knows of a session. `effects`: turn and time of each piece of work."""

    session: str
    accepted: list[str] = field(default_factory=list)
    stops: list[Stopped] = field(default_factory=list)
    effects: list[tuple[str, float]] = field(default_factory=list)
    same_clock: bool = True


class Told:
    """What the log tells."""

    def __init__(self, log: Iterable[LoggedEvent]) -> None:
        self.log = list(log)
        self.ended: dict[str, TurnEnded] = {}
        self.ends: Counter[str] = Counter()
        self.queued: set[str] = set()
        self.exhausted: set[str] = set()  # when their process dies once more, nobody goes on with them
        self.next: dict[str, str] = {}
        self.opened: list[SessionOpened] = []
        for recorded in self.log:
            match recorded.event:
                case TurnQueued(turn_id=turn_id, continues=continues, resumes=resumes):
                    self.queued.add(turn_id)
                    if resumes >= MAX_RESUMES:
                        self.exhausted.add(turn_id)
                    if continues is not None:
                        self.next[continues] = turn_id
                case TurnEnded(turn_id=turn_id) as ended:
                    self.ended.setdefault(turn_id, ended)
                    self.ends[turn_id] += 1
                case SessionOpened() as opened:
                    self.opened.append(opened)
                case _:
                    pass

    def chain(self, turn_id: str) -> list[str]:
        """A turn, and those that went on with it."""
        found = [turn_id]
        while (after := self.next.get(found[-1])) is not None:
            found.append(after)
        return found

    def outcome(self, turn_id: str) -> Outcome[object] | None:
        ended = self.ended.get(turn_id)
        return None if ended is None else ended.outcome

    def is_over(self, turn_id: str, stopped: set[str]) -> bool:
        """True: nothing comes any more. Who lost its owner is carried on, unless it was stopped or lost too often."""
        chain = self.chain(turn_id)
        outcome = self.outcome(chain[-1])
        if isinstance(outcome, Aborted) and outcome.reason.kind == "lease_lost":
            return chain[-1] in self.exhausted or not stopped.isdisjoint(chain)
        return outcome is not None


def broken(story: Story, log: Iterable[LoggedEvent]) -> list[str]:
    """Every law that was broken, in words; none if all is well."""
    told = Told(log)
    return [*_numbers(told), *_ends(told), *_lost(story, told), *_answers(story, told), *_again(story, told)]


def _numbers(told: Told) -> Iterable[str]:
    numbers = [recorded.seq for recorded in told.log]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the numbers have a gap or come twice: {numbers}"


def _ends(told: Told) -> Iterable[str]:
    over: set[str] = set()
    for recorded in told.log:
        event = recorded.event
        if event.run_id in over and not isinstance(event, TurnEnded):
            yield f"{recorded.seq}: {event.kind} of turn {event.run_id} after its end"
        if isinstance(event, TurnEnded):
            over.add(event.turn_id)
    yield from (f"turn {turn_id} has {count} ends" for turn_id, count in told.ends.items() if count > 1)
    yield from (f"turn {turn_id} has not ended" for turn_id in told.queued - set(told.ended))


def _lost(story: Story, told: Told) -> Iterable[str]:
    stopped = {stop.turn_id for stop in story.stops}
    for turn_id in story.accepted:
        if turn_id not in told.queued:
            yield f"turn {turn_id} was accepted, and is lost"
        elif not told.is_over(turn_id, stopped):
            yield f"turn {turn_id} was accepted, and nobody goes on with it: {told.chain(turn_id)}"


def _answers(story: Story, told: Told) -> Iterable[str]:
    for stop in story.stops:
        if stop.seconds > stop.limit:
            yield f"the stop of {stop.turn_id} was answered after {stop.seconds:.2f} s: {stop}"
        ended = told.ended.get(stop.turn_id)
        if stop.status == "unknown":
            yield f"the stop of {stop.turn_id}, which had been accepted, was answered with 'unknown': {stop}"
        if stop.status == "already_finished" and ended is None:
            yield f"the stop of {stop.turn_id} was told that it had finished, and it had not: {stop}"
        if stop.status == "already_finished" and ended is not None and story.same_clock and ended.at > stop.at:
            yield f"the stop of {stop.turn_id} was told that it had finished, {ended.at - stop.at:.3f} s before: {stop}"


def _again(story: Story, told: Told) -> Iterable[str]:
    """What was stopped does not complete, does not begin, and does not go on in another life."""
    for stop in story.stops:
        if not stop.binds:
            continue
        chain, limit = told.chain(stop.turn_id), stop.at + stop.slack
        for turn_id in chain:
            outcome = told.outcome(turn_id)
            late = outcome is not None and (not story.same_clock or outcome.finished_at > limit)
            if outcome is not None and outcome.status == "completed" and (stop.level == "delivered" or late):
                yield f"turn {turn_id} was stopped, and completed at {outcome.finished_at:.3f}: {stop}"
        if story.same_clock:
            yield from _later(chain, limit, stop, told)
            for turn_id, at in story.effects:
                if turn_id in chain and at > limit:
                    yield f"turn {turn_id} worked {at - stop.at:.3f} s after its stop: {stop}"


def _later(chain: list[str], limit: float, stop: Stopped, told: Told) -> Iterable[str]:
    for recorded in told.log:
        event = recorded.event
        if isinstance(event, TurnStarted | AnswerStarted | ToolCalled) and event.run_id in chain and event.at > limit:
            late = event.at - stop.at
            yield f"{recorded.seq}: {event.kind} of turn {event.run_id} {late:.3f} s after its stop: {stop}"
