"""Owns agents that have others do their work, for workers in processes of their own: `tests.worker.chiefs:chief`.

The chief asks the researcher, who may run on the same worker.
"""

import os
from typing import Any

from safepoint.agent import Agent
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.worker import NatsBroker, RemoteHost, remote_tool

URL, NAMESPACE = "SAFEPOINT_TEST_URL", "SAFEPOINT_TEST_NAMESPACE"
CHIEF, RESEARCHER = "tests.worker.chiefs:chief", "tests.worker.chiefs:researcher"

_host = RemoteHost(NatsBroker(os.environ.get(URL, "nats://127.0.0.1:1"), namespace=os.environ.get(NAMESPACE, "none")))

researcher = Agent(ScriptedModel(*["found"] * 1000), name="researcher")
ANSWERS: list[Any] = [[Call("researcher", prompt="look")], "so be it"] * 1000
chief = Agent(
    ScriptedModel(*ANSWERS),
    name="chief",
    tools=[remote_tool(_host, "researcher")],
)
