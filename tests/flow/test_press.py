"""The second press in a flow: `stop(abandon=seconds)` leaves behind a node that does not end, and keeps the cursor."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from safepoint import Aborted
from safepoint.flow import END, Flow, NodeContext
from safepoint.testing import FakeClock
from tests.kit.leaves import LibraryCall

SECONDS = 10.0


@dataclass
class Notes:
    """What the nodes have written."""

    written: list[str] = field(default_factory=list)


class Deaf(LibraryCall):
    """A synchronous node that is inside a library until it is let go."""

    def __call__(self, state: Notes, ctx: NodeContext[Any]) -> None:
        self.inside.set()
        try:
            self.let_go.wait(SECONDS)
        finally:  # it may be interrupted as soon as the library returns
            state.written.append("too late")
            self.out.set()


async def over(run: Any) -> Any:
    async with asyncio.timeout(SECONDS):
        return await run


async def test_a_node_that_does_not_end_is_left_and_is_the_one_that_runs_next_time(clock: FakeClock):
    deaf = Deaf()
    flow: Flow[Notes, Any] = Flow("line", start="deaf")
    flow.node("deaf", deaf)
    flow.route("deaf", END)
    run = flow.start(Notes())
    async with run:
        await deaf.begun()
        run.stop()
        await clock.elapse(2)
        assert not run.finished
        run.stop(abandon=1)
        await clock.elapse(1)
        result = await over(run)
    assert isinstance(result.outcome, Aborted)
    (entry,) = result.outcome.receipt.still_running
    assert entry.name == "line/deaf"
    await deaf.end()
    assert result.state.written == [], "what it wrote late is nowhere"
    assert result.cursor is not None
    assert result.executed == ()


async def test_of_branches_side_by_side_only_those_that_do_not_end_are_left(clock: FakeClock):
    deaf, also_deaf, waits = Deaf(), Deaf(), asyncio.Event()

    async def polite(state: Notes, ctx: NodeContext[Any]) -> None:
        waits.set()
        await asyncio.Event().wait()

    flow: Flow[Notes, Any] = Flow("wide", start="all")
    branches: dict[str, Any] = {}
    nodes: dict[str, Any] = {"one": deaf, "two": also_deaf, "three": polite}
    for name, node in nodes.items():
        branch: Flow[Notes, Any] = Flow(name, start="node")
        branch.node("node", node)
        branch.route("node", END)
        branches[name] = branch
    flow.parallel("all", branches)
    flow.route("all", END)
    run = flow.start(Notes())
    async with run:
        await deaf.begun()
        await also_deaf.begun()
        await waits.wait()
        run.stop(abandon=0)
        result = await over(run)
    assert isinstance(result.outcome, Aborted)
    left = [entry.name for entry in result.outcome.receipt.still_running]
    assert len(left) == 2
    assert all("one" in name or "two" in name for name in left), left
    await deaf.end()
    await also_deaf.end()
