"""Owns the tests of the stand-in for an agent that is not there: it fails, and the conversation stays as it was."""

from safepoint.agent import AgentResult
from safepoint.messages import AssistantMessage, ToolCall, UserMessage
from safepoint.run import Context, Failed, settle
from safepoint.session import Session
from safepoint.worker.order_runner import MissingAgent
from tests.kit.sessions import said

WHY = "worker 'w' has no agent 'poet'"


async def test_every_turn_fails_and_says_what_is_missing():
    async with Session.open("s", agent=MissingAgent("poet", WHY)) as session:
        first = await session.save_messages("hello")
        assert first.status == "failed"
        assert str(first.outcome.error) == WHY  # type: ignore[union-attr]
        assert said(session.messages) == ["hello"]


async def test_a_turn_that_was_stopped_before_keeps_all_it_had_and_no_tool_is_called():
    call = ToolCall(call_id="c1", name="dig", arguments="{}")
    before = AgentResult("", (UserMessage(text="dig"), AssistantMessage(text="I dig", calls=(call,))))
    outcome = await settle(Context(), MissingAgent("poet", WHY), before)
    assert isinstance(outcome, Failed)
    assert (str(outcome.error), outcome.partial) == (WHY, before)


async def test_by_itself_it_fails_as_well():
    outcome = await MissingAgent("poet", WHY).run("hello")
    assert isinstance(outcome, Failed)
    assert str(outcome.error) == WHY
