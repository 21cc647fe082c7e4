"""`ctx.once`: a part of a call runs once, whatever becomes of the call."""

import asyncio
from typing import Any

from safepoint import Aborted, Completed
from safepoint.agent import Agent, AgentResult, AgentRun, ToolContext, tool
from safepoint.events import PartRecorded
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Outcome
from safepoint.wire import outcome_from_json, outcome_to_json
from tests.kit.agents import contents, of_kind, read, so_far, stopped


def agent_of(*tools: Any, calls: int = 1) -> Agent:
    name = tools[0].name
    return Agent(ScriptedModel([Call(name)] * calls, "done"), tools=tools)


async def test_a_part_runs_once_and_gives_the_same_every_time():
    ran: list[str] = []

    @tool
    async def book(ctx: ToolContext) -> str:
        def reserve() -> dict[str, int]:
            ran.append("reserve")
            return {"seat": 4}

        first, second = await ctx.once("reserve", reserve), await ctx.once("reserve", reserve)
        assert first == second == {"seat": 4}
        return "booked"

    assert contents(await agent_of(book).run("go")) == ["booked"]
    assert ran == ["reserve"]


async def test_a_part_that_had_a_result_does_not_run_again_when_the_call_does_also_in_another_process():
    ran: list[str] = []
    holder: list[AgentRun] = []

    @tool(effects="idempotent")
    async def book(ctx: ToolContext) -> str:
        async def reserve() -> str:
            ran.append("reserve")
            return "seat 4"

        seat = await ctx.once("reserve", reserve)
        ran.append("charge")
        if ran.count("charge") == 1:
            holder[0].abort("enough")
            await asyncio.Event().wait()
        return f"booked {seat}"

    holder.append(agent_of(book).run("go"))
    outcome = await holder[0]
    stopped(outcome)
    saved = outcome_from_json(outcome_to_json(outcome, AgentResult), AgentResult)
    again = await Agent(ScriptedModel("done"), tools=[book]).run(resume=so_far(saved))
    assert contents(again) == ["booked seat 4"]
    assert ran == ["reserve", "charge", "charge"]


async def test_each_call_has_parts_of_its_own():
    ran: list[str] = []

    @tool
    async def book(ctx: ToolContext) -> str:
        def reserve() -> str:
            ran.append("reserve")
            return f"seat {len(ran)}"

        return await ctx.once("reserve", reserve)

    outcome = await agent_of(book, calls=2).run("go")
    assert sorted(contents(outcome)) == ["seat 1", "seat 2"]


async def test_of_two_tasks_that_ask_at_once_one_runs_it():
    ran: list[str] = []

    @tool
    async def book(ctx: ToolContext) -> str:
        async def reserve() -> str:
            ran.append("reserve")
            await asyncio.sleep(0)
            return "seat 4"

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(ctx.once("reserve", reserve))
        return "booked"

    assert contents(await agent_of(book).run("go")) == ["booked"]
    assert ran == ["reserve"]


async def test_a_part_that_failed_or_was_stopped_has_no_result_and_runs_again():
    ran: list[str] = []
    holder: list[AgentRun] = []

    @tool(effects="idempotent")
    async def book(ctx: ToolContext) -> str:
        async def reserve() -> str:
            ran.append("reserve")
            if len(ran) == 1:
                raise OSError("no line")
            if len(ran) == 2:
                holder[0].abort("enough")
                await asyncio.Event().wait()
            return "seat 4"

        try:
            return await ctx.once("reserve", reserve)
        except OSError:
            return await ctx.once("reserve", reserve)

    holder.append(agent_of(book).run("go"))
    partial = stopped(await holder[0])
    assert dict(partial.parts) == {}
    again = await Agent(ScriptedModel("done"), tools=[book]).run(resume=partial)
    assert contents(again) == ["seat 4"]
    assert ran == ["reserve"] * 3


async def test_what_is_no_json_is_refused_with_what_to_do():
    @tool
    async def book(ctx: ToolContext) -> str:
        def reserve() -> Any:
            return {"seat"}

        return str(await ctx.once("reserve", reserve))

    (told,) = contents(await agent_of(book).run("go"))
    assert "ctx.once('reserve') must return plain JSON data" in told


async def test_a_part_is_a_leaf_of_the_receipt_and_its_result_an_event():
    inside = asyncio.Event()

    @tool
    async def book(ctx: ToolContext) -> str:
        await ctx.once("reserve", lambda: "seat 4")

        async def charge() -> str:
            inside.set()
            await asyncio.Event().wait()
            return "never"

        return await ctx.once("charge", charge)

    run = agent_of(book).run("go")

    async def stop() -> None:
        await inside.wait()
        run.abort("enough")

    async with asyncio.TaskGroup() as group:
        group.create_task(stop())
        events = await read(run)
    outcome: Outcome[AgentResult] = await run
    assert isinstance(outcome, Aborted)
    fates = {entry.name: entry.fate for entry in outcome.receipt.entries}
    assert fates["agent/book/reserve"] == "finished"
    assert fates["agent/book/charge"] == "stopped"
    (recorded,) = of_kind(events, PartRecorded)
    assert (recorded.key, recorded.value, recorded.scope) == ("reserve", '"seat 4"', f"{run.id}:call-1")


@tool(isolation="process")
async def apart(ctx: ToolContext) -> str:
    return await ctx.once("reserve", lambda: "seat 4")


async def test_in_a_process_of_its_own_it_says_what_to_do_instead():
    outcome = await Agent(ScriptedModel([Call("apart")], "done"), tools=[apart]).run("go")
    assert isinstance(outcome, Completed)
    assert "isolation='thread'" in contents(outcome)[0]
    assert "ctx.once()" in contents(outcome)[0]
