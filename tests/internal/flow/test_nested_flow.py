"""Owns the tests that look inside, beside those of `tests/flow/test_nested_flow.py`.

A flow inside of other work: where it tells where it is, and what its keys are made of.
"""

import asyncio
from typing import Any

import pytest

from safepoint import AbortController, AbortError
from safepoint.agent import ToolContext
from safepoint.agent.agent_run import refuse_question
from safepoint.errors import UsageError
from safepoint.events import Event, FlowSaved
from safepoint.flow import END, Checkpoint, Flow, NodeContext
from safepoint.run import CheckpointError, Context
from safepoint.run.journal import Journal
from safepoint.run.partial_work import PartialWork
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import NodeRecorder, Trail, one


class Waiting(Journal):
    """Waits with each record until it is let through, where it is told to; or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def flush(self, ctx: Context) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.gate is not None:
            try:
                await ctx.signal.run(self.gate.wait())
            except AbortError:
                pass


class Call:
    """A tool call. `saved`: what was told in it."""

    def __init__(self, key: str = "talk:call-1", journal: Journal | None = None) -> None:
        self.saved: list[FlowSaved] = []
        self.controller = AbortController()
        outer = Context("agent", signal=self.controller.signal, emit=self._heard)
        self.ctx = ToolContext(outer, "report", call_id="call-1", idempotency_key=key, kept=None, ask=refuse_question)
        self.ctx.journal = journal or self.ctx.journal

    def _heard(self, event: Event) -> None:
        if isinstance(event, FlowSaved):
            self.saved.append(event)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [Checkpoint.from_json(event.checkpoint) for event in self.saved]


async def test_in_a_tool_call_it_tells_where_it_is_before_the_first_node_and_after_every_node():
    call, lab = Call(), NodeRecorder()
    state = await lab.line("report", "a", "b")(call.ctx, Trail())
    assert state.notes == ["a", "b"]
    assert [event.flow for event in call.saved] == ["report"] * 3
    assert [event.path for event in call.saved] == [("agent", "report")] * 3
    assert [(at.cursor, at.executed) for at in call.checkpoints] == [("a", ()), ("b", ("a",)), (None, ("a", "b"))]
    assert call.checkpoints[1].place["state"]["notes"] == ["a"]


async def test_each_of_these_places_can_be_gone_on_from():
    call, lab = Call(), NodeRecorder()
    flow = lab.line("report", "a", "b", "c")
    await flow(call.ctx, Trail())
    for saved, rest in zip(call.saved, (["a", "b", "c"], ["b", "c"], ["c"], []), strict=True):
        lab.ran.clear()
        state = await flow(Call().ctx, PartialWork("flow", saved.checkpoint))
        assert (state.notes, lab.ran) == (["a", "b", "c"], rest)


async def test_it_goes_on_when_what_it_told_is_on_record():
    journal, lab = Waiting(), NodeRecorder()
    journal.gate = asyncio.Event()
    call = Call(journal=journal)
    running = asyncio.ensure_future(lab.line("report", "a", "b")(call.ctx, Trail()))
    await drain_ready_tasks()
    assert (len(call.saved), journal.asked, lab.ran) == (1, 1, [])
    journal.gate.set()
    await running
    assert journal.asked == len(call.saved) == 3


async def test_a_stop_ends_the_wait_for_the_record():
    journal, lab = Waiting(), NodeRecorder()
    journal.gate = asyncio.Event()
    call = Call(journal=journal)
    running = asyncio.ensure_future(lab.line("report", "a", "b")(call.ctx, Trail()))
    await drain_ready_tasks()
    call.controller.abort("enough")
    with pytest.raises(AbortError) as raised:
        await running
    partial = raised.value.partial
    assert isinstance(partial, Checkpoint)
    assert (partial.cursor, lab.ran) == ("a", [])


async def test_what_cannot_be_recorded_fails_the_flow_and_no_node_begins():
    journal, lab = Waiting(), NodeRecorder()
    journal.error = CheckpointError("the disk is full")
    with pytest.raises(CheckpointError, match="the disk is full"):
        await lab.line("report", "a")(Call(journal=journal).ctx, Trail())
    assert lab.ran == []


async def test_inside_of_a_scatter_it_tells_at_most_four_times_a_second(clock: FakeClock):
    call, lab = Call(), NodeRecorder()

    async def body(item: int, ctx: NodeContext[Any]) -> None:
        await ctx.signal.sleep(0.01)
        await ctx.safe_point()

    flow: Flow[Trail, Any] = Flow("report", start="flows")
    flow.scatter("flows", items=lambda state: range(100), body=one(body, int), concurrency=1)
    flow.node("between", lab.node("between"))
    flow.scatter("functions", items=lambda state: range(100), body=body, concurrency=1)
    for name, target in (("flows", "between"), ("between", "functions"), ("functions", END)):
        flow.route(name, target)
    running = asyncio.ensure_future(flow(call.ctx, Trail()))
    await clock.elapse(3)
    await running
    assert [at.executed for at in call.checkpoints if at.cursor is None] == [("flows", "between", "functions")]
    cursors = [(at.cursor or "done").partition("/")[0] for at in call.checkpoints]
    assert list(dict.fromkeys(cursors)) == ["flows", "between", "functions", "done"]
    # In one second and a bit each. One more comes before the first node, and one after each node.
    assert all(4 <= cursors.count(name) <= 7 for name in ("flows", "functions")), cursors
    assert (cursors.count("between"), cursors.count("done")) == (1, 1)


async def test_a_flow_called_in_a_node_is_told_with_the_flow_around_it_only():
    call, lab = Call(), NodeRecorder()
    inner = lab.line("inner", "i1", "i2")

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        await inner(ctx, Trail())

    await one(node, Trail)(call.ctx, Trail())
    assert {event.flow for event in call.saved} == {"flow"}


async def test_the_keys_of_its_nodes_come_from_the_call_and_are_the_same_when_it_begins_again():
    lab = NodeRecorder()
    flow, other = lab.line("report", "a"), lab.line("other", "b")
    for _ in range(2):  # the call runs again, after a crash before anything was told, say
        ctx = Call("talk:call-1").ctx
        await flow(ctx, Trail())
        await other(ctx, Trail())
        await flow(ctx, Trail())
    assert lab.keys["a"][:2] == lab.keys["a"][2:]
    assert len(set(lab.keys["a"])) == 2, "two flows in one call are two"
    assert lab.keys["b"][0] == lab.keys["b"][1]
    assert all(key.startswith("talk:call-1/") for key in (*lab.keys["a"], *lab.keys["b"]))
    await flow(Call("talk:call-2").ctx, Trail())
    assert lab.keys["a"][-1] not in lab.keys["a"][:-1]


async def test_a_state_that_is_not_json_runs_and_it_is_said_once_what_that_means(caplog):
    call = Call()
    states: list[Any] = []

    async def node(state: dict[str, Any]) -> None:
        states.append(state)

    flow = one(node, dict)
    state = await flow(call.ctx, {"socket": object()})
    assert states == [state]
    assert call.saved == []
    (record,) = caplog.records
    assert "after a crash flow 'flow' would go on from an earlier node" in record.getMessage()


async def test_what_other_work_has_left_behind_is_refused():
    flow = NodeRecorder().line("report", "a")
    with pytest.raises(UsageError, match="cannot go on from what work of the kind 'crawl' has left behind"):
        await flow(Call().ctx, PartialWork("crawl", "{}"))
    with pytest.raises(CheckpointError, match="what the stopped tool call has left behind cannot be read"):
        await flow(Call().ctx, PartialWork("flow", "{"))


async def test_what_the_conversation_around_it_has_recorded_is_not_in_its_checkpoint():
    call = Call()
    call.ctx.journal.results["talk:call-0/charge"] = '"paid"'
    around: list[dict[str, str]] = []

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        around.append(dict(ctx.journal.results))
        await ctx.once("part", lambda: "done")
        await ctx.safe_point()

    await one(node, Trail)(call.ctx, Trail())
    part = {"talk:call-1/flow#1:it:0/part": '"done"'}
    assert [at.once for at in call.checkpoints] == [{}, part, {}], "the parts of a node go when it has ended"
    resumed = Call()
    await one(node, Trail)(resumed.ctx, call.checkpoints[1])
    assert around[1] == part, "a resume gives them back to what is around it"
