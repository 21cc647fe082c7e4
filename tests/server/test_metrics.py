"""Owns the tests of what the server counts."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from safepoint.agent import Agent
from tests.kit.servers import ControlledModel, Served, serving


async def numbers(served: Served) -> dict[str, float]:
    """What Prometheus would read."""
    text = (await served.call("GET", "/metrics")).text
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_turns_stops_and_streams_are_counted():
    faucet = ControlledModel()
    async with serving(Agent(faucet)) as served:
        session = await served.session()
        turn = await served.send(session)
        async with served.reading(session) as reader:
            await reader.until("answer_started")
            assert (await numbers(served))["safepoint_streams"] == 1
            await served.stop(session, turn)
            await reader.until("turn_ended")
        await served.stop(session, turn)
        await served.stop(session, "never-seen")
        async with asyncio.timeout(10):
            while (counted := await numbers(served))["safepoint_streams"]:
                pass
        assert counted["safepoint_turns_total"] == 1
        assert counted["safepoint_stops_total/accepted"] == 1
        assert counted["safepoint_stops_total/already_finished"] == 1
        assert counted["safepoint_stops_total/unknown"] == 1
        assert counted["safepoint_stop_ack_seconds_count"] == 3
        assert counted["safepoint_stop_settle_seconds_count"] == 1


async def test_two_servers_count_apart():
    async with serving(Agent(ControlledModel())) as one, serving(Agent(ControlledModel())) as other:
        session = await one.session()
        await one.stop(session, "never-seen")
        assert (await numbers(one))["safepoint_stops_total/unknown"] == 1
        assert "safepoint_stops_total/unknown" not in await numbers(other)
