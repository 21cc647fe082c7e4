"""Owns asking a model in tests: requests, and what came of them."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from safepoint.abort import AbortSignal
from safepoint.agent import AnswerEnded, CallDelta, Chunk, Model, ModelRequest, TextDelta, ToolSpec, UsageReported
from safepoint.messages import Message, UserMessage
from safepoint.run import Usage
from safepoint.testing import drain_ready_tasks

SEARCH = ToolSpec(
    name="search",
    description="Look something up.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)


def asking(
    *messages: Message | str, tools: Iterable[ToolSpec] = (SEARCH,), max_tokens: int | None = None
) -> ModelRequest:
    """A request; texts are what the user says."""
    said = tuple(UserMessage(text=m) if isinstance(m, str) else m for m in messages or ("hello",))
    return ModelRequest(messages=said, tools=tuple(tools), max_tokens=max_tokens)


async def ask(model: Model, request: ModelRequest | None = None, *, signal: AbortSignal | None = None) -> list[Chunk]:
    """All chunks of one answer, and the SDK's own last steps behind it."""
    try:
        return [chunk async for chunk in model.stream(request or asking(), signal=signal or AbortSignal.never())]
    finally:
        await drain_ready_tasks()


async def first_text(chunks: AsyncIterator[Chunk]) -> str:
    """The first words of an answer."""
    async for chunk in chunks:
        if isinstance(chunk, TextDelta) and chunk.text:
            return chunk.text
    raise AssertionError("the answer had no text")


def text_of(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


def calls_of(chunks: Iterable[Chunk]) -> list[tuple[str, str, Any]]:
    """Id, name and arguments of each call, put together as an agent does it."""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        if isinstance(chunk, CallDelta):
            call = calls.setdefault(chunk.index, ["", "", ""])
            for place, piece in enumerate((chunk.call_id, chunk.name, chunk.arguments)):
                call[place] += piece
    return [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls.values()]


def usage_of(chunks: Iterable[Chunk]) -> Usage:
    """What was reported last."""
    return [chunk.usage for chunk in chunks if isinstance(chunk, UsageReported)][-1]


def ending_of(chunks: list[Chunk]) -> str:
    """Why the answer ended; it is the last thing said, and said once."""
    assert [chunk for chunk in chunks if isinstance(chunk, AnswerEnded)] == chunks[-1:]
    last = chunks[-1]
    assert isinstance(last, AnswerEnded)
    return last.reason
