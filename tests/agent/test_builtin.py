"""The tools that every agent may have: asking the person, and waiting."""

from typing import Any

import pytest

from safepoint import Completed
from safepoint.agent import Agent, ask_user, wait
from safepoint.events import LeafStarted
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.testing import FakeClock
from tests.kit.agents import contents, read, statuses, stopped


async def test_the_model_asks_the_person_and_reads_the_answer():
    model = ScriptedModel([Call("ask_user", question="Which one?")], "the red one then")
    outcome = await Agent(model, ask_user=lambda question: f"{question} Red.").run("go")
    assert contents(outcome) == ["Which one? Red."]
    assert [spec.name for spec in model.requests[0].tools] == ["ask_user"]


async def test_the_tool_can_also_be_given_by_hand():
    model = ScriptedModel([Call("ask_user", question="Which one?")], "fine")
    run = Agent(model, tools=[ask_user]).run("go")

    def answer(event: Any) -> None:
        if event.kind == "question_asked":
            run.answer(event.question_id, "blue")

    await read(run, answer)
    assert contents(await run) == ["blue"]


async def test_waiting_takes_its_time_and_a_stop_ends_it_at_once(clock: FakeClock):
    agent = Agent(ScriptedModel([Call("wait", seconds=600)], "rested", [Call("wait", seconds=600)]), tools=[wait])
    run = agent.run("go")
    async with run:
        await clock.elapse(599)
        assert not run.finished
        await clock.elapse(1)
        outcome = await run
    assert isinstance(outcome, Completed)
    assert contents(outcome) == ["waited 600 s"]

    run = agent.run("again")
    before = clock.monotonic()
    await read(run, lambda event: run.abort() if isinstance(event, LeafStarted) and event.path[-1] == "wait" else None)
    assert statuses(stopped(await run)) == ["interrupted"]
    assert clock.monotonic() == before
    assert clock.pending == 0


@pytest.mark.parametrize("seconds", [-1, 3601, "soon"])
async def test_waiting_has_bounds_that_the_model_is_told(seconds: object):
    outcome = await Agent(ScriptedModel([Call("wait", seconds=seconds)], "well"), tools=[wait]).run("go")
    assert statuses(outcome) == ["failed"]
    assert "seconds: Input should be" in contents(outcome)[0]
