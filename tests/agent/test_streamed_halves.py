"""Characters that a server cuts in two: what is shown, kept and sent again can always be encoded."""

import pytest

from safepoint import Agent, Completed
from safepoint.agent import AnswerEnded, CallDelta, TextDelta, tool
from safepoint.events import TextStreamed
from safepoint.messages import AssistantMessage
from tests.kit.agents import ChunkModel, called


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["ok \ud83d", "\ude00 fine"], "ok 😀 fine"),
        (["ok \ud83d", " fine"], "ok \ufffd fine"),
        (["\ude00"], "\ufffd"),
        (["ok \ud83d"], "ok \ufffd"),
    ],
)
async def test_halves_are_joined_or_replaced_and_shown_as_they_are_kept(pieces: list[str], said: str):
    model = ChunkModel([*map(TextDelta, pieces), AnswerEnded("stop")])
    async with Agent(model).run("caf\udce9") as run:
        shown = [event.text async for event in run if isinstance(event, TextStreamed)]
        outcome = await run
    assert isinstance(outcome, Completed)
    assert ("".join(shown), outcome.value.text) == (said, said)
    for message in outcome.value.messages:
        message.text.encode()  # type: ignore[union-attr]


async def test_arguments_of_a_call_are_mended_too():
    got: list[str] = []

    @tool
    def look(query: str) -> str:
        got.append(query)
        return query

    first = called(0, "a\ud83d", "look", '{"query": "ok \ud83d')
    second = CallDelta(index=0, arguments='\ude00"}')
    model = ChunkModel([first, second, AnswerEnded("tool_calls")], [TextDelta("x"), AnswerEnded("stop")])
    outcome = await Agent(model, tools=[look]).run("go")
    assert isinstance(outcome, Completed)
    assert got == ["ok 😀"]
    answer = outcome.value.messages[1]
    assert isinstance(answer, AssistantMessage)
    answer.calls[0].call_id.encode()
