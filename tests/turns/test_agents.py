"""Owns the proof with agents in the loop: a user types while one works, and the conversation is valid each time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed
from safepoint.agent import Agent, AgentResult, tool, validate
from safepoint.events import Event, TextStreamed, ToolCalled, TurnEnded
from safepoint.flow import END, Flow
from safepoint.messages import AssistantMessage, Message, ToolResult, UserMessage
from safepoint.models.openai import OpenAIModel
from safepoint.models.scripted import Call, Delay, ScriptedModel, Stall
from safepoint.run import MemoryCheckpoints, Outcome, StopAt
from safepoint.testing import FakeClock, Probe, abort_everywhere, drain_ready_tasks
from safepoint.turns import InterruptedTurn, TurnLoop, TurnPlan
from tests.kit.providers.llama import Llama
from tests.kit.turn_loops import balanced


class Chat:
    """A conversation kept from what turns say at their end. One turn answers all that was typed so far."""

    def __init__(self, agent: Agent, **options: object) -> None:
        self.agent = agent
        self.history: tuple[Message, ...] = ()
        self.outcomes: list[Outcome[AgentResult]] = []
        self.seen: list[Event] = []
        self.heard = asyncio.Event()
        self.loop: TurnLoop[str] = TurnLoop(self.plan, on_event=self.hear, **options)  # type: ignore[arg-type]

    async def plan(self, items: list[str]) -> TurnPlan[str]:
        return TurnPlan(self.agent, [*self.history, *(UserMessage(text=item) for item in items)])

    def hear(self, event: Event) -> None:
        self.seen.append(event)
        self.heard.set()
        if isinstance(event, TurnEnded):
            outcome = event.outcome
            self.outcomes.append(outcome)
            result = outcome.value if isinstance(outcome, Completed) else outcome.partial
            if isinstance(result, AgentResult):
                validate(result.messages)
                self.history = result.messages

    async def until(self, kind: type[Event], count: int = 1) -> None:
        async with asyncio.timeout(30):
            while sum(isinstance(event, kind) for event in self.seen) < count:
                self.heard.clear()
                await self.heard.wait()


def told(messages: Sequence[Message]) -> list[str]:
    """Who said what, in short."""
    short = []
    for message in messages:
        match message:
            case UserMessage(text=text):
                short.append(f"user: {text}")
            case AssistantMessage(text=text, calls=calls):
                short.append(f"agent: {text or ', '.join(call.name for call in calls)}")
            case ToolResult(name=name, status=status):
                short.append(f"{name}: {status}")
            case _:
                short.append(str(message))
    return short


class Shop:
    """Tools that wait at a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.did: list[str] = []

        @tool
        async def search(query: str) -> str:
            self.did.append(query)
            await self.gate.wait()
            return f"found {query}"

        self.search = search


async def test_queue_what_is_typed_meanwhile_is_answered_in_the_next_turn() -> None:
    shop = Shop()
    model = ScriptedModel([Call("search", query="owls")], "Owls hoot.", "So do doves.")
    chat = Chat(Agent(model, tools=[shop.search]))
    async with chat.loop:
        chat.loop.push("tell me of owls")
        await chat.until(ToolCalled)
        assert chat.loop.push("and doves?")
        shop.gate.set()
        await chat.until(TurnEnded, 2)
    model.done()
    assert told(chat.history) == [
        "user: tell me of owls",
        "agent: search",
        "search: completed",
        "agent: Owls hoot.",
        "user: and doves?",
        "agent: So do doves.",
    ]
    assert (await chat.loop.wait()).handled == 2


