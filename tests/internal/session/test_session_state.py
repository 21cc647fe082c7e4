"""What a session's log says: one fold over its events."""

from typing import Any

import pytest

from safepoint import Aborted, AbortReason, Completed, Receipt
from safepoint.agent import AgentResult, validate
from safepoint.events import (
    AnswerRestarted,
    AnswerStarted,
    Event,
    StopRequested,
    TextStreamed,
    ToolCalled,
    ToolEnded,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnQueued,
    TurnStarted,
)
from safepoint.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from safepoint.session.session_state import SessionState, TurnRecord
from safepoint.session.unfinished_work import UnfinishedWork
from tests.kit.sessions import said

RECEIPT = Receipt(None, None, 0.0)


def user(text: str) -> UserMessage:
    return UserMessage(text=text)


def answer(text: str, **more: Any) -> AssistantMessage:
    return AssistantMessage(text=text, **more)


def of(turn: str, /, kind: type[Event], path: tuple[str, ...] = ("a",), **about: Any) -> Event:
    return kind(run_id=turn, path=path, at=0.0, **about)


def queued(turn_id: str, *messages: Message, continues: str | None = None) -> Event:
    return of(turn_id, TurnQueued, turn_id=turn_id, messages=messages, continues=continues)


def started(turn_id: str) -> Event:
    return of(turn_id, TurnStarted, turn_id=turn_id, items=1)


def completed(turn_id: str, *messages: Message) -> Event:
    return of(turn_id, TurnEnded, turn_id=turn_id, outcome=Completed(AgentResult("", messages)))


def stopped(turn_id: str, *messages: Message) -> Event:
    outcome = Aborted(AbortReason(), RECEIPT, AgentResult("", messages))
    return of(turn_id, TurnEnded, turn_id=turn_id, outcome=outcome)


def state(*events: Event) -> SessionState:
    folded = SessionState()
    for event in events:
        folded.apply(event)
    return folded


def test_the_conversation_is_what_the_ended_turns_have_added() -> None:
    folded = state(queued("1", user("hi")), started("1"), completed("1", user("hi"), answer("ho")), queued("2"))
    assert said(folded.messages) == ["hi", "ho"]
    assert [turn.id for turn in folded.open_turns] == ["2"]


def test_turns_are_told_in_the_order_in_which_they_began() -> None:
    folded = state(
        queued("1", user("first")),
        queued("2", user("urgent")),
        started("2"),
        completed("2", user("urgent"), answer("done")),
        started("1"),
        completed("1", user("first"), answer("done too")),
    )
    assert said(folded.messages) == ["urgent", "done", "first", "done too"]
    assert folded.last_ended is folded.turns["1"]


def test_an_edited_turn_has_its_new_messages() -> None:
    folded = state(queued("1", user("hi")), of("1", TurnEdited, turn_id="1", messages=(user("ho"),)))
    assert folded.turns["1"].messages == (user("ho"),)


def test_a_recorded_stop_keeps_its_reason() -> None:
    about: Any = {"turn_id": "1", "at_point": "NOW", "reason": "enough", "reason_kind": "deadline"}
    folded = state(queued("1", user("hi")), of("1", StopRequested, **about))
    assert folded.turns["1"].stop == AbortReason("deadline", "enough")


def test_what_is_said_of_turns_that_nobody_knows_is_ignored() -> None:
    about: Any = {"turn_id": "9", "at_point": "NOW", "reason": "", "reason_kind": "user"}
    strange = [
        started("9"),
        completed("9", user("?")),
        of("9", StopRequested, **about),
        of("9", TurnForgotten, turn_id="9"),
        of("9", TurnEdited, turn_id="9", messages=()),
        of("9", TextStreamed, text="?"),
    ]
    folded = state(*strange)
    assert (folded.turns, folded.messages, folded.last_ended) == ({}, (), None)


def test_the_last_turn_is_the_last_that_had_begun_and_counts() -> None:
    folded = state(
        queued("1", user("hi")),
        started("1"),
        stopped("1", user("hi")),
        queued("2", user("removed from the queue")),
        stopped("2"),
    )
    assert folded.last_ended is folded.turns["1"]
    folded.apply(of("1", TurnForgotten, turn_id="1"))
    assert folded.last_ended is None
    assert folded.messages == ()


