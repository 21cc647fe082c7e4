"""Owns the tests of places that are lent: turns that wait for sub-agents do not keep these from being worked on."""

import asyncio
from typing import Any

import pytest

from safepoint.agent import Agent
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.worker import RemoteHost, remote_tool
from tests.kit.agents import talker
from tests.kit.waiting import eventually
from tests.kit.workers import New, each_broker, hosting, nats, until_kind, working
from tests.worker.chiefs import CHIEF, NAMESPACE, RESEARCHER, URL


def chief_of(host: RemoteHost, name: str, below: str, *, calls: int = 1) -> Agent:
    """An agent that has another one do its work, in one or more calls at the same time."""
    asks = [Call(below, prompt=f"do {number}") for number in range(calls)]

    def answer(request: Any) -> Any:
        return asks if getattr(request.messages[-1], "kind", "") == "user" else "the end"

    return Agent(ScriptedModel(*[answer] * 1000), name=name, tools=[remote_tool(host, below)])


async def all_complete(host: RemoteHost, sessions: list[str]) -> None:
    for session in sessions:
        ended = await until_kind(host, session, "turn_ended", turn_id=f"{session}-1")
        assert ended.event.outcome.status == "completed"  # type: ignore[union-attr]


@each_broker
async def test_more_chiefs_than_places_have_their_work_done_on_the_same_worker(new: New):
    broker = new()
    async with hosting(broker) as host:
        agents = {
            "chief": chief_of(host, "chief", "researcher"),
            "researcher": talker(*["found"] * 9, name="researcher"),
        }
        async with working(agents, broker, concurrency=2):
            sessions = [f"s{number}" for number in range(4)]
            for session in sessions:
                await host.create(session, "chief")
                await host.send(session, "go", turn_id=f"{session}-1")
            await all_complete(host, sessions)


@each_broker
async def test_sub_agents_of_sub_agents_find_a_place_too(new: New):
    broker = new()
    async with hosting(broker) as host:
        agents = {
            "chief": chief_of(host, "chief", "middle", calls=2),
            "middle": chief_of(host, "middle", "leaf", calls=2),
            "leaf": talker(*["found"] * 40, name="leaf"),
        }
        async with working(agents, broker, concurrency=1):
            sessions = ["a", "b"]
            for session in sessions:
                await host.create(session, "chief")
                await host.send(session, "go", turn_id=f"{session}-1")
            await all_complete(host, sessions)


@each_broker
async def test_a_place_that_is_lent_is_not_given_to_work_that_nobody_waits_for(new: New):
    broker = new()
    async with hosting(broker) as host:
        agents = {"chief": chief_of(host, "chief", "slow"), "slow": talker([Stall()], name="slow"), "other": talker()}
        async with working(agents, broker, concurrency=1) as worker:
            await host.create("s", "chief")
            await host.send("s", "go", turn_id="s-1")

            async def two_held() -> bool:
                return worker.stats.taken == 2

            await eventually(two_held)
            await host.create("o", "other")
            await host.send("o", "hello", turn_id="o-1")
            await asyncio.sleep(1.0)  # real time: nothing happens
            assert worker.stats.taken == 2
            assert (await host.turn("o", "o-1")).status == "queued"
            await (await host.stop("s", "s-1")).settled(10)


@each_broker
async def test_what_waits_for_a_place_has_it_as_soon_as_a_chief_is_done(new: New):
    broker = new()
    async with hosting(broker) as host:
        agents = {
            "chief": chief_of(host, "chief", "researcher"),
            "researcher": talker("found", name="researcher"),
            "other": talker("hello", name="other"),
        }
        async with working(agents, broker, concurrency=1):
            await host.create("s", "chief")
            await host.create("o", "other")
            await host.send("s", "go", turn_id="s-1")
            await host.send("o", "hello", turn_id="o-1")
            await all_complete(host, ["s", "o"])


async def test_chiefs_in_processes_of_their_own_lend_their_places_as_well(monkeypatch: pytest.MonkeyPatch):
    broker = nats(lease=10.0)
    monkeypatch.setenv(URL, str(broker.url))
    monkeypatch.setenv(NAMESPACE, broker.namespace)
    async with hosting(broker) as host, working([CHIEF, RESEARCHER], broker, concurrency=1):
        for session in ("a", "b"):
            await host.create(session, "chief")
            await host.send(session, "go", turn_id=f"{session}-1")
        await all_complete(host, ["a", "b"])
