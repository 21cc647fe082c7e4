"""Owns the outcomes of turns that the agent did not end itself: never begun, cut off by a crash, or broken. Pure."""

from dataclasses import replace

from ..abort import AbortReason, Clock
from ..agent.conversation import AgentResult
from ..outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..receipt import Entry, Receipt
from .session_state import MAX_RESUMES, SessionState, TurnRecord
from .turn import SessionTurn

__all__ = ["broken", "never_started", "only_new", "receipt_of", "sealed", "unwritable"]

MAY_HAVE = "it had begun and its result is not on record: it may have had effects"
DIED = AbortReason("lease_lost", "the process in which it ran has ended")
DIED_TOO_OFTEN = AbortReason(
    "lease_lost",
    f"the process in which it ran has ended, even after it was resumed {MAX_RESUMES} times: it is not resumed again",
)
LOST = AbortReason("lease_lost", "its worker has lost it; it may still run there")
LOST_TOO_OFTEN = AbortReason(
    "lease_lost",
    f"its worker has lost it, even after it was resumed {MAX_RESUMES} times: it is not resumed again;"
    " it may still run there",
)


def never_started(reason: AbortReason, now: float) -> Outcome[AgentResult]:
    """Make the outcome of a turn that was stopped before it began. Nothing of it is part of the conversation."""
    receipt = Receipt(reason, now, now, (Entry("turn", "child", "not_started"),))
    ended = TimedOut if reason.timed_out else Aborted
    return ended(reason, receipt, AgentResult(""), started_at=now, finished_at=now)


def sealed(
    state: SessionState, turn: TurnRecord, now: float, *, may_still_run: bool = False, warnings: tuple[str, ...] = ()
) -> Outcome[AgentResult]:
    """Make the outcome of a turn that a crash left open. What was streamed of it is kept.

    A call that had begun and has no result is listed as unknown, because it may have had effects.

    Args:
        state: The state of the session.
        turn: The turn.
        now: The time.
        may_still_run: Whether the process in which it ran may still be running.
        warnings: What it has started on other machines and could not be stopped there.
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
    return Aborted(reason, receipt, state.rebuild(turn), started_at=turn.started_at, finished_at=now)


def stopped_after_all(completed: Completed[AgentResult], reason: AbortReason) -> Outcome[AgentResult]:
    """Make the outcome of a turn whose work had returned when its stop became known: aborted, with the whole result."""
    receipt = Receipt(reason, None, completed.finished_at, (Entry("turn", "child", "finished"),))
    ended = TimedOut if reason.timed_out else Aborted
    return ended(reason, receipt, completed.value, started_at=completed.started_at, finished_at=completed.finished_at)


def broken(turn: SessionTurn, error: BaseException, clock: Clock) -> Outcome[AgentResult]:
    """Make the outcome of a turn whose end could not be written, or whose loop broke: it must not count as done."""
    decided = turn.outcome
    partial = None if decided is None else decided.partial
    receipt = Receipt(turn.signal.reason, None, clock.time()) if decided is None else receipt_of(decided)
    return Failed(error, receipt, partial or AgentResult(""), finished_at=clock.time())


def unwritable(turn: SessionTurn, error: Exception, clock: Clock) -> Outcome[AgentResult]:
    """Make the outcome of a turn whose own outcome cannot be written as JSON: a failure, without its result."""
    return Failed(error, Receipt(turn.signal.reason, None, clock.time()), AgentResult(""), finished_at=clock.time())


def receipt_of(outcome: Outcome[AgentResult]) -> Receipt:
    """Return the receipt of an ended turn. For a completed one it lists what still runs, if anything does."""
    if isinstance(outcome, Completed) and not outcome.receipt.entries:
        return Receipt(None, None, outcome.finished_at)
    return outcome.receipt


def only_new(outcome: Outcome[AgentResult], base: int) -> Outcome[AgentResult]:
    """Leave out the first `base` messages, which earlier turns have stored: each turn stores what it has added."""
    if isinstance(outcome, Completed):
        return replace(outcome, value=_after(outcome.value, base))
    partial = outcome.partial
    return replace(outcome, partial=_after(partial, base) if isinstance(partial, AgentResult) else AgentResult(""))


def _after(result: AgentResult, base: int) -> AgentResult:
    return replace(result, messages=result.messages[base:])
