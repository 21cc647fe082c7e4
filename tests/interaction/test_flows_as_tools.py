"""A flow that is an agent's tool goes on where it was, however the agent is resumed."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from safepoint import Completed
from safepoint.agent import Agent, AgentResult, ToolContext, tool
from safepoint.events import TurnEnded
from safepoint.flow import END, Flow, NodeContext
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Outcome, StopAt
from safepoint.session import MemoryStore, Session, SqliteStore
from safepoint.wire import outcome_from_json, outcome_to_json
from tests.kit.agents import contents, statuses, stopped
from tests.kit.sessions import lines, stored
from tests.session import shipping

ROOT = Path(__file__).parents[2]


@dataclass
class Report:
    """The state of the flow that is a tool."""

    topic: str
    notes: list[str] = field(default_factory=list)


class Office:
    """Makes the flow a → b → c. `stuck` is where it waits for ever, once; `broken` is where it fails.

    `before`: what to do first in a node.
    """

    def __init__(self, stuck: str = "", broken: str = "") -> None:
        self.ran: list[str] = []
        self.keys: dict[str, set[str]] = {}
        self.stuck = stuck
        self.broken = broken
        self.before: dict[str, Callable[[], object]] = {}
        self.reached = asyncio.Event()

    def flow(self) -> Flow[Report, Any]:
        flow: Flow[Report, Any] = Flow("report", start="a")
        for name, target in (("a", "b"), ("b", "c"), ("c", END)):
            flow.node(name, self._node(name))
            flow.route(name, target)
        return flow

    def _node(self, name: str) -> Callable[..., Any]:
        async def node(state: Report, ctx: NodeContext[Any]) -> None:
            self.ran.append(name)
            self.keys.setdefault(name, set()).add(ctx.idempotency_key)
            self.before.pop(name, lambda: None)()
            if name == self.stuck:
                self.stuck = ""
                self.reached.set()
                await asyncio.get_running_loop().create_future()
            if name == self.broken:
                raise LookupError(f"{name} is broken")
            state.notes.append(name)

        return node

    def agent(self, *answers: Any, flow_tool: Any = None) -> Agent:
        return Agent(ScriptedModel(*answers), tools=[flow_tool or tool(self.flow())])


ASK = [Call("report", topic="owls")]


DONE = '{"topic":"owls","notes":["a","b","c"]}'


async def stop_in_b(office: Office, agent: Agent) -> Outcome[AgentResult]:
    run = agent.run("go")
    async with asyncio.timeout(10), run:
        await office.reached.wait()
        run.abort("enough")
        return await run


def through_json(outcome: Outcome[AgentResult]) -> AgentResult:
    return stopped(outcome_from_json(outcome_to_json(outcome, AgentResult), AgentResult))


async def test_it_goes_on_again_and_again():
    office = Office("a")
    partial = stopped(await stop_in_b(office, office.agent(ASK)))
    for name in ("b", "c"):
        office.stuck = name
        office.reached.clear()
        run = office.agent().run(resume=partial)
        async with asyncio.timeout(10), run:
            await office.reached.wait()
            run.abort("again")
            partial = through_json(await run)
    outcome = await office.agent("done").run(resume=partial)
    assert contents(outcome) == [DONE]
    assert office.ran == ["a", "a", "b", "b", "c", "c"]
    assert [len(keys) for keys in office.keys.values()] == [1, 1, 1]


async def test_a_stop_at_a_safe_point_between_two_nodes_is_gone_on_from_too():
    office = Office()
    office.before["a"] = lambda: run.stop(StopAt.SAFE_POINT, scope="tree")
    run = office.agent(ASK).run("go")
    partial = stopped(await run)
    assert office.ran == ["a"]
    outcome = await office.agent("done").run(resume=partial)
    assert contents(outcome) == [DONE]
    assert office.ran == ["a", "b", "c"]


async def test_a_call_that_was_stopped_before_its_flow_began_again_keeps_what_it_had():
    office = Office("b")
    partial = stopped(await stop_in_b(office, office.agent(ASK)))
    run = office.agent().run(resume=partial)
    run.abort("too early")
    again = stopped(await run)
    assert again.kept == partial.kept
    outcome = await office.agent("done").run(resume=again)
    assert office.ran == ["a", "b", "b", "c"]
    assert contents(outcome) == [DONE]


async def test_a_function_that_runs_a_flow_hands_it_what_it_had_left_behind():
    office = Office("b")

    @tool(effects="idempotent")
    async def report(topic: str, ctx: ToolContext) -> str:
        state = await office.flow()(ctx, Report(topic) if ctx.kept is None else ctx.kept)
        return " ".join(state.notes)

    partial = through_json(await stop_in_b(office, office.agent(ASK, flow_tool=report)))
    outcome = await office.agent("done", flow_tool=report).run(resume=partial)
    assert contents(outcome) == ["a b c"]
    assert office.ran == ["a", "b", "b", "c"]


async def test_a_call_whose_flow_fails_after_a_resume_leaves_nothing_behind():
    office = Office("b", broken="c")
    partial = stopped(await stop_in_b(office, office.agent(ASK)))
    outcome = await office.agent("a pity").run(resume=partial)
    assert statuses(outcome) == ["failed"]
    assert outcome.unwrap().kept == {}
    assert office.ran == ["a", "b", "b", "c"]


async def test_a_flow_that_has_changed_since_is_told_to_the_model():
    office = Office("b")
    partial = stopped(await stop_in_b(office, office.agent(ASK)))
    other: Flow[Report, Any] = Flow("report", start="new")
    other.node("new", lambda state: None)
    other.route("new", END)
    outcome = await Agent(ScriptedModel("I see"), tools=[tool(other, input=Report)]).run(resume=partial)
    assert statuses(outcome) == ["failed"]
    assert "flow 'report' has changed since this checkpoint was made" in contents(outcome)[0]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_flow_goes_on_where_it_was_when_a_turn_of_a_session_is_continued(kind: str, tmp_path: Path):
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "sessions.db")
    office = Office("b")
    async with asyncio.timeout(10), Session.open("s", agent=office.agent(ASK), store=store) as session:
        turn = session.send("go", turn_id="1")
        await office.reached.wait()
        turn.stop()
        assert (await turn).status == "aborted"
    if isinstance(store, SqliteStore):
        await store.close()
        store = SqliteStore(tmp_path / "sessions.db")  # as another process would
    async with asyncio.timeout(10), Session.open("s", agent=office.agent("done"), store=store) as session:
        result = await session.continue_turn("1")
        assert isinstance(result.outcome, Completed)
        assert contents(result.outcome) == [DONE]
    assert office.ran == ["a", "b", "b", "c"]
    assert [len(keys) for keys in office.keys.values()] == [1, 1, 1]


def test_the_model_is_offered_the_state_of_a_flow_and_nothing_else():
    schema = tool(Office().flow()).spec.parameters
    assert schema["properties"].keys() == {"topic", "notes"}
    assert schema["required"] == ["topic"]


@pytest.mark.parametrize("clerk", [False, True], ids=["of the agent", "of a sub-agent"])
async def test_a_flow_in_a_session_goes_on_where_it_was_after_each_kill_and_its_parts_run_once(
    tmp_path: Path, clerk: bool
):
    if clerk:
        (tmp_path / "by a clerk").touch()
    for name in (*shipping.NODES, None):
        if name is not None:
            (tmp_path / f"die in {name}").touch()
        command = [sys.executable, "-m", "tests.session.shipping", str(tmp_path)]
        life = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
        assert life.returncode == (0 if name is None else -signal.SIGKILL), life.stderr
    ran = lines(tmp_path / "nodes")
    assert [name for name, _ in ran] == ["pack", "pack", "label", "label", "send", "send"]
    assert len({key for _, key in ran}) == 3, "each node had the same key twice"
    assert lines(tmp_path / "parts") == [["pack"], ["label"], ["send"]]
    store = SqliteStore(tmp_path / "s.db")
    last = [event for event in await stored(store) if isinstance(event, TurnEnded)][-1]
    await store.close()
    assert isinstance(last.outcome, Completed), last
    assert last.outcome.value.text == "that is all"
    if not clerk:
        assert contents(last.outcome) == ['{"to":"the owls","done":["pack","label","send"]}']
