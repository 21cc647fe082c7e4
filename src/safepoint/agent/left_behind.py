"""Owns what unfinished calls may have left running elsewhere, as sub-agents on other machines, and how that is stopped.

A call that runs again finds what it has left. Where it never will, somebody has to stop it. Knows nothing of hosts.
"""

import asyncio
from collections.abc import Iterator, Mapping

from ..errors import describe
from ..run.messages import AssistantMessage, ToolCall, ToolResult
from .conversation import AgentResult
from .tool import AnyTool

__all__ = ["stop_left_behind"]

# Whoever opens a session waits so long for the machines on which something may run.
STOP_SECONDS = 5.0


async def stop_left_behind(tools: Mapping[str, AnyTool], left: AgentResult) -> tuple[str, ...]:
    """Stop what the unfinished calls of a conversation have left elsewhere, side by side, and wait for its end.

    Args:
        tools: The tools of its agent.
        left: The conversation, as it is resumed.

    Returns:
        What may go on all the same, each with the reason, as warnings for a receipt.
    """
    async with asyncio.TaskGroup() as group:
        stops = [group.create_task(_stop(tool, key)) for tool, key in _left_elsewhere(tools, left, left.id)]
    return tuple(warning for stop in stops if (warning := stop.result()))


async def _stop(tool: AnyTool, key: str) -> str:
    assert tool.stop_left is not None  # for the type checker: it was looked for
    limit = asyncio.timeout(STOP_SECONDS)
    try:
        async with limit:
            await tool.stop_left(key)
    except Exception as error:
        why = f"it has not ended within {STOP_SECONDS:g} s" if limit.expired() else describe(error)
        return f"{tool.name} on another machine may go on: {why}"
    return ""


def _left_elsewhere(tools: Mapping[str, AnyTool], left: AgentResult, talk_id: str) -> Iterator[tuple[AnyTool, str]]:
    """The unfinished calls that may have left something, also those of sub-agents, each with its idempotency key."""
    for call in _unfinished(left):
        tool, key = tools.get(call.name), f"{talk_id}:{call.call_id}"
        if tool is None:
            continue
        if tool.stop_left is not None:
            yield tool, key
        inner = left.kept.get(call.call_id)
        if isinstance(inner, AgentResult):
            yield from _left_elsewhere(tool.inside, inner, inner.id or key)


def _unfinished(left: AgentResult) -> Iterator[ToolCall]:
    """The calls of the last round that have no end."""
    ended: set[str] = set()
    for message in reversed(left.messages):
        if isinstance(message, ToolResult):
            if message.status in ("completed", "failed"):
                ended.add(message.call_id)
        elif isinstance(message, AssistantMessage):
            yield from (call for call in message.calls if call.call_id not in ended)
            return
        else:
            return
