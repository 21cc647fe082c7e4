"""Owns the tests that look inside, beside those of `tests/interaction/test_flows_as_tools.py`.

A flow that is an agent's tool goes on where it was, however the agent is resumed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from safepoint import Completed
from safepoint.agent import Agent, AgentResult
from safepoint.events import FlowSaved, event_from_json, event_to_json
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Outcome
from safepoint.run.partial_work import PartialWork
from tests.interaction.test_flows_as_tools import ASK, DONE, Office, stop_in_b, through_json
from tests.kit.agents import contents, statuses, stopped


@pytest.mark.parametrize("travels", [stopped, through_json], ids=["as an object", "as JSON"])
async def test_a_flow_goes_on_where_it_was_when_its_agent_is_resumed(
    travels: Callable[[Outcome[AgentResult]], AgentResult],
):
    office = Office("b")
    partial = travels(await stop_in_b(office, office.agent(ASK)))
    assert statuses(partial) == ["interrupted"]
    (kept,) = partial.kept.values()
    assert isinstance(kept, PartialWork)
    outcome = await office.agent("done").run(resume=partial)
    assert isinstance(outcome, Completed)
    assert contents(outcome) == [DONE]
    assert office.ran == ["a", "b", "b", "c"]
    assert [len(keys) for keys in office.keys.values()] == [1, 1, 1]
    assert outcome.value.kept == {}


async def test_a_flow_of_a_sub_agent_goes_on_where_it_was():
    def chief(clerk: Agent, *answers: Any) -> Agent:
        return Agent(ScriptedModel(*answers), tools=[clerk.as_tool("clerk")])

    office = Office("b")
    partial = through_json(await stop_in_b(office, chief(office.agent(ASK), [Call("clerk", prompt="owls")])))
    (kept,) = partial.kept.values()
    assert isinstance(kept, AgentResult)
    assert [type(inside) for inside in kept.kept.values()] == [PartialWork]
    outcome = await chief(office.agent("reported"), "done").run(resume=partial)
    assert contents(outcome) == ["reported"]
    assert office.ran == ["a", "b", "b", "c"]
    assert [len(keys) for keys in office.keys.values()] == [1, 1, 1]


async def test_what_a_flow_has_told_is_enough_to_go_on_after_a_crash():
    office = Office("b")
    run = office.agent(ASK).run("go")
    told: list[FlowSaved] = []
    async for event in run:
        if isinstance(event, FlowSaved):
            assert event_from_json(event_to_json(event)) == event
            told.append(event)
        if office.reached.is_set():
            run.abort("as if the process had ended here")
    # Of what was kept at the stop nothing is used: only what is in the log.
    (call_id,) = stopped(await run).kept
    partial = replace(stopped(await run), kept={call_id: PartialWork("flow", told[-1].checkpoint)})
    assert [saved.path for saved in told] == [("agent", "report")] * 2
    outcome = await office.agent("done").run(resume=partial)
    assert contents(outcome) == [DONE]
    assert office.ran == ["a", "b", "b", "c"]
    assert [len(keys) for keys in office.keys.values()] == [1, 1, 1]
