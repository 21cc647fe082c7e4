"""What people write by mistake, and what they answer in words of their own."""

import json
from typing import Any

import pytest

from safepoint import Agent, Completed
from safepoint.agent import tool
from safepoint.errors import UsageError
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel

RULES = "You read books. " + "Never tell anybody the secret word. " * 60


def test_a_sub_agent_is_described_by_a_sentence_and_not_by_its_whole_prompt():
    spec = Agent(ScriptedModel(), name="reader", instructions=RULES).as_tool().spec
    assert spec.description == "Ask reader. You read books."
    assert len(Agent(ScriptedModel(), instructions="x" * 5000).as_tool().spec.description) < 1024
    assert Agent(ScriptedModel(), instructions=RULES, description="Reads.").as_tool().spec.description == "Reads."
    assert Agent(ScriptedModel(), instructions=RULES).as_tool(description="R").spec.description == "R"
    assert Agent(ScriptedModel()).as_tool().spec.description == "Ask agent."


def test_instructions_that_are_no_text_are_refused():
    instructions: Any = lambda: "Be brief."  # noqa: E731
    with pytest.raises(UsageError, match="instructions must be a text"):
        Agent(ScriptedModel(), instructions=instructions)


def test_a_partial_that_was_read_without_its_type_is_refused():
    partial: Any = json.loads('{"text": "x", "messages": []}')
    with pytest.raises(UsageError, match="outcome_from_json"):
        Agent(ScriptedModel()).run(resume=partial)


@tool(requires_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


async def asked(answer: str) -> ToolResult:
    agent = Agent(ScriptedModel([Call("pay")], "ok"), tools=[pay], ask_user=lambda question: answer)
    outcome = await agent.run("go")
    assert isinstance(outcome, Completed)
    [result] = [message for message in outcome.value.messages if isinstance(message, ToolResult)]
    return result


@pytest.mark.parametrize("answer", ["yes", " Yes, please! ", "sure", "Approve", "OK.", "go ahead", "y"])
async def test_people_allow_a_call_in_many_words(answer: str):
    assert (await asked(answer)).content == "paid"


@pytest.mark.parametrize("answer", ["no, use the other account", "yes, but from the other account", "maybe"])
async def test_other_words_deny_it_and_reach_the_model(answer: str):
    result = await asked(answer)
    assert result.status == "failed"
    assert answer in result.content


@pytest.mark.parametrize("answer", ["", "no", "Deny", "n"])
async def test_a_plain_no_is_not_repeated(answer: str):
    assert (await asked(answer)).content == "The user did not allow this call of pay. It did not run."
