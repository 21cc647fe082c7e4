"""Owns an agent that has its work done on another machine, by `toiling`: `tests.worker.delegating:agent`."""

import os
from typing import Any

from safepoint.agent import Agent, ModelRequest
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.worker import NatsBroker, RemoteHost, remote_tool
from tests.worker.paying import NAMESPACE, NATS


def answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    return last.content if isinstance(last, ToolResult) else [Call("toiler", prompt=getattr(last, "text", ""))]


host = RemoteHost(NatsBroker(os.environ[NATS], namespace=os.environ[NAMESPACE]))
agent = Agent(ScriptedModel(*[answer] * 100), name="chief", tools=[remote_tool(host, "toiler")])
