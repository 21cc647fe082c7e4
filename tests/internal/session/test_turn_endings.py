"""What is said of a turn at its end, where the agent did not say it."""

from safepoint import Aborted, AbortReason, Completed, Failed, Receipt, TimedOut
from safepoint.agent import AgentResult
from safepoint.messages import AssistantMessage, UserMessage
from safepoint.session import SessionTurn
from safepoint.session.session_state import MAX_RESUMES, SessionState, TurnRecord
from safepoint.session.turn_endings import broken, never_started, only_new, receipt_of, sealed
from safepoint.testing import FakeClock

HI, HO = UserMessage(text="hi"), AssistantMessage(text="ho")


def turn(**options) -> SessionTurn:
    return SessionTurn("t", (HI,), lambda *_: None, **options)  # type: ignore[arg-type]


def test_a_turn_that_never_started_says_so_and_adds_nothing() -> None:
    outcome = never_started(AbortReason("user", "no"), 7.0)
    assert isinstance(outcome, Aborted)
    assert (outcome.reason.message, outcome.finished_at) == ("no", 7.0)
    assert [entry.fate for entry in outcome.receipt.entries] == ["not_started"]
    assert outcome.partial == AgentResult("")


def test_a_turn_whose_deadline_passed_before_it_began_has_timed_out() -> None:
    assert isinstance(never_started(AbortReason("deadline", "after 5 s"), 7.0), TimedOut)


def test_a_turn_that_a_crash_left_open_is_sealed_with_what_is_known_of_it(clock: FakeClock) -> None:
    state = SessionState()
    begun = TurnRecord("t", (HI,), started=True)
    outcome = sealed(state, begun, 7.0)
    assert isinstance(outcome, Aborted)
    assert (outcome.reason.kind, outcome.finished_at) == ("lease_lost", 7.0)
    assert [entry.fate for entry in outcome.receipt.entries] == ["unknown"], "nobody saw what became of it"
    assert outcome.partial is not None
    assert outcome.partial.messages == (HI,)
    stopped = sealed(state, TurnRecord("t", (HI,), stop=AbortReason("user", "enough")), 7.0)
    assert isinstance(stopped, Aborted)
    assert stopped.reason.message == "enough", "the recorded stop is the reason, not the crash"
    assert [entry.fate for entry in stopped.receipt.entries] == ["not_started"]
    assert stopped.partial == AgentResult("")


def test_a_turn_that_lost_its_worker_is_not_said_to_have_ended_there() -> None:
    lost = sealed(SessionState(), TurnRecord("t", (HI,), started=True), 7.0, may_still_run=True)
    died = sealed(SessionState(), TurnRecord("t", (HI,), started=True), 7.0)
    assert isinstance(lost, Aborted)
    assert isinstance(died, Aborted)
    assert "may still run" in lost.reason.message
    assert "has ended" in died.reason.message
    assert lost.reason.kind == died.reason.kind == "lease_lost"


def test_a_turn_that_is_not_resumed_again_says_so_whatever_is_known_of_its_process() -> None:
    turn = TurnRecord("t", (HI,), resumes=MAX_RESUMES, started=True)
    for may_still_run, known in ((False, "has ended"), (True, "may still run")):
        outcome = sealed(SessionState(), turn, 7.0, may_still_run=may_still_run)
        assert isinstance(outcome, Aborted)
        assert known in outcome.reason.message
        assert "not resumed again" in outcome.reason.message


def test_each_turn_stores_only_what_it_has_added() -> None:
    whole = AgentResult("ho", (HI, HO, HI, HO))
    added = AgentResult("ho", (HI, HO))
    receipt = Receipt(None, None, 0.0)
    assert only_new(Completed(whole), 2) == Completed(added)
    assert only_new(Aborted(AbortReason(), receipt, whole), 2) == Aborted(AbortReason(), receipt, added)
    error = ValueError()
    assert only_new(Failed(error, receipt, None), 2) == Failed(error, receipt, AgentResult(""))


def test_what_could_not_be_written_has_failed_and_keeps_what_there_is(clock: FakeClock) -> None:
    done = turn()
    done.outcome = Completed(AgentResult("ho", (HI, HO)))
    outcome = broken(done, OSError("full"), clock)
    assert isinstance(outcome, Failed)
    assert str(outcome.error) == "full"
    assert outcome.partial == AgentResult("ho", (HI, HO))
    assert isinstance(broken(turn(), OSError("full"), clock), Failed)


def test_of_a_turn_that_was_done_before_the_stop_the_receipt_says_nothing() -> None:
    receipt = Receipt(AbortReason(), 1.0, 2.0)
    assert receipt_of(Aborted(AbortReason(), receipt, None)) is receipt
    assert receipt_of(Completed(AgentResult(""), finished_at=3.0)) == Receipt(None, None, 3.0)
