"""A host over workers does what every host does, over every broker."""

from collections.abc import Callable
from typing import Any

import pytest

from safepoint.errors import UsageError
from safepoint.models.scripted import Stall
from safepoint.testing.conformance import CASES, Case
from safepoint.worker import Broker
from tests.kit.agents import talker
from tests.kit.hosts import memory_broker, nats_broker, remote
from tests.kit.workers import SECONDS, New, each_broker, hosting, memory, until_kind, working

BROKERS = {"memory": memory_broker, "nats": nats_broker}


NEEDS_THE_SESSION = ("caller's signal", "parent tool", "closing the stream")


STORING = ("while it is stored", "while its end is saved")


TRIED = [case for case in CASES if case.source not in NEEDS_THE_SESSION and case.phase not in STORING]


@pytest.mark.parametrize("broker", BROKERS.values(), ids=BROKERS)
@pytest.mark.parametrize("case", TRIED, ids=str)
async def test_a_remote_host_conforms(case: Case, broker: Callable[[], Broker]) -> None:
    assert await case.check(remote(broker)), "this rig can try it"


@each_broker
async def test_the_first_id_of_a_turn_reaches_what_goes_on_with_it_after_a_hand_over(new: New) -> None:
    broker = new()
    agent = talker(["half", Stall()], ["again", Stall()])
    async with hosting(broker) as host:
        async with working(agent, broker):
            await host.create("s")
            await host.send("s", "hi", turn_id="t")
            await until_kind(host, "s", "text_streamed")
        async with working(agent, broker):
            goes_on = (await until_kind(host, "s", "turn_queued", continues="t")).event.turn_id  # type: ignore[union-attr]
            await until_kind(host, "s", "text_streamed", run_id=goes_on)
            view = await host.turn("s", "t")
            assert (view.id, view.status, view.outcome, view.continued_by) == ("t", "running", None, goes_on)
            again = await host.send("s", "hi", turn_id="t")
            assert (again.status, again.continued_by) == ("running", goes_on)
            ack = await host.stop("s", "t", reason="enough")
            assert (ack.status, ack.level) == ("accepted", "delivered")
            await ack.settled(SECONDS)
            view = await host.turn("s", "t")
            assert (view.status, view.continued_by) == ("aborted", goes_on)
            assert (await host.stop("s", "t")).status == "already_finished"


async def test_a_session_keeps_its_agent_and_says_so() -> None:
    broker = memory()
    agents = {"poet": talker(name="poet"), "painter": talker(name="painter")}
    async with working(agents, broker), hosting(broker) as host:
        await host.create("s", "poet")
        with pytest.raises(UsageError, match="'s' exists already, with the agent 'poet'"):
            await host.create("s", "painter")
        assert (await host.create("s", "poet")).agent == (await host.create("s")).agent == "poet"
        assert await host.recover() == []


@pytest.mark.parametrize("odd", ["\ud800", 5, b"x", ""], ids=repr)
async def test_an_id_or_a_text_that_is_none_is_refused(odd: Any) -> None:
    broker = memory()
    async with working(talker(), broker), hosting(broker) as host:
        await host.create("s")
        for use in (host.create(odd), host.session(odd), host.send(odd, "hi"), host.stop(odd, "t")):
            with pytest.raises(UsageError, match="the id of a session"):
                await use
        for use in (host.send("s", "hi", turn_id=odd), host.stop("s", odd)):
            with pytest.raises(UsageError, match="the id of a turn"):
                await use
        with pytest.raises(UsageError, match="a message must be a text"):
            await host.send("s", None)  # type: ignore[arg-type]