def test_a_turn_that_was_continued_is_told_by_the_one_that_continued_it() -> None:
    half = stopped("1", user("hi"), answer("ha", interrupted=True))
    folded = state(queued("1", user("hi")), started("1"), half, queued("2", continues="1"), started("2"))
    assert said(folded.messages) == ["hi", "ha"], "until that has something to tell"
    result, base = folded.resume_point("1")
    assert (said(result.messages), base) == (["hi", "ha"], 0)
    folded.apply(completed("2", user("hi"), answer("hallo")))
    assert said(folded.messages) == ["hi", "hallo"]


def test_a_continuation_that_never_began_or_was_forgotten_takes_nothing_away() -> None:
    half = stopped("1", user("hi"), answer("ha", interrupted=True))
    folded = state(queued("1", user("hi")), started("1"), half, queued("2", continues="1"), stopped("2"))
    assert said(folded.messages) == ["hi", "ha"]
    for event in (queued("3", continues="1"), started("3"), completed("3", user("hi"), answer("hallo"))):
        folded.apply(event)
    assert said(folded.messages) == ["hi", "hallo"]
    folded.apply(of("3", TurnForgotten, turn_id="3"))
    assert said(folded.messages) == ["hi", "ha"], "back to before the continuation"
    assert folded.last_ended is folded.turns["1"]


CALLS = [
    of("1", ToolCalled, call_id="c1", name="look", arguments="{}"),
    of("1", ToolCalled, call_id="c2", name="look", arguments="{}"),
    of("1", ToolEnded, call_id="c2", name="look", status="completed", content="seen"),
]


def test_a_turn_that_died_is_rebuilt_from_what_was_streamed() -> None:
    folded = state(
        queued("1", user("hi")),
        started("1"),
        of("1", AnswerStarted, model="m", step=1),
        of("1", TextStreamed, text="I'll "),
        of("1", TextStreamed, text="look", path=("a", "inner")),
        of("1", TextStreamed, text="see"),
        *CALLS,
        of("1", AnswerStarted, model="m", step=2),
        of("1", TextStreamed, text="wro"),
        of("1", AnswerRestarted),
        of("1", TextStreamed, text="righ"),
    )
    rebuilt = folded.rebuild(folded.turns["1"])
    validate(rebuilt.messages)
    assert said(rebuilt.messages)[:2] == ["hi", "I'll see"]
    results = [message for message in rebuilt.messages if isinstance(message, ToolResult)]
    assert [(result.call_id, result.status) for result in results] == [("c1", "unknown"), ("c2", "completed")]
    last = rebuilt.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.text, last.interrupted, rebuilt.steps) == ("righ", True, 2)


def test_a_turn_that_died_before_its_first_word_keeps_its_message() -> None:
    folded = state(queued("1", user("hi")), started("1"), of("1", AnswerStarted, model="m", step=1))
    assert folded.rebuild(folded.turns["1"]).messages == (user("hi"),)


def test_a_continuation_that_died_is_rebuilt_with_what_it_went_on_from() -> None:
    calls = (ToolCall(call_id="c1", name="look", arguments="{}"), ToolCall(call_id="c2", name="look", arguments="{}"))
    results = [
        ToolResult(call_id="c1", name="look", content="seen", status="completed"),
        ToolResult(call_id="c2", name="look", content="cut off", status="interrupted"),
    ]
    folded = state(
        queued("0", user("before")),
        started("0"),
        completed("0", user("before"), answer("yes")),
        queued("1", user("hi")),
        started("1"),
        stopped("1", user("hi"), answer("", calls=calls), *results),
        queued("2", continues="1"),
        started("2"),
        of("2", ToolEnded, call_id="c2", name="look", status="completed", content="seen at last"),
        of("2", AnswerStarted, model="m", step=1),
        of("2", TextStreamed, text="so"),
    )
    rebuilt = folded.rebuild(folded.turns["2"])
    assert said(rebuilt.messages) == ["hi", "", "seen", "seen at last", "so"]
    validate(rebuilt.messages)
    folded.apply(stopped("2", *rebuilt.messages))
    assert said(folded.messages) == ["before", "yes", "hi", "", "seen", "seen at last", "so"]
    validate(folded.messages)


