"""Owns the tests of a sub-agent on another machine: its abort follows it, and whoever runs again finds it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from safepoint import AbortController, AbortReason
from safepoint.agent import Agent, tool
from safepoint.events import Event, TurnEnded
from safepoint.models.scripted import Call, Error, Stall
from safepoint.run import Aborted, Completed
from safepoint.session import Host, LocalHost, LoggedEvent, MemoryStore, Session, TurnView
from safepoint.worker import Broker, BrokerError, MemoryBroker, RemoteHost, remote_tool
from tests.kit.agents import asked, talker
from tests.kit.sessions import until
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, New, each_broker, ends, hosting, linked, logged, memory, until_kind, working


@asynccontextmanager
async def placed(child: Agent, new: New = memory) -> AsyncIterator[RemoteHost]:
    """A host over a worker that offers this agent."""
    broker = new()
    async with working(child, broker), hosting(broker) as host:
        yield host


def parent_of(host: Host, *answers: Any, **options: Any) -> Agent:
    script = answers or ([Call("child", prompt="do it")], "the end")
    return talker(*script, name="parent", tools=[remote_tool(host, "child", **options)])


async def the_session(host: RemoteHost) -> str:
    """The session in which the child works."""

    async def made() -> str | None:
        found = await host.sessions()
        return found[0].id if found else None

    return str(await eventually(made))


def results(value: Any) -> list[str]:
    return [message.content for message in value.messages if hasattr(message, "content")]


@each_broker
async def test_what_a_child_says_is_the_result_of_the_call(new: New):
    async with placed(talker("from far away", name="child"), new) as host:
        outcome = await _outcome(parent_of(host))
        assert outcome.value.text == "the end"
        assert results(outcome.value) == ["from far away"]


async def test_its_name_and_description_are_for_the_model():
    made = remote_tool(LocalHost(talker()), "child", name="painter", description="Paint it.")
    assert (made.name, made.description) == ("painter", "Paint it.")
    assert "another machine" in remote_tool(LocalHost(talker()), "child").description


async def test_parents_in_two_sessions_have_two_children_also_if_their_turns_have_one_id():
    helper = LocalHost(talker(*[lambda request: f"for {request.messages[-1].text}"] * 2, name="child"))
    for name in ("ann", "bob"):
        parent = parent_of(helper, [Call("child", prompt=name)], "the end")
        async with Session.open(name, agent=parent) as session:
            outcome = (await session.send("go", turn_id="1")).outcome
            assert isinstance(outcome, Completed)
            assert results(outcome.value) == [f"for {name}"]
    assert len(await helper.sessions()) == 2
    await helper.close()


@each_broker
async def test_a_stop_of_the_parent_stops_exactly_the_child(new: New):
    child = talker(["half", Stall()], ["another", Stall()], name="child")
    async with placed(child, new) as host, asyncio.TaskGroup() as group:
        await host.create("bystander", "child")
        await host.send("bystander", "wait", turn_id="t")
        await until_kind(host, "bystander", "text_streamed")
        controller = AbortController()
        running = group.create_task(_outcome(parent_of(host), controller))

        async def begun() -> str | None:
            others = [one for one in await host.sessions() if one.id != "bystander" and one.turns]
            return others[0].id if others else None

        session = str(await eventually(begun))
        await until_kind(host, session, "text_streamed")
        controller.abort("enough")
        outcome = await running
        assert (outcome.status, outcome.reason.message) == ("aborted", "enough")
        ended = await until_kind(host, session, "turn_ended")
        reason = ended.event.outcome.reason  # type: ignore[union-attr]
        assert (reason.kind, reason.message) == ("parent", "enough")
        assert [turn.status for turn in (await host.session("bystander")).turns] == ["running"]
        await (await host.stop("bystander", "t")).settled(SECONDS)


async def _outcome(agent: Agent, controller: AbortController | None = None, **options: Any) -> Any:
    signal = None if controller is None else controller.signal
    return await agent.run("go", signal=signal, **options)


async def test_a_deadline_of_the_parent_travels_to_the_child():
    async with placed(talker([Stall()], name="child")) as host:
        outcome = await _outcome(parent_of(host), timeout=0.5)
        assert outcome.status == "timed_out"
        session = await the_session(host)
        ended = await until_kind(host, session, "turn_ended")
        assert ended.event.outcome.reason.kind in ("deadline", "parent")  # type: ignore[union-attr]


async def test_what_happens_in_the_child_is_told_under_the_path_of_the_parent():
    async with placed(talker("words from afar", name="child")) as host:
        heard: list[Event] = [event async for event in parent_of(host).run("go")]
        words = [event for event in heard if event.kind == "text_streamed" and event.text.strip() == "words"]
        assert [event.path[0] for event in words] == ["parent"]
        assert all(len(event.path) > 1 for event in words)
        assert [event.kind for event in heard if event.kind.startswith(("session_", "turn_"))] == []


async def test_a_child_that_fails_is_told_to_the_model_which_may_go_on():
    async with placed(talker(Error("no key"), name="child")) as host:
        outcome = await _outcome(parent_of(host))
        assert outcome.value.text == "the end"
        (told,) = results(outcome.value)
        assert "no key" in told


async def test_a_child_that_somebody_else_has_stopped_is_told_to_the_model():
    async with placed(talker(["half", Stall()], name="child")) as host, asyncio.TaskGroup() as group:
        running = group.create_task(_outcome(parent_of(host)))
        session = await the_session(host)
        await until_kind(host, session, "text_streamed")
        (turn,) = (await host.session(session)).turns
        await host.stop(session, turn.id, reason="not this one")
        outcome = await running
        assert outcome.status == "completed"
        (told,) = results(outcome.value)
        assert "was stopped" in told
        assert "not this one" in told


async def test_an_agent_that_nobody_offers_is_told_to_the_model():
    async with placed(talker(name="somebody")) as host:
        outcome = await _outcome(parent_of(host))
        (told,) = results(outcome.value)
        assert "there is no agent 'child'" in told


async def test_a_parent_that_goes_on_lets_its_child_go_on_too():
    child = talker(["half", Stall()], "the other half", name="child")
    async with placed(child) as host, asyncio.TaskGroup() as group:
        controller = AbortController()
        running = group.create_task(_outcome(parent_of(host), controller))
        session = await the_session(host)
        await until_kind(host, session, "text_streamed")
        controller.abort("a break")
        stopped = await running
        seen = (await host.session(session)).last_seq
        run = parent_of(host, "the end").run(resume=stopped.partial)
        heard: list[Event] = [event async for event in run]
        outcome: Any = await run
        assert outcome.value.text == "the end"
        assert results(outcome.value) == ["the other half"]
        queued = await until_kind(host, session, "turn_queued", seen)
        assert queued.event.continues is not None  # type: ignore[union-attr]
        texts = [event.text for event in heard if event.kind == "text_streamed"]
        assert "half" not in "".join(texts).split("the other")[0]  # what was told before is not told again


async def test_a_parent_that_was_torn_away_finds_the_child_that_it_had_begun():
    released = asyncio.Event()

    @tool
    async def hold() -> str:
        await released.wait()
        return "go"

    child, broker = talker([Call("hold")], "it was done once", name="child", tools=[hold]), memory()
    deaf = Deaf(broker)  # as if its process had died: nobody stops the child
    async with working(child, broker), hosting(broker) as host, asyncio.TaskGroup() as group:
        controller = AbortController()
        running = group.create_task(_outcome(parent_of(deaf), controller))
        session = await the_session(host)
        await until_kind(host, session, "tool_called")
        controller.abort("gone")
        torn = await running
        again = group.create_task(_resumed(parent_of(host, "the end"), torn.partial))
        released.set()
        outcome = await again
        assert (outcome.value.text, results(outcome.value)) == ("the end", ["it was done once"])
        assert (asked(child), len(await host.sessions())) == (2, 1)
    await deaf.close()


async def _resumed(agent: Agent, partial: Any) -> Any:
    return await agent.run(resume=partial)


@each_broker
async def test_a_child_that_loses_its_worker_is_followed_to_the_one_that_goes_on(new: New):
    broker = new()
    async with hosting(broker) as host, asyncio.TaskGroup() as group:
        async with working(talker(["half", Stall()], name="child"), broker):
            running = group.create_task(_outcome(parent_of(host)))
            await until_kind(host, await the_session(host), "text_streamed")
        async with working(talker("done elsewhere", name="child"), broker):
            outcome = await running
        assert results(outcome.value) == ["done elsewhere"]


async def test_a_child_that_nobody_goes_on_with_is_not_waited_for_for_ever():
    broker = MemoryBroker(lease=30.0)
    async with hosting(broker) as host, linked(broker) as connection, asyncio.TaskGroup() as group:
        async with working(talker(["half", Stall()], name="child"), broker):
            running = group.create_task(_outcome(parent_of(host)))
            session = await the_session(host)
            await until_kind(host, session, "text_streamed")
        for _ in range(2):
            (order,) = await connection.take([("sub", "child")], 1, 5)
            await order.give_back()
        async with working(talker(name="child"), broker, attempts=1):
            outcome = await running
        assert "lease_lost" in results(outcome.value)[0]
        assert len(ends(await logged(connection, session))) == 1


class Deaf(RemoteHost):
    """A host that has lost its broker when it is to stop something."""

    async def stop(self, *about: Any, **more: Any) -> Any:
        raise BrokerError("the broker is gone")


async def test_a_parent_that_cannot_reach_its_child_is_aborted_all_the_same_and_says_so():
    broker = memory()
    host = Deaf(broker)
    async with working(talker(["half", Stall()], name="child"), broker), asyncio.TaskGroup() as group:
        controller = AbortController()
        running = group.create_task(_outcome(parent_of(host), controller))
        await until_kind(host, await the_session(host), "text_streamed")
        controller.abort(AbortReason("user", "enough"))
        outcome = await running
        assert (outcome.status, outcome.reason.kind) == ("aborted", "user")
        assert any("the broker is gone" in warning for warning in outcome.receipt.warnings)
    await host.close()


async def test_an_abort_before_the_child_exists_leaves_no_child():
    entered = asyncio.Event()

    class Slow(RemoteHost):
        async def create(self, *about: Any, **more: Any) -> Any:
            entered.set()
            await asyncio.Event().wait()

    broker = memory()
    host = Slow(broker)
    async with working(talker(name="child"), broker), asyncio.TaskGroup() as group:
        controller = AbortController()
        running = group.create_task(_outcome(parent_of(host), controller))
        await entered.wait()
        controller.abort("never mind")
        outcome = await running
        assert (outcome.status, outcome.reason.message) == ("aborted", "never mind")
        assert await host.sessions() == []
    await host.close()


class Lost:
    """A parent in a session, whose process dies while its child works on another machine: nobody stops the child."""

    def __init__(self, broker: Broker, host: RemoteHost) -> None:
        self.broker = broker
        self.host = host
        self.deaf = Deaf(broker)
        self.store = MemoryStore()
        self.child = ""  # its session

    async def crash(self) -> None:
        """Begin a turn, and leave what is in the log while its child works."""
        store = MemoryStore()
        session = await Session.open("p", agent=parent_of(self.deaf), store=store)
        session.send("go", turn_id="t1")
        async with asyncio.timeout(SECONDS), aclosing(session.events()) as events:
            async for recorded in events:
                if recorded.kind == "tool_called" and recorded.event.calls:
                    break
        await session.saved()
        await self.store.append("p", await store.read("p", 0, 1000), durable=True)
        self.child = await the_session(self.host)
        await session.close()
        await self.deaf.close()

    def opened(self, **options: Any) -> Any:
        """The session in the next process."""
        return Session.open("p", agent=parent_of(self.host, "the end"), store=self.store, **options)

    async def reason(self) -> AbortReason:
        """Why the child has ended."""
        ended = await until_kind(self.host, self.child, "turn_ended")
        assert isinstance(ended.event, TurnEnded)
        assert isinstance(ended.event.outcome, Aborted)
        return ended.event.outcome.reason


@asynccontextmanager
async def lost_parent(new: New = memory) -> AsyncIterator[tuple[Lost, asyncio.Event]]:
    released = asyncio.Event()

    @tool
    async def hold() -> str:
        await released.wait()
        return "go"

    broker = new()
    child = talker(["on it", Call("hold")], "it was done once", name="child", tools=[hold])
    async with working(child, broker), hosting(broker) as host:
        lost = Lost(broker, host)
        await lost.crash()
        yield lost, released
        released.set()


async def heard(host: RemoteHost, session: str) -> AsyncIterator[LoggedEvent]:
    last = (await host.session(session)).last_seq
    async with aclosing(host.events(session)) as events:
        async for recorded in events:
            yield recorded
            if recorded.seq >= last:
                return


@each_broker
async def test_a_stop_of_a_parent_whose_process_died_reaches_its_child(new: New):
    async with lost_parent(new) as (lost, _), lost.opened(resume=True) as session:
        (turn,) = session.turns.values()
        await until(session, lambda event: event.kind == "call_recorded" and event.run_id == turn.id)
        session.stop(turn.id, reason="enough")
        assert (await turn).status == "aborted"
        assert (await lost.reason()).kind == "parent"


async def test_a_stop_before_a_parent_goes_on_reaches_its_child_too():
    async with lost_parent() as (lost, _), lost.opened(resume=True, paused=True) as session:
        (turn,) = session.turns.values()
        session.stop(turn.id, reason="enough")
        assert (await turn).status == "aborted"
        assert (await lost.reason()).kind == "parent"


@each_broker
async def test_the_child_of_a_parent_that_is_sealed_and_not_resumed_is_stopped(new: New):
    async with lost_parent(new) as (lost, _), lost.opened(resume=False) as session:
        assert session.turns == {}
        assert (await lost.reason()).kind == "parent"
        assert session.outcome_of("t1").receipt.warnings == ()


async def test_a_child_that_cannot_be_stopped_when_its_parent_is_sealed_is_in_the_receipt():
    async with lost_parent() as (lost, released):
        deaf = Deaf(memory())
        async with Session.open("p", agent=parent_of(deaf, "the end"), store=lost.store) as session:
            (warning,) = session.outcome_of("t1").receipt.warnings  # type: ignore[union-attr]
            assert "the broker is gone" in warning
        released.set()
        await deaf.close()


@each_broker
async def test_a_child_that_has_not_begun_is_not_waited_for_when_its_parent_is_stopped(new: New):
    broker = new()
    child = talker([Stall()], "never", name="child")
    async with working(child, broker, concurrency=1), hosting(broker) as host, asyncio.TaskGroup() as group:
        await host.create("bystander", "child")
        await host.send("bystander", "hold the only place", turn_id="t")
        await until_kind(host, "bystander", "turn_started")
        controller = AbortController()
        running = group.create_task(_outcome(parent_of(host), controller))

        async def accepted() -> str | None:
            others = [one for one in await host.sessions() if one.id != "bystander" and one.turns]
            return others[0].id if others else None

        session = str(await eventually(accepted))
        began = time.monotonic()
        controller.abort("enough")
        outcome = await running
        assert time.monotonic() - began < 5.0, "it was waited for until the time was up"
        assert (outcome.status, outcome.receipt.warnings) == ("aborted", ())
        await (await host.stop("bystander", "t")).settled(SECONDS)
        ended = await until_kind(host, session, "turn_ended")
        assert ended.event.outcome.reason.kind == "parent"  # type: ignore[union-attr]
        assert asked(child) == 1, "it has not begun later either"


@each_broker
async def test_a_late_stop_from_the_former_process_of_a_parent_does_not_cost_the_work_of_its_child(new: New):
    async with lost_parent(new) as (lost, released), lost.opened(resume=True) as session:
        (turn,) = session.turns.values()
        await until(session, lambda event: event.kind == "call_recorded" and event.run_id == turn.id)
        (child,) = (await lost.host.session(lost.child)).turns
        await lost.host.stop(lost.child, child.id, reason=AbortReason("parent", "its worker has lost it"))
        released.set()
        async with asyncio.timeout(SECONDS):
            outcome: Any = (await turn).outcome
        assert results(outcome.value) == ["it was done once"]


class Unanswered(RemoteHost):
    """A host whose first request to continue a turn gets no answer: it was lost on its way, or its answer was."""

    def __init__(self, broker: Broker, arrives: bool) -> None:
        super().__init__(broker)
        self.arrives = arrives
        self.requests = 0

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        self.requests += 1
        if self.requests == 1:
            if self.arrives:
                await super().continue_turn(session_id, turn_id)
            raise BrokerError("no answer")
        return await super().continue_turn(session_id, turn_id)


@pytest.mark.parametrize(("arrives", "requests"), [(True, 1), (False, 2)])
async def test_a_child_whose_request_to_continue_got_no_answer_is_followed_or_asked_again(arrives: bool, requests: int):
    async with lost_parent() as (lost, released):
        host = Unanswered(lost.broker, arrives)
        async with Session.open("p", agent=parent_of(host, "the end"), store=lost.store, resume=True) as session:
            (turn,) = session.turns.values()
            await until(session, lambda event: event.kind == "call_recorded" and event.run_id == turn.id)
            (child,) = (await lost.host.session(lost.child)).turns
            await lost.host.stop(lost.child, child.id, reason=AbortReason("parent", "its worker has lost it"))
            released.set()
            async with asyncio.timeout(SECONDS):
                outcome: Any = (await turn).outcome
            assert (results(outcome.value), host.requests) == (["it was done once"], requests)
        await host.close()


@each_broker
async def test_a_child_that_had_not_begun_when_its_parent_was_handed_over_runs_for_the_parent_that_goes_on(new: New):
    broker, store = new(), MemoryStore()
    child = talker([Stall()], "it was done once", name="child")
    async with working(child, broker, concurrency=1), hosting(broker) as host:
        await host.create("bystander", "child")
        await host.send("bystander", "hold the only place", turn_id="t")
        await until_kind(host, "bystander", "turn_started")
        session = await Session.open("p", agent=parent_of(host), store=store)
        session.send("go", turn_id="t1")

        async def accepted() -> bool:
            return any(one.id != "bystander" and one.turns for one in await host.sessions())

        assert await eventually(accepted)
        await session.hand_over()
        await (await host.stop("bystander", "t")).settled(SECONDS)
        async with Session.open("p", agent=parent_of(host, "the end"), store=store, resume=True) as session:
            (turn,) = session.turns.values()
            async with asyncio.timeout(SECONDS):
                outcome: Any = (await turn).outcome
            assert results(outcome.value) == ["it was done once"]