async def test_steer_the_tools_finish_and_the_next_answer_knows_both_their_results_and_the_new_words() -> None:
    shop = Shop()
    model = ScriptedModel([Call("search", query="owls"), Call("search", query="fog")], "Doves coo.")
    chat = Chat(Agent(model, tools=[shop.search]))
    async with chat.loop:
        chat.loop.push("owls and fog")
        await chat.until(ToolCalled, 2)
        ack = chat.loop.push("doves, rather", preempt=StopAt.AFTER_TOOLS).ack
        assert ack is not None
        assert await ack == "submitted"
        await drain_ready_tasks()
        assert shop.did == ["owls", "fog"], "they go on"
        shop.gate.set()
        await chat.until(TurnEnded, 2)
    model.done()
    assert told(chat.history) == [
        "user: owls and fog",
        "agent: search, search",
        "search: completed",
        "search: completed",
        "user: doves, rather",
        "agent: Doves coo.",
    ]
    exit = await chat.loop.wait()
    assert (exit.preempted, exit.handled) == (["owls and fog"], 1)


@pytest.mark.parametrize("where", ["tool", "answer"])
async def test_interrupt_what_there_is_is_kept_and_marked(where: str) -> None:
    shop = Shop()
    first: list[Any] = [Call("search", query="owls")] if where == "tool" else ["Owls are", Stall()]
    model = ScriptedModel(first, "Doves coo.")
    chat = Chat(Agent(model, tools=[shop.search]))
    async with chat.loop:
        chat.loop.push("owls")
        await chat.until(ToolCalled if where == "tool" else TextStreamed)
        await drain_ready_tasks()
        chat.loop.push("doves, rather", preempt=StopAt.NOW)
        await chat.until(TurnEnded, 2)
    model.done()
    middle = ["agent: search", "search: interrupted"] if where == "tool" else ["agent: Owls are"]
    assert told(chat.history) == ["user: owls", *middle, "user: doves, rather", "agent: Doves coo."]
    assert isinstance(chat.outcomes[0], Aborted)
    assert chat.outcomes[0].reason.kind == "preempted"
    assert (await chat.loop.wait()).preempted == ["owls"]


async def test_a_graceful_stop_in_the_tools_is_resumed_from_the_checkpoint_without_repeating_them() -> None:
    store, shop = MemoryCheckpoints(), Shop()
    agent = Agent(ScriptedModel([Call("search", query="owls")], "Owls hoot.", "Done."), tools=[shop.search])

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        assert isinstance(stopped.partial, AgentResult)
        return TurnPlan(agent, stopped.partial, consumed=stopped.items, remaining=items)

    first = Chat(agent, checkpoints=store, checkpoint_id="chat-7", item_type=str)
    async with first.loop:
        first.loop.push("tell me of owls")
        await first.until(ToolCalled)
        first.loop.stop(at=StopAt.SAFE_POINT)
        first.loop.push("late")
        shop.gate.set()
    exit = await first.loop.wait()
    assert (exit.interrupted, exit.late, exit.checkpoint.status) == (["tell me of owls"], ["late"], "saved")

    second = Chat(agent, checkpoints=store, checkpoint_id="chat-7", item_type=str, resume=resume)
    second.loop.push("and now?")
    async with second.loop:
        await second.until(TurnEnded, 2)
    assert shop.did == ["owls"], "what had run is not run again"
    assert told(second.history) == [
        "user: tell me of owls",
        "agent: search",
        "search: completed",
        "agent: Owls hoot.",
        "user: and now?",
        "agent: Done.",
    ]
    assert (await second.loop.wait()).handled == 2


async def test_a_paused_agent_goes_on_where_it_was() -> None:
    shop = Shop()
    agent = Agent(ScriptedModel([Call("search", query="owls")], "Owls hoot."), tools=[shop.search])

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        return TurnPlan(agent, stopped.partial, consumed=stopped.items, remaining=items)

    chat = Chat(agent, resume=resume)
    async with chat.loop:
        chat.loop.push("tell me of owls")
        await chat.until(ToolCalled)
        chat.loop.pause(at=StopAt.AFTER_TOOLS)
        shop.gate.set()
        await chat.until(TurnEnded)
        assert not chat.loop.finished
        chat.loop.resume()
        await chat.until(TurnEnded, 2)
    assert shop.did == ["owls"]
    assert told(chat.history)[-1] == "agent: Owls hoot."


