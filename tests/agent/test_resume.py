"""Going on after a stop: exactly what has not run is run, also in a fresh process, also inside of sub-agents."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from safepoint import Completed
from safepoint.agent import Agent, AgentResult, AgentRun, ToolContext, tool, validate
from safepoint.events import QuestionAsked, TextStreamed
from safepoint.models.scripted import Call, Error, ScriptedModel, Stall
from safepoint.run import Outcome, Retry, Usage
from safepoint.wire import outcome_from_json, outcome_to_json
from tests.agent.shop import ASK_CLERK, CLERK, ROUND, STEPS, Shop
from tests.kit.agents import agents_kept, answers, contents, read, so_far, statuses, stopped

ROOT = Path(__file__).parents[2]


async def stopped_in(tmp_path: Path, hold: tuple[str, ...], *more: Any) -> tuple[Shop, AgentResult, Outcome[Any]]:
    """Run the shop until all of `hold` wait, and stop it there."""
    holder: list[AgentRun] = []
    shop = Shop(tmp_path / "effects", hold, lambda: holder[0].abort("enough"))
    holder.append(shop.agent(ROUND, *more, clerk=CLERK).run("go"))
    outcome = await holder[0]
    return shop, stopped(outcome), outcome


@pytest.mark.parametrize("hold", [held for size in (1, 2, 4) for held in itertools.combinations(STEPS, size)])
async def test_of_n_calls_of_which_k_had_finished_the_others_run(tmp_path: Path, hold: tuple[str, ...]):
    shop, partial, _ = await stopped_in(tmp_path, hold)
    assert statuses(partial) == ["interrupted" if name in hold else "completed" for name in STEPS]
    again = Shop(shop.effects)
    outcome = await again.agent("finished").run(resume=partial)
    assert outcome.unwrap().text == "finished"
    assert contents(outcome) == [f"{name} done" for name in STEPS], "in the order of the calls"
    ran = shop.lines()
    assert sorted(name for name, _ in ran) == sorted([*STEPS, *hold])
    keys = {name: {key for other, key in ran if other == name} for name in STEPS}
    assert all(len(found) == 1 for found in keys.values()), "a call that runs again has the key it had"
    assert len({key for _, key in ran}) == len(STEPS)


async def test_what_may_have_had_an_effect_that_cannot_be_taken_back_is_not_repeated(tmp_path: Path):
    holder: list[AgentRun] = []
    shop = Shop(tmp_path / "effects", ("charge", "mail"), lambda: holder[0].abort("enough"))
    holder.append(shop.agent([Call("pay", name="charge"), Call("do", name="mail")]).run("go"))
    partial = stopped(await holder[0])
    assert statuses(partial) == ["unknown", "interrupted"]
    outcome = await Shop(shop.effects).agent("I will check the charge").run(resume=partial)
    assert statuses(outcome) == ["unknown", "completed"]
    assert [name for name, _ in shop.lines()] == ["charge", "mail", "mail"]


async def test_a_call_the_person_has_denied_is_not_asked_about_again():
    asked: list[str] = []
    holder: list[AgentRun] = []

    @tool(requires_approval=True)
    async def launch() -> str:
        return "launched"

    @tool(effects="read")
    async def waits() -> str:
        if len(asked) < 2:
            asked.append("waits")
            holder[0].abort("enough")
            await asyncio.Event().wait()
        return "waited"

    def person(question: str) -> str:
        asked.append(question)
        return "deny"

    agent = Agent(ScriptedModel([Call("launch")], [Call("waits")], "well"), tools=[launch, waits], ask_user=person)
    holder.append(agent.run("go"))
    outcome = await agent.run(resume=stopped(await holder[0]))
    assert statuses(outcome) == ["failed", "completed"]
    assert len([question for question in asked if "launch" in question]) == 1


async def test_the_model_is_not_asked_again_for_what_it_has_answered(tmp_path: Path):
    model = ScriptedModel([Call("stops")], "done")
    holder: list[AgentRun] = []

    @tool
    async def stops() -> str:
        holder[0].abort("enough")
        return "stopped"

    agent = Agent(model, tools=[stops])
    holder.append(agent.run("go"))
    partial = stopped(await holder[0])
    assert len(model.requests) == 1
    outcome = await agent.run(resume=partial)
    assert len(model.requests) == 2
    assert model.requests[1].messages == partial.messages
    assert outcome.unwrap().steps == 2
    model.done()


async def test_a_run_that_was_stopped_before_it_began_begins():
    run = Agent(ScriptedModel()).run("go")
    run.abort("too early")
    outcome = await Agent(ScriptedModel("now")).run(resume=stopped(await run))
    assert outcome.unwrap().text == "now"


async def test_a_run_that_failed_can_be_resumed_too():
    agent = Agent(ScriptedModel([Call("once")], Error("no key")), tools=[once := tool(lambda: "ran", name="once")])
    failed = await agent.run("go")
    outcome = await Agent(ScriptedModel("better"), tools=[once]).run(resume=so_far(failed))
    assert outcome.unwrap().text == "better"
    assert contents(outcome) == ["ran"]
    assert outcome.unwrap().usage.requests == 3


async def test_usage_and_steps_go_on_counting():
    agent = Agent(ScriptedModel(["half", Stall()], "whole"))
    run = agent.run("go")
    await read(run, lambda event: run.abort() if isinstance(event, TextStreamed) else None)
    partial = stopped(await run)
    outcome = await agent.run(resume=partial)
    usage = outcome.unwrap().usage
    assert usage.requests == 2
    assert usage.estimated, "a part of it was cut off, and stays an estimate"
    assert usage.output_tokens > partial.usage.output_tokens


@pytest.mark.parametrize("hold", ["stamp", "send"])
async def test_a_sub_agent_goes_on_inside(tmp_path: Path, hold: str):
    shop, partial, _ = await stopped_in(tmp_path, (hold,), ASK_CLERK)
    (kept,) = agents_kept(partial)
    validate(kept.messages)
    asked = len(answers(kept.messages))
    assert asked == (1 if hold == "stamp" else 2)
    again = Shop(shop.effects).agent("finished", clerk=CLERK[asked:])
    outcome = await again.run(resume=partial)
    assert isinstance(outcome, Completed)
    assert contents(outcome)[-1] == "all sent"
    assert sorted(name for name, _ in shop.lines()) == sorted([*STEPS, "stamp", "send", hold])
    assert len({key for name, key in shop.lines() if name == hold}) == 1
    assert outcome.value.kept == {}, "there is nothing left to go on with"
    assert outcome.value.usage.requests == 6, "nothing is counted twice"


async def test_two_calls_of_one_sub_agent_go_on_each_in_its_own_conversation():
    ran: list[str] = []
    holder: list[AgentRun] = []

    @tool(effects="idempotent")
    async def dig(place: str) -> str:
        ran.append(place)
        if len(ran) == 2:
            holder[0].abort("enough")
        if len(ran) <= 2:
            await asyncio.Event().wait()
        return f"dug {place}"

    def answer(request: Any) -> Any:
        place = request.messages[0].text
        return [Call("dig", place=place)] if len(request.messages) == 1 else f"{place}: {request.messages[-1].content}"

    digger = Agent(ScriptedModel(*[answer] * 4), tools=[dig], name="digger")
    both = [Call("digger", prompt="north"), Call("digger", prompt="south")]
    agent = Agent(ScriptedModel(both, "done"), tools=[digger])
    holder.append(agent.run("go"))
    partial = stopped(await holder[0])
    assert len(partial.kept) == 2
    outcome = await agent.run(resume=partial)
    assert contents(outcome) == ["north: dug north", "south: dug south"]
    assert sorted(ran) == ["north", "north", "south", "south"]


async def test_what_a_tool_deep_inside_was_allowed_to_finish_is_kept_and_not_repeated():
    ran: list[str] = []
    inside, gate = asyncio.Event(), asyncio.Event()

    @tool(on_abort="finish", grace=30)
    async def save() -> str:
        ran.append("save")
        inside.set()
        await gate.wait()
        return "saved"

    clerk = Agent(ScriptedModel([Call("save")], "it is saved"), tools=[save], name="clerk")
    agent = Agent(ScriptedModel([Call("clerk", prompt="x")], "done"), tools=[clerk])
    run = agent.run("go")
    async with run:
        await inside.wait()
        run.abort("enough")
        gate.set()
        partial = stopped(await run)
    (kept,) = agents_kept(partial)
    assert statuses(kept) == ["completed"]
    outcome = await agent.run(resume=partial)
    assert contents(outcome) == ["it is saved"]
    assert ran == ["save"]


async def test_a_run_can_be_stopped_and_resumed_again_and_again(tmp_path: Path):
    effects = tmp_path / "effects"
    partial: AgentResult | None = None
    scripts: list[tuple[str, list[Any], Any]] = [
        ("reserve", [ROUND], ()),
        ("reserve", [], ()),
        ("stamp", [ASK_CLERK], CLERK[:1]),
        ("send", [], CLERK[1:2]),
        ("send", [], ()),
    ]
    for hold, script, clerk in scripts:
        holder: list[AgentRun] = []
        agent = Shop(effects, (hold,), lambda holder=holder: holder[0].abort("again")).agent(*script, clerk=clerk)
        holder.append(agent.run("go") if partial is None else agent.run(resume=partial))
        partial = stopped(await holder[0])
    outcome = await Shop(effects).agent("finished", clerk=CLERK[2:]).run(resume=partial)
    assert outcome.unwrap().text == "finished"
    validate(outcome.unwrap().messages)
    lines = Shop(effects).lines()
    assert sorted(name for name, _ in lines) == sorted([*STEPS, *["reserve"] * 2, *["stamp"] * 2, *["send"] * 3])
    assert len({key for _, key in lines}) == 6, "one key per call, over all resumes"


@pytest.mark.parametrize("hold", [("reserve", "mail"), ("stamp",), ("send",)], ids=" and ".join)
async def test_a_fresh_process_goes_on_from_json(tmp_path: Path, hold: tuple[str, ...]):
    shop, partial, outcome = await stopped_in(tmp_path, hold, ASK_CLERK)
    saved = tmp_path / "outcome.json"
    saved.write_text(outcome_to_json(outcome, AgentResult), encoding="utf-8")
    assert so_far(outcome_from_json(saved.read_text(encoding="utf-8"), AgentResult)) == partial
    command = [sys.executable, "-m", "tests.agent.shop", str(saved), str(shop.effects)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    resumed = outcome_from_json(done.stdout, AgentResult)
    assert resumed.unwrap().text == "finished"
    assert sorted(name for name, _ in shop.lines()) == sorted([*STEPS, "stamp", "send", *hold])
    assert len({key for _, key in shop.lines()}) == 6


async def test_a_stop_in_the_back_off_of_a_retry_is_resumed_with_a_new_attempt():
    model = ScriptedModel(["half an answer", Error("reset", retryable=True)], "a whole one")
    agent = Agent(model, retry=Retry(3, delay=60))
    run = agent.run("go")
    await read(run, lambda event: run.abort() if event.kind == "retry_scheduled" else None)
    partial = stopped(await run)
    assert partial.text == "half an answer"
    outcome = await agent.run(resume=partial)
    assert outcome.unwrap().text == "a whole one"
    assert [message.kind for message in outcome.unwrap().messages] == ["user", "assistant"]


async def test_a_new_prompt_instead_of_an_answer_is_always_possible():
    agent = Agent(ScriptedModel([Call("ask_user", question="Which?")], "something else then"), ask_user=True)
    run = agent.run("go")
    await read(run, lambda event: run.abort() if isinstance(event, QuestionAsked) else None)
    partial = stopped(await run)
    outcome = await agent.run("forget it", history=partial.messages)
    assert outcome.unwrap().text == "something else then"
    assert statuses(outcome) == ["interrupted"]


async def test_a_finished_result_needs_nothing_more():
    result = (await Agent(ScriptedModel("done")).run("go")).unwrap()
    again = (await Agent(ScriptedModel()).run(resume=result)).unwrap()
    assert again == result
    assert again.usage == result.usage
    assert result.usage != Usage()


async def test_a_tool_that_is_gone_is_told_to_the_model(tmp_path: Path):
    shop, partial, _ = await stopped_in(tmp_path, ("mail",))
    outcome = await Agent(ScriptedModel("I see")).run(resume=partial)
    assert statuses(outcome) == ["completed", "completed", "interrupted", "completed"]
    assert "interrupted" in contents(outcome)[2]
    assert [name for name, _ in shop.lines()] == list(STEPS)


async def cut_off(*, answer: str | None = None, **options: Any) -> tuple[list[str], Outcome[AgentResult]]:
    """Stop a tool in the middle and go on. What ran, by key, and how it ended. `answer`: of a person who is asked."""
    ran: list[str] = []
    holder: list[AgentRun] = []

    @tool(**options)
    async def act(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        if len(ran) == 1:
            holder[0].abort("enough")
            await asyncio.Event().wait()
        return "acted"

    def person(question: str) -> str:
        assert "Nobody knows whether act({}) took effect" in question
        assert answer is not None
        return answer

    ask = None if answer is None else person
    holder.append(Agent(ScriptedModel([Call("act")]), tools=[act], ask_user=ask).run("go"))
    partial = stopped(await holder[0])
    return ran, await Agent(ScriptedModel("I see"), tools=[act], ask_user=ask).run(resume=partial)


@pytest.mark.parametrize("effects", ["read", "idempotent"])
async def test_a_call_that_was_cut_off_runs_again_where_that_does_no_harm_under_the_key_it_had(effects: Any):
    ran, outcome = await cut_off(effects=effects)
    assert statuses(outcome) == ["completed"]
    assert len(ran) == 2
    assert len(set(ran)) == 1


@pytest.mark.parametrize("options", [{}, {"effects": "irreversible"}, {"effects": "reversible"}], ids=str)
async def test_a_call_that_was_cut_off_is_not_repeated_by_us_and_the_model_is_told_what_is_true(options: Any):
    ran, outcome = await cut_off(**options)
    assert len(ran) == 1
    assert statuses(outcome)[0] in ("interrupted", "unknown")
    assert "may have had effects" in contents(outcome)[0]


@pytest.mark.parametrize(
    ("answer", "status", "times"), [("run it again", "completed", 2), ("leave it", "interrupted", 1)]
)
async def test_a_reversible_call_that_was_cut_off_is_asked_about_where_there_is_somebody(
    answer: str, status: str, times: int
):
    ran, outcome = await cut_off(effects="reversible", answer=answer)
    assert statuses(outcome) == [status]
    assert len(ran) == times
