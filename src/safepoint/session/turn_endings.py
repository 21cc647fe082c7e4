"""Owns what is said of a turn at its end, where the agent did not say it: never begun, or its process died. Pure."""

from dataclasses import replace

from ..abort import AbortReason, Clock
from ..agent.conversation import AgentResult
from ..run.outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.receipt import Entry, Receipt
from .session_state import MAX_RESUMES, SessionState, TurnRecord
from .turn import SessionTurn

__all__ = ["broken", "never_started", "only_new", "receipt_of", "sealed", "unwritable"]

MAY_HAVE = "it had begun and its result is not on record: it may have had effects"
DIED = AbortReason("lease_lost", "the process in which it ran has ended")
DIED_TOO_OFTEN = AbortReason(
    "lease_lost",
    f"the process in which it ran has ended, also after it was resumed {MAX_RESUMES} times: it is not resumed again",
)
LOST = AbortReason("lease_lost", "its worker has lost it; it may still run there")
LOST_TOO_OFTEN = AbortReason(
    "lease_lost",
    f"its worker has lost it, also after it was resumed {MAX_RESUMES} times: it is not resumed again;"
    " it may still run there",
)


def never_started(reason: AbortReason, now: float) -> Outcome[AgentResult]:
    """A turn that was stopped before it began: nothing of it is part of the conversation."""
    receipt = Receipt(reason, now, now, (Entry("turn", "child", "not_started"),))
    ended = TimedOut if reason.timed_out else Aborted
    return ended(reason, receipt, AgentResult(""), started_at=now, finished_at=now)


def sealed(
    state: SessionState, turn: TurnRecord, now: float, *, may_still_run: bool = False, warnings: tuple[str, ...] = ()
) -> Outcome[AgentResult]:
    """A turn that a crash left open. What was streamed of it is kept; what its tools did is not known.

    Args:
        past: Everything that has happened in the session.
        turn: The turn.
        now: What time it is.
        may_still_run: Nobody has seen that the process in which it ran has ended.
        warnings: What it has left on other machines and could not be stopped there.
    """
    if turn.next_resumes <= MAX_RESUMES:
        cut_off = LOST if may_still_run else DIED
    else:
        cut_off = LOST_TOO_OFTEN if may_still_run else DIED_TOO_OFTEN
    reason = turn.stop or cut_off
    if not turn.started:
        receipt = Receipt(reason, None, now, (Entry("turn", "child", "not_started"),))
        return Aborted(reason, receipt, AgentResult(""), started_at=now, finished_at=now)
    calls = [Entry(f"turn/{call.name}", "child", "unknown", note=MAY_HAVE) for call in turn.unfinished.unknown_calls()]
    receipt = Receipt(reason, None, now, (Entry("turn", "child", "unknown"), *calls), warnings=warnings)
    return Aborted(reason, receipt, state.rebuilt(turn), started_at=turn.started_at, finished_at=now)


def stopped_after_all(completed: Completed[AgentResult], reason: AbortReason) -> Outcome[AgentResult]:
    """A turn whose work had returned when the stop was heard of: aborted, with all that it had to show."""
    receipt = Receipt(reason, None, completed.finished_at, (Entry("turn", "child", "finished"),))
    ended = TimedOut if reason.timed_out else Aborted
    at = {"started_at": completed.started_at, "finished_at": completed.finished_at}
    return ended(reason, receipt, completed.value, **at)


def broken(turn: SessionTurn, error: BaseException, clock: Clock) -> Outcome[AgentResult]:
    """A turn whose end could not be written, or whose loop went down with it: nobody is told that it is done."""
    said = turn.outcome
    partial = None if said is None else said.value if isinstance(said, Completed) else said.partial
    receipt = Receipt(turn.signal.reason, None, clock.time()) if said is None else receipt_of(said)
    return Failed(error, receipt, partial or AgentResult(""), finished_at=clock.time())


def unwritable(turn: SessionTurn, error: Exception, clock: Clock) -> Outcome[AgentResult]:
    """A turn whose end cannot be put into JSON: a failure without anything that may be the cause of it."""
    return Failed(error, Receipt(turn.signal.reason, None, clock.time()), AgentResult(""), finished_at=clock.time())


def receipt_of(outcome: Outcome[AgentResult]) -> Receipt:
    """What a stop of this turn did. Of one that was done before: what goes on."""
    if isinstance(outcome, Completed) and not outcome.receipt.entries:
        return Receipt(None, None, outcome.finished_at)
    return outcome.receipt


def only_new(outcome: Outcome[AgentResult], base: int) -> Outcome[AgentResult]:
    """Without the messages that were there before: each turn stores what it has added."""
    if isinstance(outcome, Completed):
        return replace(outcome, value=_after(outcome.value, base))
    partial = outcome.partial
    return replace(outcome, partial=_after(partial, base) if isinstance(partial, AgentResult) else AgentResult(""))


def _after(result: AgentResult, base: int) -> AgentResult:
    return replace(result, messages=result.messages[base:])
