"""Owns one turn of an agent, written for Safepoint, for the bare SDK and for four frameworks: text in, text out.

Each has one client of its own for all turns, as every one of them documents it, streams, and reads every piece. What
can be used for many turns is made once: models, agents, the compiled graph. Only autogen's agent is made for each turn,
because it keeps the conversation of its turns. Peers run at their cheapest: without traces, memory or checkpoints.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any, TypeAlias

import agents as openai_agents
import pydantic_ai
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from safepoint import AbortSignal, Agent
from safepoint.events import TextStreamed
from safepoint.models.openai import OpenAIModel

__all__ = ["PEERS", "Pieces", "Turns"]

# Given a model's name, the pieces of one turn.
Pieces: TypeAlias = Callable[[str], AsyncIterator[str]]
KEY = "any"
PROMPT = "Tell me about owls."


class Turns:
    """All contenders, for one provider."""

    def __init__(self, base_url: str) -> None:
        self._url = base_url
        openai_agents.set_tracing_disabled(True)
        logging.getLogger("autogen_core").setLevel(logging.ERROR)
        logging.getLogger("autogen_core.events").setLevel(logging.ERROR)

    def _client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self._url, api_key=KEY, max_retries=0)

    def ours(self, signal: AbortSignal | None = None) -> Pieces:
        client = self._client()

        @cache
        def agent(name: str) -> Agent:
            return Agent(OpenAIModel(name, client=client))

        async def turn(name: str) -> AsyncIterator[str]:
            async for event in agent(name).run(PROMPT, signal=signal):
                if isinstance(event, TextStreamed):
                    yield event.text

        return turn

    def bare(self) -> Pieces:
        client = self._client()

        async def turn(name: str) -> AsyncIterator[str]:
            stream = await client.chat.completions.create(
                model=name,
                messages=[{"role": "user", "content": PROMPT}],
                stream=True,
                stream_options={"include_usage": True},
            )
            async with stream:
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        yield chunk.choices[0].delta.content

        return turn

    def openai_agents(self) -> Pieces:
        client = self._client()

        @cache
        def agent(name: str) -> "openai_agents.Agent[Any]":
            return openai_agents.Agent(name="a", model=openai_agents.OpenAIChatCompletionsModel(name, client))

        async def turn(name: str) -> AsyncIterator[str]:
            result = openai_agents.Runner.run_streamed(agent(name), PROMPT)
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    yield event.data.delta

        return turn

    def pydantic_ai(self) -> Pieces:
        provider = OpenAIProvider(openai_client=self._client())

        @cache
        def agent(name: str) -> "pydantic_ai.Agent[Any, str]":
            return pydantic_ai.Agent(OpenAIChatModel(name, provider=provider))

        async def turn(name: str) -> AsyncIterator[str]:
            async with agent(name).run_stream(PROMPT) as result:
                async for text in result.stream_text(delta=True, debounce_by=None):
                    yield text

        return turn

    def langgraph(self) -> Pieces:
        @cache
        def compiled(name: str) -> Any:
            settings: Any = {"model": name, "base_url": self._url, "api_key": KEY, "max_retries": 0}
            model = ChatOpenAI(**settings)

            async def call(state: MessagesState) -> dict[str, Any]:
                return {"messages": [await model.ainvoke(state["messages"])]}

            graph = StateGraph(MessagesState)
            graph.add_node("call", call)
            graph.add_edge(START, "call")
            graph.add_edge("call", END)
            return graph.compile()

        async def turn(name: str) -> AsyncIterator[str]:
            start: Any = {"messages": [("user", PROMPT)]}
            chunks: AsyncIterator[Any] = compiled(name).astream(start, stream_mode="messages")
            async for message, _ in chunks:
                if message.content:
                    yield str(message.content)

        return turn

    def autogen(self) -> Pieces:
        @cache
        def client(name: str) -> OpenAIChatCompletionClient:
            info: Any = {
                "vision": False,
                "function_calling": True,
                "json_output": False,
                "family": "unknown",
                "structured_output": False,
            }
            return OpenAIChatCompletionClient(
                model=name, base_url=self._url, api_key=KEY, model_info=info, max_retries=0
            )

        async def turn(name: str) -> AsyncIterator[str]:
            agent = AssistantAgent("a", client(name), model_client_stream=True)
            async for event in agent.run_stream(task=PROMPT):
                if isinstance(event, ModelClientStreamingChunkEvent):
                    yield event.content

        return turn


PEERS = {
    "openai-agents": Turns.openai_agents,
    "pydantic-ai": Turns.pydantic_ai,
    "LangGraph": Turns.langgraph,
    "autogen": Turns.autogen,
}


async def count(pieces: Pieces, name: str) -> int:
    """One turn to its end; how many pieces came."""
    return sum([1 async for _ in pieces(name)])


def run_all(pieces: Pieces, name: str, turns: int) -> "Callable[[asyncio.Runner], int]":
    """So many turns, one after the other."""

    async def work() -> int:
        return sum([await count(pieces, name) for _ in range(turns)])

    return lambda runner: runner.run(work())