@pytest.mark.parametrize("last", [answer("ha", interrupted=True), user("hi")], ids=["half an answer", "no answer"])
def test_a_continuation_that_died_at_once_keeps_what_it_went_on_from(last: Message) -> None:
    before = [user("hi")] if isinstance(last, AssistantMessage) else []
    folded = state(
        queued("1", user("hi")), started("1"), stopped("1", *before, last), queued("2", continues="1"), started("2")
    )
    rebuilt = folded.rebuild(folded.turns["2"])
    assert rebuilt.messages[0] == user("hi")
    validate(rebuilt.messages)


def test_an_ended_turn_keeps_nothing_of_its_stream() -> None:
    folded = state(
        queued("1", user("hi")),
        started("1"),
        of("1", AnswerStarted, model="m", step=1),
        of("1", TextStreamed, text="long"),
        completed("1", user("hi"), answer("long")),
    )
    turn = folded.turns["1"]
    assert turn.unfinished == UnfinishedWork()


def test_the_conversation_that_is_kept_is_the_one_that_would_be_told_anew() -> None:
    folded, events = SessionState(), list[Event]()
    half = answer("ha", interrupted=True)
    for event in (
        queued("1", user("a")),
        started("1"),
        queued("2", user("b")),
        completed("1", user("a"), answer("A")),
        started("2"),
        stopped("2", user("b"), half),
        queued("3", continues="2"),
        started("3"),
        completed("3", user("b"), answer("B")),
        queued("4", user("c")),
        queued("5", user("d")),
        stopped("5"),
        started("4"),
        completed("4", user("c"), answer("C")),
        of("4", TurnForgotten, turn_id="4"),
        of("3", TurnForgotten, turn_id="3"),
        queued("6", user("e")),
        started("6"),
        completed("6", user("e"), answer("E")),
    ):
        events.append(event)
        folded.apply(event)
        assert folded.messages == state(*events).messages
    assert said(folded.messages) == ["a", "A", "b", "ha", "e", "E"]


def lost(turn_id: str) -> Event:
    reason = AbortReason("lease_lost", "its owner has gone")
    outcome = Aborted(reason, Receipt(reason, 0.0, 0.0), AgentResult("", (user(turn_id),)))
    return of(turn_id, TurnEnded, turn_id=turn_id, outcome=outcome)


def test_the_heir_of_a_turn_that_lost_its_owner_is_the_last_one_that_went_on_with_it() -> None:
    begun = [queued("t1", user("1")), started("t1")]
    assert state(*begun).successor("t1") == "t1"
    assert state(*begun, lost("t1")).successor("t1") == "t1"
    handed_over = [*begun, lost("t1"), queued("t2", continues="t1"), started("t2")]
    assert state(*handed_over).successor("t1") == "t2"
    twice = state(*handed_over, lost("t2"), queued("t3", continues="t2"))
    assert [twice.successor(turn) for turn in ("t1", "t2", "t3", "t9")] == ["t3", "t3", "t3", "t9"]


def test_a_turn_that_somebody_stopped_has_no_heir_also_if_it_was_continued() -> None:
    events = [queued("t1", user("1")), started("t1"), stopped("t1", user("1")), queued("t2", continues="t1")]
    assert state(*events).successor("t1") == "t1"


def test_a_turn_is_queued_then_running_then_stopping_then_what_became_of_it() -> None:
    turn, statuses = TurnRecord("t"), []
    for about in (
        {},
        {"started": True},
        {"stop": AbortReason("user", "enough")},
        {"outcome": Aborted(AbortReason("user"), RECEIPT)},
    ):
        vars(turn).update(about)
        statuses.append(turn.status)
    assert statuses == ["queued", "running", "stopping", "aborted"]
