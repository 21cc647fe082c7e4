"""What a provider wants back with its answers survives the store, a stop, a crash, and the calls of sub-agents."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from safepoint import Agent, Session, SqliteStore
from safepoint.agent import CallDelta, ModelRequest, NativeReported, tool
from safepoint.events import AnswerFinished, ReasoningStreamed, ToolCalled, event_from_json, event_to_json
from safepoint.messages import AssistantMessage, Message, NativeData
from safepoint.models.scripted import Call, ScriptedModel, Think
from safepoint.run import Completed
from safepoint.session import LocalHost, LoggedEvent
from tests.kit.agents import ChunkModel, said
from tests.kit.hosts import end_of

OF_ANSWER = NativeData(provider="p", document='{"a": 1}')
OF_CALL = NativeData(provider="p", document='{"c": 2}')


def natives(messages: Sequence[Message]) -> list[str]:
    """The reasoning in a conversation, as its model gets it back."""
    answers = [message for message in messages if isinstance(message, AssistantMessage)]
    return [json.loads(answer.native.document)["reasoning"] for answer in answers if answer.native is not None]


async def read_until(events: AsyncGenerator[LoggedEvent, None], seq: int) -> list[LoggedEvent]:
    """All events up to this number."""
    found: list[LoggedEvent] = []
    async with aclosing(events), asyncio.timeout(10):
        async for each in events:
            found.append(each)
            if each.seq >= seq:
                break
    return found


async def test_a_session_gives_back_the_reasoning_of_earlier_turns_after_it_was_closed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    model = ScriptedModel([Think("First, owls."), "Owls."], [Think("Then, mice."), "Mice."], "Both.")
    async with Session.open("s", agent=Agent(model), store=store) as session:
        await session.send("one")
        await session.send("two")
    async with Session.open("s", agent=Agent(model), store=store) as session:
        await session.send("three")
        recorded = await read_until(session.events(), session.last_seq)
    assert natives(model.requests[-1].messages) == ["First, owls.", "Then, mice."]
    words = [each.event.text for each in recorded if isinstance(each.event, ReasoningStreamed)]
    assert "".join(words) == "First, owls.Then, mice."


@pytest.mark.parametrize("inside", [False, True], ids=["agent", "sub-agent"])
async def test_a_crash_in_a_tool_call_keeps_the_reasoning_before_it(tmp_path: Path, inside: bool) -> None:
    begun = asyncio.Event()

    @tool(effects="read")
    async def look() -> str:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "an owl"

    def answer(request: ModelRequest) -> Sequence[str | Think | Call]:
        looked = any(message.kind == "tool_result" for message in request.messages)
        return ["It is an owl."] if looked else [Think("I have to look."), Call("look")]

    model = ScriptedModel(*[answer] * 4)
    agent = Agent(model, tools=[look], name="helper")
    if inside:
        chief = ScriptedModel([Think("The helper knows."), Call("helper", prompt="Who?")], "Done.")
        agent = Agent(chief, tools=[agent], name="chief")
    host = LocalHost(agent, SqliteStore(tmp_path / "s.db"))
    await host.create("s")
    await host.send("s", "go", turn_id="t")
    async with asyncio.timeout(10):
        await begun.wait()
    for file in tmp_path.glob("s.db*"):  # what a process that is killed now would leave behind
        if not file.name.endswith("-shm"):
            shutil.copy(file, tmp_path / file.name.replace("s.db", "left.db"))
    await host.close()
    host = LocalHost(agent, SqliteStore(tmp_path / "left.db"), resume=True)
    await host.recover()
    async with asyncio.timeout(10):
        outcome = await end_of(host, "s", "t")
        while not isinstance(outcome, Completed):  # it was sealed, and the turn that goes on has not come yet
            await asyncio.sleep(0.01)  # real time: another turn begins
            outcome = await end_of(host, "s", "t")
    await host.close()
    assert natives(model.requests[-1].messages) == ["I have to look."]
    assert natives(outcome.value.messages) == (["The helper knows."] if inside else ["I have to look."])


async def test_the_events_have_what_a_crash_has_to_be_rebuilt_from() -> None:
    call = CallDelta(index=0, call_id="a", name="look", arguments="{}", native=OF_CALL)

    @tool(effects="read")
    def look() -> str:
        return "an owl"

    model = ChunkModel([NativeReported(OF_ANSWER), call, said("", "tool_calls")[-1]], said("Done."))
    async with Agent(model, tools=[look]).run("go") as run:
        events = [event async for event in run]
        result = (await run).unwrap()
    [answered, *_] = [event for event in events if isinstance(event, AnswerFinished)]
    [called] = [event for event in events if isinstance(event, ToolCalled)]
    for event, native in ((answered, OF_ANSWER), (called, OF_CALL)):
        assert event.native == native
        assert event_from_json(event_to_json(event)) == event
    answer = result.messages[1]
    assert isinstance(answer, AssistantMessage)
    assert (answer.native, answer.calls[0].native) == (OF_ANSWER, OF_CALL)
    assert model.requests[1].messages[1] == answer


@pytest.mark.parametrize("kind", ["answer_finished", "tool_called"])
def test_events_of_before_are_read(kind: str) -> None:
    old: dict[str, dict[str, object]] = {
        "answer_finished": {"text": "hi", "interrupted": False, "usage": {"requests": 1}},
        "tool_called": {"call_id": "a", "name": "look", "arguments": "{}"},
    }
    event = event_from_json(json.dumps({"v": 1, "run_id": "r", "path": ["a"], "at": 1.0, "kind": kind, **old[kind]}))
    assert isinstance(event, AnswerFinished | ToolCalled)
    assert event.native is None