async def test_a_flow_is_work_too_and_stops_between_its_nodes() -> None:
    flow: Flow[list[str], None] = Flow("steps", start="first")
    began, gate = asyncio.Event(), asyncio.Event()

    @flow.node
    async def first(state: list[str]) -> None:
        began.set()
        await gate.wait()

    @flow.node
    async def second(state: list[str]) -> None:
        raise AssertionError("it was stopped before")

    flow.route("first", "second")
    flow.route("second", END)

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(flow, items)

    loop = TurnLoop(plan)
    async with loop:
        loop.push("a")
        await began.wait()
        loop.stop(at=StopAt.SAFE_POINT)
        gate.set()
    assert (await loop.wait()).interrupted == ["a"]


async def test_a_user_types_while_a_real_model_talks(llama: Llama) -> None:
    """It talks without end: nothing but a stop ends its turns. Each time the server is free at once."""
    async with OpenAIModel("tiny", base_url=llama.base_url, api_key="any") as model:
        chat = Chat(Agent(model, instructions="Talk."))
        async with chat.loop:
            chat.loop.push("talk")
            await chat.until(TextStreamed, 5)
            for number in range(2):
                chat.loop.push(f"no, {number}", preempt=StopAt.NOW)
                await chat.until(TurnEnded, number + 1)
                await chat.until(TextStreamed, len([e for e in chat.seen if isinstance(e, TextStreamed)]) + 5)
            chat.loop.stop(at=StopAt.NOW, reason="enough")
        exit = await chat.loop.wait()
        await drain_ready_tasks()
    assert (exit.preempted, exit.interrupted) == (["talk", "no, 0"], ["no, 1"])
    assert await asyncio.to_thread(llama.wait_idle, 2.0) is not None
    assert [line.split(":")[0] for line in told(chat.history)] == ["user", "agent"] * 3


def test_a_loop_with_an_agent_can_be_stopped_at_every_point_and_its_books_balance() -> None:
    async def scenario(probe: Probe) -> int:
        @tool
        async def search(query: str) -> str:
            await asyncio.sleep(0)
            return query

        model = ScriptedModel(
            ["Let me see. ", Call("search", query="owls")], "Owls hoot.", ["So do", Delay(1), " doves."]
        )
        agent = Agent(model, tools=[search])

        async def plan(items: list[str]) -> TurnPlan[str]:
            await asyncio.sleep(0)
            return TurnPlan(agent, items[0])

        def hear(event: Event) -> None:
            if isinstance(event, TurnEnded) and isinstance(event.outcome, Aborted) and event.outcome.partial:
                validate(event.outcome.partial.messages)

        loop = TurnLoop(plan, on_event=hear, signal=probe.signal, batch=1)
        loop.push("owls")
        loop.push("doves")
        async with loop:
            loop.stop(when_idle_for=1)
            exit = await loop.wait()
        assert exit.reason is None
        balanced(exit, ["owls", "doves"])
        if exit.handled < 2:
            probe.signal.raise_if_aborted()
        return exit.handled

    report = abort_everywhere(scenario, clock=FakeClock)
    assert len(report.points) > 20


async def test_one_signal_of_a_turn_ends_that_turn_and_the_conversation_goes_on() -> None:
    visitor = AbortController()
    agent = Agent(ScriptedModel(["Owls are", Stall()], "Doves coo."))
    chat = Chat(agent)

    async def plan(items: list[str]) -> TurnPlan[str]:
        said = [*chat.history, *(UserMessage(text=item) for item in items)]
        return TurnPlan(agent, said, signal=visitor.signal if items == ["owls"] else None)

    chat.loop = TurnLoop(plan, on_event=chat.hear)
    async with chat.loop:
        chat.loop.push("owls")
        await chat.until(TextStreamed)
        await drain_ready_tasks()
        visitor.abort("closed the page")
        await chat.until(TurnEnded)
        chat.loop.push("doves")
        await chat.until(TurnEnded, 2)
    assert told(chat.history) == ["user: owls", "agent: Owls are", "user: doves", "agent: Doves coo."]
    assert (await chat.loop.wait()).interrupted == ["owls"]
