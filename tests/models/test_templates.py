"""A real inference server with the rules of Gemma's and Devstral's chat templates: the turn after a stop works."""

from collections.abc import Iterator
from typing import Any

import pytest

from safepoint import Agent, Completed, Failed, Retry
from safepoint.agent import HistoryError, ModelError, tool, validate
from safepoint.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from safepoint.models import OpenAIModel
from tests.kit.providers.llama import Llama
from tests.models.asking import ask, asking, text_of

HI = UserMessage(text="hello")
CALL = ToolCall(call_id="c1", name="look", arguments="{}")
RESULT = ToolResult(call_id="c1", name="look", content="no answer", status="interrupted")
CUT = AssistantMessage(text="Once upon a", interrupted=True)
# What a stop leaves: before the first word, in a word, in a round of calls, in a half-written call.
STOPPED: dict[str, list[Message]] = {
    "before the first word": [HI],
    "in the answer": [HI, CUT],
    "in a call": [HI, AssistantMessage(calls=(CALL,)), RESULT],
    "in a half-written call": [
        HI,
        AssistantMessage(text="I look", calls=(CALL,), interrupted=True),
        ToolResult(call_id="c1", name="look", content="", status="not_started"),
    ],
}


@pytest.fixture(scope="module", params=["gemma.jinja", "devstral.jinja"])
def server(request: pytest.FixtureRequest) -> Iterator[Llama]:
    with Llama(request.param) as running:
        running.template = request.param  # type: ignore[attr-defined]
        yield running


def model_at(server: Llama, **options: Any) -> OpenAIModel:
    return OpenAIModel("tiny", base_url=server.base_url, api_key="any", **options)


@tool
def look() -> str:
    """Look."""
    return "found"


@pytest.mark.parametrize("history", STOPPED.values(), ids=STOPPED)
async def test_the_turn_after_a_stop_is_accepted_and_the_one_after_it(server: Llama, history: list[Message]):
    if "gemma" in vars(server)["template"] and any(isinstance(message, ToolResult) for message in history):
        pytest.skip("Gemma's template accepts no results of calls at all")
    async with model_at(server, max_tokens=3) as model:
        agent = Agent(model, retry=Retry(attempts=1), instructions="Be brief.")
        for prompt in ("another question", "and another"):
            outcome = await agent.run(prompt, history=history)
            assert isinstance(outcome, Completed), outcome
            history = list(outcome.value.messages)


@pytest.mark.parametrize("messages", [[HI, HI], [HI, AssistantMessage(calls=(CALL,)), RESULT, HI]])
async def test_the_server_refuses_what_validate_says_and_takes_what_repair_gives(
    server: Llama, messages: list[Message]
):
    with pytest.raises(HistoryError):
        validate(messages, "strict-alternation")
    async with model_at(server, provider="openai", max_tokens=3) as model:
        with pytest.raises(ModelError):
            await ask(model, asking(*messages, tools=()))
    if "gemma" in vars(server)["template"] and len(messages) > 2:
        return
    async with model_at(server, max_tokens=3) as model:
        assert text_of(await ask(model, asking(*messages, tools=())))


async def test_a_run_that_is_stopped_before_the_first_word_can_go_on(server: Llama):
    async with model_at(server, max_tokens=50) as model:
        agent = Agent(model, retry=Retry(attempts=1))
        async with agent.run("tell me a story") as run:
            async for event in run:
                if event.kind == "answer_started":
                    run.stop()
            stopped = await run
        assert not isinstance(stopped, Failed)
        assert stopped.partial is not None
        outcome = await agent.run("something else", history=stopped.partial.messages)
        assert isinstance(outcome, Completed), outcome
