"""Owns stopping what unfinished tool calls left running on other machines, such as sub-agents. Knows nothing of hosts.

A call that runs again finds its work over there and continues it. If no turn will ever continue the conversation,
nothing would, and it must be stopped.
"""

import asyncio
from collections.abc import Iterator, Mapping

from ..errors import describe
from ..messages import AssistantMessage, ToolCall, ToolResult
from .conversation import AgentResult
from .tool import AnyTool

__all__ = ["stop_left_behind"]

# Opening a session waits at most this long for the machines on which something may still run.
STOP_SECONDS = 5.0


async def stop_left_behind(tools: Mapping[str, AnyTool], conversation: AgentResult) -> tuple[str, ...]:
    """Stop everything that the unfinished calls of a conversation left running elsewhere, and wait for its end.

    Args:
        tools: The tools of the agent.
        conversation: The conversation as it was when its run ended.

    Returns:
        One warning, for a receipt, for each call whose work may still be running, with the reason.
    """
    async with asyncio.TaskGroup() as group:
        stops = [
            group.create_task(_stop(tool, key)) for tool, key in _remote_calls(tools, conversation, conversation.id)
        ]
    return tuple(warning for stop in stops if (warning := stop.result()))


async def _stop(tool: AnyTool, key: str) -> str:
    assert tool.stop_remote is not None  # _remote_calls yields no other tools
    limit = asyncio.timeout(STOP_SECONDS)
    try:
        async with limit:
            await tool.stop_remote(key)
    except Exception as error:
        problem = f"it has not ended within {STOP_SECONDS:g} s" if limit.expired() else describe(error)
        return f"{tool.name} on another machine may go on: {problem}"
    return ""


def _remote_calls(
    tools: Mapping[str, AnyTool], conversation: AgentResult, conversation_id: str
) -> Iterator[tuple[AnyTool, str]]:
    """Yield the unfinished calls with work on other machines, each as its tool and idempotency key.

    Those of sub-agents in this process are included.
    """
    for call in _unfinished_calls(conversation):
        tool, key = tools.get(call.name), f"{conversation_id}:{call.call_id}"
        if tool is None:
            continue
        if tool.stop_remote is not None:
            yield tool, key
        inner = conversation.kept.get(call.call_id)
        if isinstance(inner, AgentResult):
            yield from _remote_calls(tool.inner_tools, inner, inner.id or key)


def _unfinished_calls(conversation: AgentResult) -> Iterator[ToolCall]:
    """Yield the calls of the last answer that neither completed nor failed."""
    ended: set[str] = set()
    for message in reversed(conversation.messages):
        if isinstance(message, ToolResult):
            if message.status in ("completed", "failed"):
                ended.add(message.call_id)
        elif isinstance(message, AssistantMessage):
            yield from (call for call in message.calls if call.call_id not in ended)
            return
        else:
            return
