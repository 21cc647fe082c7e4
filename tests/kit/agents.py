"""Agents and models for tests, and ways to read the result of a run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Literal

from safepoint import Aborted, AbortSignal, Agent, Completed, TimedOut, tool
from safepoint.agent import (
    AgentResult,
    AgentRun,
    AnswerEnded,
    CallDelta,
    Chunk,
    ModelRequest,
    TextDelta,
    ToolContext,
    validate,
)
from safepoint.events import Event
from safepoint.messages import AssistantMessage, Message, ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Outcome, Retry
from safepoint.testing import drain_ready_tasks

ONCE = Retry(attempts=1)


class ChunkModel:
    """A model that yields exactly these chunks, one list per request; an exception among them is raised."""

    name = "raw"

    def __init__(self, *answers: Sequence[Chunk | BaseException]) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        for chunk in self.answers.pop(0):
            await asyncio.sleep(0)
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk


def called(index: int, call_id: str, name: str, arguments: str = "{}") -> CallDelta:
    return CallDelta(index=index, call_id=call_id, name=name, arguments=arguments)


def said(text: str, reason: Literal["stop", "tool_calls", "length", "content_filter"] = "stop") -> list[Chunk]:
    return [TextDelta(text), AnswerEnded(reason)]


def so_far(outcome: Outcome[AgentResult]) -> AgentResult:
    """What there is, however it ended."""
    result = outcome.value if isinstance(outcome, Completed) else outcome.partial
    assert isinstance(result, AgentResult)
    return result


def results(outcome: Outcome[AgentResult] | AgentResult) -> list[ToolResult]:
    result = outcome if isinstance(outcome, AgentResult) else so_far(outcome)
    return [message for message in result.messages if isinstance(message, ToolResult)]


def statuses(outcome: Outcome[AgentResult] | AgentResult) -> list[str]:
    return [result.status for result in results(outcome)]


def contents(outcome: Outcome[AgentResult] | AgentResult) -> list[str]:
    return [result.content for result in results(outcome)]


def answers(messages: Iterable[Message]) -> list[AssistantMessage]:
    return [message for message in messages if isinstance(message, AssistantMessage)]


def stopped(outcome: Outcome[AgentResult]) -> AgentResult:
    """The partial of a run that was stopped; its conversation is one that every provider accepts."""
    assert isinstance(outcome, Aborted | TimedOut), outcome
    assert outcome.partial is not None
    validate(outcome.partial.messages)
    return outcome.partial


def agents_kept(result: AgentResult) -> list[AgentResult]:
    """How far its sub-agents had come."""
    kept = list(result.kept.values())
    agents = [one for one in kept if isinstance(one, AgentResult)]
    assert agents == kept, "it has sub-agents only"
    return agents


def fates(outcome: Outcome[AgentResult]) -> dict[str, str]:
    """What the receipt says of each operation; the last line of a name counts."""
    assert not isinstance(outcome, Completed), outcome
    return {entry.name: entry.fate for entry in outcome.receipt.entries}


async def read(run: AgentRun, react: Callable[[Event], object] = lambda event: None) -> list[Event]:
    """All events of a run, each shown to `react` when it comes."""
    events: list[Event] = []
    async for event in run:
        events.append(event)
        react(event)
    return events


def kinds(events: Iterable[Event], *of: str) -> list[str]:
    return [event.kind for event in events if not of or event.kind in of]


def of_kind(events: Iterable[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


class Swallower:
    """An async tool that swallows every interruption until it is let go."""

    def __init__(self) -> None:
        self.inside, self.let_go = asyncio.Event(), asyncio.Event()

    def tool(self, name: str = "swallows", **options: Any) -> Any:
        async def swallows(ctx: ToolContext) -> str:
            self.inside.set()
            while not self.let_go.is_set():
                try:
                    await self.let_go.wait()
                except asyncio.CancelledError:
                    pass
            ctx.progress("still here")
            return "too late"

        return tool(swallows, name=name, **options)

    async def end(self) -> None:
        self.let_go.set()
        await drain_ready_tasks()


class HeldTool:
    """A tool that goes on after a stop until the test lets it go. `inside` is set when its body has begun."""

    def __init__(self, name: str = "slow", **options: Any) -> None:
        self.inside, self.released = asyncio.Event(), asyncio.Event()

        @tool(name=name, on_abort="cooperate", **options)
        async def held() -> str:
            """Go on."""
            self.inside.set()
            await self.released.wait()
            return "late"

        self.tool = held


def talker(*answers: Any, name: str = "talker", **options: Any) -> Agent:
    return Agent(ScriptedModel(*answers), name=name, **options)


def gated_agent(answer: str) -> tuple[Agent, asyncio.Event]:
    """An agent that answers when it is let go, and not before."""
    released = asyncio.Event()

    @tool
    async def hold() -> str:
        await released.wait()
        return "go"

    return talker([Call("hold")], answer, tools=[hold]), released


def asked(agent: Agent) -> int:
    """How often its model was asked."""
    model = agent.model
    assert isinstance(model, ScriptedModel)
    return len(model.requests)
