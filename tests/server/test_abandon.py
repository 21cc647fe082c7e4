"""Owns the tests of how long a server waits for what ignores a stop."""

import threading

import pytest

from safepoint import Aborted
from safepoint.agent import Agent, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.server import with_abandon_after
from safepoint.testing import FakeClock


async def test_a_tool_that_ignores_the_stop_is_left_behind_and_named(clock: FakeClock):
    in_thread, released = threading.Event(), threading.Event()

    @tool(on_abort="cooperate")
    def deaf() -> str:
        """Wait in C, where no signal is seen."""
        in_thread.set()
        released.wait(30)
        return "late"

    agent = with_abandon_after(Agent(ScriptedModel([Call("deaf")]), tools=[deaf]), 2.0)
    run = agent.run("go")
    try:
        async with run:
            async for event in run:
                if event.kind == "leaf_started" and event.path[-1] == "deaf":
                    assert in_thread.wait(10)
                    run.abort("enough")
                    await clock.elapse(3)
        outcome = await run
    finally:
        released.set()
    assert isinstance(outcome, Aborted)
    assert [entry.name for entry in outcome.receipt.still_running] == ["agent/deaf"]


def test_a_tool_that_says_otherwise_is_believed_and_the_agent_itself_does_not_change():
    @tool(abandon_after=7)
    async def own() -> str:
        """Has a limit of its own."""
        return ""

    @tool
    async def none() -> str:
        """Has none."""
        return ""

    agent = Agent(ScriptedModel(), tools=[own, none])
    patient = with_abandon_after(agent, 2)
    assert {name: tool.policy.abandon_after for name, tool in patient._tools.items()} == {"own": 7, "none": 2}
    assert agent._tools["none"].policy.abandon_after is None


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float):
    with pytest.raises(ValueError, match="after"):
        with_abandon_after(Agent(ScriptedModel()), seconds)
