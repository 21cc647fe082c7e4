"""Owns the tests that look inside, beside those of `tests/agent/test_calls.py`.

The tool calls of one answer: side by side, each with exactly one result that says truthfully what became of it.
"""

from typing import Any

import pytest

from safepoint import AbortError, AbortReason
from safepoint.agent import Agent, ToolContext, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Context
from safepoint.run.partial_work import PartialWork
from tests.kit.agents import called, contents, stopped


async def test_system_exit_is_meant_for_the_program_and_leaves_every_call_with_a_result():
    """Raised in this task, as by an agent inside, they pass through everything: the loop ends. Looked at from below."""
    from safepoint.agent.calls import run_calls
    from safepoint.agent.conversation import Conversation
    from tests.internal.agent.test_conversation import answer_of

    class Leaves:
        async def __call__(self, ctx: Context, value: str) -> str:
            raise SystemExit(3)

    leaves = tool(Leaves(), name="leaves")
    conversation = Conversation([])
    conversation.add(answer_of(called(0, "a", "leaves", '{"input": "go"}')))

    async def nobody(ctx: Context, question: str, options: tuple[str, ...]) -> str:
        return ""

    with pytest.raises(SystemExit):
        await run_calls(Context(), conversation, {"leaves": leaves}, nobody)
    assert conversation.results["a"].status == "unknown"


async def test_work_that_can_be_kept_as_text_is_called_again_with_what_it_had_left_behind():
    class Crawl:
        """Counts pages, and is stopped at the third."""

        resumes_from_kept = True
        input_type = str
        name = "crawl"

        async def __call__(self, ctx: ToolContext, value: str | PartialWork) -> str:
            given.append(value)
            if isinstance(value, PartialWork):
                return f"the rest after {value.data}"
            run.abort("enough")
            raise AbortError(AbortReason(), partial=Pages())

    class Pages:
        def to_kept(self) -> PartialWork:
            return PartialWork("crawl", "3")

    given: list[Any] = []
    agent = Agent(ScriptedModel([Call("crawl", input="owls")], "done"), tools=[Crawl()])
    run = agent.run("go")
    partial = stopped(await run)
    assert list(partial.kept.values()) == [PartialWork("crawl", "3")]
    outcome = await agent.run(resume=partial)
    assert contents(outcome) == ["the rest after 3"]
    assert given == ["owls", PartialWork("crawl", "3")]
