"""Owns uses that type checkers must accept, with the types that they must find."""

from collections.abc import Coroutine
from typing import Any, assert_type

from safepoint import (
    Aborted,
    AbortSignal,
    Agent,
    AgentResult,
    Completed,
    Failed,
    Flow,
    LocalHost,
    Outcome,
    Receipt,
    Session,
    SqliteStore,
    StopAck,
    StopAt,
    TimedOut,
    ToolContext,
    run_in_thread,
    tool,
)
from safepoint.agent import AnyTool, Model, Tool
from safepoint.events import Event, TextStreamed, ToolCalled
from safepoint.flow import END, End
from safepoint.messages import Message, from_openai
from safepoint.models import ScriptedModel
from safepoint.run import Context, leaf, settle
from safepoint.session import SessionTurn, TurnResult


@tool
async def search(query: str, ctx: ToolContext) -> list[str]:
    """Search."""
    return [query]


@tool(effects="read", timeout=30)
def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


async def work(ctx: Context, value: int) -> str:
    return str(value)


def in_a_thread(ctx: Context, value: int) -> float:
    return value / 2


async def tools(ctx: ToolContext) -> None:
    assert_type(add(1, b=2), int)
    assert_type(await search("owls", ctx), list[str])
    sub_agent = Agent(ScriptedModel("hi"), name="helper")
    Agent(ScriptedModel("hi"), tools=[search, add, sub_agent, sub_agent.as_tool(), len])
    several: list[AnyTool] = [search, add]
    Agent(ScriptedModel("hi"), tools=several)


class Shop:
    @tool
    def sell(self, what: str, number: int = 1) -> int:
        return number


def a_tool_of_an_object_has_the_signature_without_self() -> "Tool[[str], int]":
    assert_type(Shop().sell("tea", number=2), int)
    Agent(ScriptedModel("hi"), tools=[Shop().sell])

    class Counter:
        @tool
        def count(self, what: str) -> int:
            return 1

    return Counter().count


def a_conversation_of_openai_becomes_messages() -> None:
    assert_type(from_openai([{"role": "user", "content": "hi"}]), list[Message])


def a_tool_is_named_with_its_signature() -> "Tool[[str, ToolContext], Coroutine[Any, Any, list[str]]]":
    return search


async def leaves(ctx: Context) -> None:
    assert_type(await leaf(ctx, work, 1), str)
    assert_type(await leaf(ctx, in_a_thread, 1), float)
    assert_type(await settle(ctx, work, 1), Outcome[str])
    assert_type(await run_in_thread(in_a_thread, ctx, 1), float)


async def runs(agent: Agent, signal: AbortSignal) -> str:
    run = agent.run("go", signal=signal, timeout=5)
    assert_type(run.stop(StopAt.AFTER_TOOLS, within=2, abandon=1, reason="enough"), StopAck)
    outcome = await run
    assert_type(outcome, Outcome[AgentResult])
    assert_type(await run.wait(timeout=1), Outcome[AgentResult])
    assert_type(outcome.receipt, Receipt)
    match outcome:
        case Completed(result):
            assert_type(result, AgentResult)
            assert_type(outcome.partial, AgentResult)
            return result.text
        case Aborted(reason) | TimedOut(reason):
            assert_type(outcome.partial, AgentResult | None)
            return reason.message
        case Failed(error):
            return str(error)


async def flows(flow: Flow[list[str], None]) -> list[str] | None:
    flow.route("search", "write", empty=END)
    flow.route("write", done=End("written"))
    result = await flow.execute([], timeout=5)
    assert_type(result.outcome, Outcome[list[str]])
    return result.outcome.partial


def events(event: Event) -> str:
    if event.kind == "text_streamed":
        assert_type(event, TextStreamed)
        return event.text
    match event:
        case ToolCalled(name=name):
            return name
        case _:
            return event.run_id


async def sessions(agent: Agent) -> tuple[Message, ...]:
    async with Session.open("s", agent=agent, store=SqliteStore("chat.db")) as session:
        turn = session.send("hi", when_busy="steer")
        assert_type(turn, SessionTurn)
        assert_type(await turn, TurnResult)
        assert_type(session.continue_turn(), SessionTurn)
        assert_type(await session.save_messages(lambda messages: messages), TurnResult)
        await session.close(within=5, reason="deploy")
        return session.messages


async def hosts(agent: Agent) -> None:
    host = LocalHost({"helper": agent})
    assert_type(await host.stop("s", "t", StopAt.SAFE_POINT), StopAck)


def models() -> list[Model]:
    return [ScriptedModel("hi")]
