"""What the log says of work that has not ended: the truth about each call, and sub-agents inside of calls."""

from typing import Any

from safepoint.agent import AgentResult, validate
from safepoint.agent.conversation import Conversation
from safepoint.events import (
    AnswerStarted,
    CallRecorded,
    Event,
    FlowSaved,
    LeafStarted,
    TextStreamed,
    ToolCalled,
    ToolEnded,
)
from safepoint.messages import ToolResult, UserMessage
from safepoint.run.partial_work import PartialWork
from safepoint.session.unfinished_work import UnfinishedWork
from tests.kit.agents import agents_kept

HI = UserMessage(text="hi")


def happened(kind: Any, *calls: str, **fields: Any) -> Event:
    path = ("agent", *(f"tool of {call}" for call in calls))
    event: Event = kind(run_id="t", path=path, at=0.0, calls=calls, **fields)
    return event


def call(call_id: str, *around: str, name: str = "pay", begun: bool = True, key: str = "k") -> list[Event]:
    told = {"call_id": call_id, "name": name}
    asked = happened(ToolCalled, *around, **told, arguments="{}", idempotency_key=key)
    recorded = happened(CallRecorded, *around, **told, effects="irreversible", idempotency_key=key)
    return [asked, recorded] if begun else [asked]


def asks(*around: str) -> Event:
    return happened(AnswerStarted, *around, model="m", step=1)


def says(text: str, *around: str) -> Event:
    return happened(TextStreamed, *around, text=text)


def ended(call_id: str, *around: str) -> Event:
    return happened(ToolEnded, *around, call_id=call_id, name="pay", status="completed", content="paid")


def rebuilt(*events: Event | list[Event], before: AgentResult | None = None) -> AgentResult:
    work = UnfinishedWork()
    for event in events:
        for one in event if isinstance(event, list) else [event]:
            work.apply(one)
    result = work.rebuild(Conversation([HI]) if before is None else Conversation(resume=before))
    validate(result.messages)
    return result


def statuses(result: AgentResult) -> dict[str, str]:
    return {message.call_id: message.status for message in result.messages if isinstance(message, ToolResult)}


def test_a_call_is_unknown_only_if_its_body_may_have_begun() -> None:
    events = [asks(), call("a"), call("b"), call("c", begun=False), ended("a")]
    assert statuses(rebuilt(*events)) == {"a": "completed", "b": "unknown", "c": "not_started"}


def test_a_call_in_a_log_of_an_older_version_may_have_begun() -> None:
    assert statuses(rebuilt(asks(), call("a", begun=False, key=""))) == {"a": "unknown"}


def test_the_calls_that_had_begun_and_have_no_result_are_named() -> None:
    work = UnfinishedWork()
    for event in [asks(), *call("a"), *call("b"), *call("c", begun=False), ended("a")]:
        work.apply(event)
    assert [one.call_id for one in work.unknown_calls()] == ["b"]


def test_a_sub_agent_is_kept_with_what_it_had_said_and_done() -> None:
    clerk = [asks("a"), says("let me see", "a"), call("x", "a"), ended("x", "a"), asks("a"), call("y", "a")]
    result = rebuilt(asks(), call("a", name="clerk"), *clerk)
    (kept,) = agents_kept(result)
    assert statuses(kept) == {"x": "completed", "y": "unknown"}
    assert [message.kind for message in kept.messages] == ["assistant", "tool_result"] * 2, "without its prompt"


def test_two_calls_of_one_sub_agent_are_kept_apart() -> None:
    result = rebuilt(
        asks(),
        call("a", name="clerk"),
        call("b", name="clerk"),
        asks("a"),
        asks("b"),
        says("one", "a"),
        says("two", "b"),
    )
    texts = [kept.text for kept in agents_kept(result)]
    assert dict(zip(result.kept, texts, strict=True)) == {"a": "one", "b": "two"}


def test_of_a_sub_agent_whose_call_has_a_result_nothing_is_kept() -> None:
    result = rebuilt(asks(), call("a", name="clerk"), asks("a"), says("one", "a"), ended("a"))
    assert dict(result.kept) == {}


def test_a_sub_agent_that_was_cut_off_twice_has_all_it_did_before() -> None:
    first = rebuilt(asks(), call("a", name="clerk"), asks("a"), call("x", "a"))
    second = rebuilt(call("a", name="clerk"), asks("a"), call("y", "a"), ended("y", "a"), before=first)
    (kept,) = agents_kept(second)
    assert statuses(kept) == {"x": "unknown", "y": "completed"}
    third = rebuilt(before=second)
    assert third.kept == second.kept, "a life in which nothing happened changes nothing"


def test_a_call_that_ran_again_and_was_cut_off_again_is_unknown() -> None:
    first = rebuilt(asks(), call("a", begun=False), call("b", begun=False))
    assert statuses(first) == {"a": "not_started", "b": "not_started"}
    second = rebuilt(call("a"), before=first)
    assert statuses(second) == {"a": "unknown", "b": "not_started"}


def test_what_a_tool_does_that_is_no_agent_is_not_taken_for_a_conversation() -> None:
    odd = TextStreamed(run_id="t", path=("agent", "tool", "model"), at=0.0, calls=("a",), text="x")
    old = TextStreamed(run_id="t", path=("agent", "clerk"), at=0.0, text="x")
    assert dict(rebuilt(asks(), call("a"), odd, old).kept) == {}


def saved(place: str, *calls: str) -> Event:
    return happened(FlowSaved, *calls, flow="ship", checkpoint=place)


def test_a_flow_inside_of_a_call_goes_on_from_the_last_place_that_it_told() -> None:
    result = rebuilt(asks(), call("a"), saved("first", "a"), saved("second", "a"))
    assert result.kept == {"a": PartialWork("flow", "second")}
    assert statuses(result) == {"a": "unknown"}


def test_a_flow_inside_of_a_sub_agent_is_kept_with_its_conversation() -> None:
    result = rebuilt(asks(), call("a"), asks("a"), call("b", "a"), saved("there", "a", "b"))
    kept = result.kept["a"]
    assert isinstance(kept, AgentResult)
    assert kept.kept == {"b": PartialWork("flow", "there")}


def test_of_a_flow_whose_call_has_ended_nothing_is_kept() -> None:
    assert rebuilt(asks(), call("a"), saved("there", "a"), ended("a")).kept == {}


def test_a_flow_that_was_gone_on_with_and_told_nothing_yet_is_where_it_was() -> None:
    before = rebuilt(asks(), call("a"), saved("there", "a"))
    assert rebuilt(call("a"), before=before).kept == before.kept


def test_of_a_plain_call_nothing_is_kept() -> None:
    begun = happened(LeafStarted, "a", leaf="await")
    assert rebuilt(asks(), call("a"), begun).kept == {}
