"""Owns what is said of a turn at its end, where the agent did not say it: never begun, or its process died. Pure."""

from dataclasses import replace

from ..abort import AbortReason, Clock
from ..agent.talk import AgentResult
from ..run.outcome import Aborted, Completed, Outcome, TimedOut
from ..run.receipt import Entry, Receipt
from .past import PastTurn
from .turn import SessionTurn, TurnResult

__all__ = ["never_started", "only_new", "sealed"]

DIED = AbortReason("lease_lost", "the process in which it ran has ended")


def never_started(turn: SessionTurn, clock: Clock) -> TurnResult:
    """A turn that was stopped before it began: nothing of it is part of the conversation."""
    reason = turn.signal.reason or turn.request.reason or AbortReason()
    now = clock.time()
    receipt = Receipt(reason, now, now, (Entry("turn", "child", "not_started"),))
    ended = TimedOut if reason.timed_out else Aborted
    outcome = ended(reason, receipt, AgentResult(""), finished_at=now)
    return TurnResult(turn.id, outcome.status, outcome)


def sealed(past: PastTurn, now: float) -> Outcome[AgentResult]:
    """A turn that a crash left open. What was streamed of it is kept; what its tools did is not known."""
    reason = past.stop or DIED
    begun = past.started
    receipt = Receipt(reason, None, now, (Entry("turn", "child", "unknown" if begun else "not_started"),))
    return Aborted(reason, receipt, past.rebuilt() if begun else AgentResult(""), finished_at=now)


def only_new(outcome: Outcome[AgentResult], base: int) -> Outcome[AgentResult]:
    """Without the messages that were there before: each turn stores what it has added."""
    if isinstance(outcome, Completed):
        return replace(outcome, value=_after(outcome.value, base))
    partial = outcome.partial
    return replace(outcome, partial=_after(partial, base) if isinstance(partial, AgentResult) else AgentResult(""))


def _after(result: AgentResult, base: int) -> AgentResult:
    return replace(result, messages=result.messages[base:])
