"""A flow inside of other work: where it tells where it is, and what its keys are made of."""

from safepoint import Completed
from safepoint.flow import Checkpoint
from tests.kit.flows import NodeRecorder, Trail, again


async def test_outside_of_a_tool_call_nothing_is_told():
    lab = NodeRecorder()
    run = lab.line("flow", "a").start(Trail())
    kinds = [event.kind async for event in run]
    assert "node_ended" in kinds
    assert "flow_saved" not in kinds


async def test_what_a_stopped_flow_leaves_behind_comes_back_as_it_was():
    lab = NodeRecorder()
    checkpoint = again(await lab.stop_in("b", lab.line("flow", "a", "b").start(Trail())))
    kept = checkpoint.to_kept()
    assert kept.kind == "flow"
    assert Checkpoint.from_kept(kept) == checkpoint
    result = await lab.line("flow", "a", "b").execute(resume=Checkpoint.from_kept(kept))
    assert isinstance(result.outcome, Completed)
