"""A host over workers does what every host does, over every broker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from safepoint.errors import UsageError
from safepoint.models.scripted import Stall
from safepoint.testing.conformance import CASES, Case
from safepoint.worker import Broker, MemoryBroker
from safepoint.worker.orders import Place, Reply, Send, to_json
from tests.session.lab import talker
from tests.worker.lab import SECONDS, New, each_broker, hosting, linked, logged, memory, until_kind, working
from tests.worker.rigs import memory_broker, nats_broker, remote

BROKERS = {"memory": memory_broker, "nats": nats_broker}
NEEDS_THE_SESSION = ("caller's signal", "parent tool", "closing the stream")
STORING = ("while it is stored", "while its end is saved")
TRIED = [case for case in CASES if case.source not in NEEDS_THE_SESSION and case.phase not in STORING]


@pytest.mark.parametrize("broker", BROKERS.values(), ids=BROKERS)
@pytest.mark.parametrize("case", TRIED, ids=str)
async def test_a_remote_host_conforms(case: Case, broker: Callable[[], Broker]) -> None:
    assert await case.check(remote(broker)), "this rig can try it"


async def test_an_end_that_is_not_written_is_not_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may die before it is written: then the turn is not over, and it is the stop that ends it."""
    monkeypatch.setattr("safepoint.worker.remote.LOOK_SECONDS", 0.05)

    async def answer(data: bytes) -> bytes:
        return to_json(Reply(status="already_finished", turn_id="t1", message="turn t1 has ended"))

    broker = MemoryBroker()
    async with linked(broker) as worker, hosting(broker) as host:
        await worker.append("sessions", ("s",), to_json(Place("any")))
        await worker.append("inbox", ("s",), to_json(Send("t1", "hi")))
        await worker.serve(("ctl", "s"), answer)
        ack = await host.stop("s", "t1")
        assert (ack.status, ack.level) == ("accepted", "recorded")
        assert "not written yet" in ack.message


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


@each_broker
async def test_the_same_message_sent_again_under_its_id_is_answered_and_another_one_is_refused(new: New) -> None:
    broker = new()
    async with hosting(broker) as host, linked(broker) as link:
        await link.append("sessions", ("s",), to_json(Place("talker")))
        first = await host.send("s", "hi", turn_id="t")
        assert await host.send("s", "hi", turn_id="t") == first
        with pytest.raises(UsageError, match="an id is for life"):
            await host.send("s", "something else", turn_id="t")
        assert (await host.turn("s", "t")).said == "hi"
        assert len(await link.read("inbox", ("s",))) == 1
        async with working(talker("hello"), broker):
            await until_kind(host, "s", "turn_ended")
            again = await host.send("s", "hi", turn_id="t")
            assert (again.status, again.outcome is None) == ("completed", False)
            with pytest.raises(UsageError, match="an id is for life"):
                await host.send("s", "something else", turn_id="t")


@each_broker
async def test_of_two_messages_that_come_at_once_under_one_id_one_is_taken(new: New) -> None:
    broker = new()
    async with hosting(broker) as one, hosting(broker) as other, linked(broker) as link:
        await link.append("sessions", ("s",), to_json(Place("talker")))
        sending = [host.send("s", text, turn_id="t") for host, text in ((one, "yes"), (other, "no"))]
        yes, no = await asyncio.gather(*sending, return_exceptions=True)
        refused = [answer for answer in (yes, no) if isinstance(answer, UsageError)]
        assert len(refused) == 1
        said = "no" if yes is refused[0] else "yes"
        assert (await one.turn("s", "t")).said == said
        async with working(talker("hello"), broker):
            ended = (await until_kind(one, "s", "turn_ended")).event
            assert ended.outcome.value.messages[0].text == said  # type: ignore[union-attr]
        assert [event.kind for event in await logged(link, "s")].count("turn_queued") == 1


async def test_a_worker_that_does_not_say_that_a_change_is_recorded_is_not_believed_to_have_done_so() -> None:
    async def answer(data: bytes) -> bytes:
        return b'{"ok": true}'

    broker = MemoryBroker()
    async with linked(broker) as worker, hosting(broker) as host:
        await worker.append("sessions", ("s",), to_json(Place("any")))
        await worker.serve(("ctl", "s"), answer)
        for ack in (await host.edit("s", "t", "ho"), await host.remove("s", "t")):
            assert (bool(ack), ack.level) == (True, "accepted")
            assert ack.message.endswith("(not recorded yet)")


async def test_a_session_keeps_its_agent_and_says_so() -> None:
    broker = memory()
    agents = {"poet": talker(name="poet"), "painter": talker(name="painter")}
    async with working(agents, broker), hosting(broker) as host:
        await host.create("s", "poet")
        with pytest.raises(UsageError, match="'s' is there already, with the agent 'poet'"):
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
