"""Owns the acceptance lines of TurnLoop: timing, scope and preemption."""

import asyncio
from typing import Any

from safepoint import Aborted, Completed
from safepoint.agent import Agent, AgentRun, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run.messages import ToolResult
from safepoint.run.stop import StopAt
from safepoint.testing import FakeClock
from tests.acceptance.lines import not_built, open_line


class Nested:
    """An agent with a child that makes three rounds; each call of the child's tool waits at a gate."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.inside = asyncio.Event()
        self.gate = asyncio.Event()

        @tool
        async def dig(depth: int) -> str:
            self.steps.append(f"dig {depth}")
            self.inside.set()
            await self.gate.wait()
            return f"dug {depth}"

        @tool
        async def after() -> str:
            """Run beside nothing."""
            self.steps.append("after")
            return "done"

        self.child_model = ScriptedModel([Call("dig", depth=1)], [Call("dig", depth=2)], "deep enough")
        child = Agent(self.child_model, tools=[dig], name="digger")
        self.model = ScriptedModel([Call("digger", prompt="dig")], [Call("after")], "all done")
        self.run: AgentRun = Agent(self.model, tools=[child.as_tool(), after], name="root").run("go")

    async def until_inside(self) -> "asyncio.Task[object]":
        task: asyncio.Task[object] = asyncio.ensure_future(self.run._wait())
        await self.inside.wait()
        return task

    def results(self, outcome: Aborted[Any]) -> list[str]:
        partial = outcome.partial
        return [message.status for message in partial.messages if isinstance(message, ToolResult)]


async def test_01_timing_and_scope_are_independent() -> None:
    """Timing and scope are independent. A safe-point stop of the root does not touch nested agents unless
    `scope="tree"`.
    """
    root_only = Nested()
    task = await root_only.until_inside()
    root_only.run.stop(StopAt.AFTER_TOOLS)
    root_only.gate.set()
    await task
    outcome = await root_only.run
    assert isinstance(outcome, Aborted)
    assert root_only.steps == ["dig 1", "dig 2"], "the child went on to its end"
    assert root_only.results(outcome) == ["completed"]

    tree = Nested()
    task = await tree.until_inside()
    tree.run.stop(StopAt.AFTER_TOOLS, scope="tree")
    tree.gate.set()
    await task
    outcome = await tree.run
    assert isinstance(outcome, Aborted)
    assert tree.steps == ["dig 1"], "the child stopped at its own safe point"
    assert tree.results(outcome) == ["interrupted"]


async def test_02_escalation_is_monotone_and_a_bare_stop_never_weakens(clock: FakeClock) -> None:
    """Escalation is monotone: `tree` once asked stays; stricter timing stays; deadlines only move earlier; a bare
    stop never weakens.
    """
    nested = Nested()
    task = await nested.until_inside()
    stop = nested.run._ctx.stop
    nested.run.stop(StopAt.AFTER_TOOLS, scope="tree", within=60)
    nested.run.stop(StopAt.TURN_END, scope="root", within=90)
    assert (stop.request.at, stop.request.scope) == (StopAt.AFTER_TOOLS, "tree")
    assert stop.request.deadline == clock.monotonic() + 60
    nested.run.stop(StopAt.AFTER_MODEL, within=10)
    assert stop.request.at is StopAt.SAFE_POINT
    assert stop.request.deadline == clock.monotonic() + 10
    nested.run.stop()
    assert stop.request.at is StopAt.SAFE_POINT, "a bare stop never weakens, and leaves as it is"
    assert not nested.run.signal.aborted
    clock.advance(10)
    await task
    outcome = await nested.run
    assert isinstance(outcome, Aborted)
    assert outcome.receipt.escalated


async def test_03_escalation_in_mid_flight_wakes_the_children_that_were_waiting() -> None:
    """Escalation in mid-flight: a later call that adds only `tree` wakes children that were waiting, for safe
    points and for NOW; finished children are untouched; children started afterwards get it at once.
    """
    nested = Nested()
    task = await nested.until_inside()
    assert nested.run.stop(StopAt.AFTER_TOOLS).status == "accepted"
    ack = nested.run.stop(scope="tree")
    assert "AFTER_TOOLS" in ack.message
    nested.gate.set()
    await task
    assert nested.steps == ["dig 1"], "adding the tree alone reached the child that was at work"

    late = Nested()
    late.run.stop(StopAt.AFTER_MODEL, scope="tree")
    late.gate.set()
    outcome = await late.run
    assert isinstance(outcome, Aborted)
    assert late.steps == []

    child_first = Nested()
    task = await child_first.until_inside()
    child_first.run.stop(StopAt.AFTER_TOOLS, scope="tree")
    child_first.run.stop(StopAt.NOW)
    await task
    assert child_first.steps == ["dig 1"]
    assert isinstance(await child_first.run, Aborted)

    finished = Nested()
    finished.gate.set()
    async for event in finished.run:
        if event.kind == "tool_ended" and event.path == ("root",):
            finished.run.stop(StopAt.AFTER_TOOLS)
            finished.run.stop(scope="tree")
    outcome = await finished.run
    assert isinstance(outcome, Aborted)
    assert finished.results(outcome)[0] == "completed", "a finished child is untouched"


async def test_04_each_safe_point_stops_after_its_own_step() -> None:
    """AFTER_MODEL stops after the complete model answer with tool calls, before the tools; AFTER_TOOLS after all
    tools of the round; SAFE_POINT at whichever comes first.
    """
    for at, steps, statuses in (
        (StopAt.AFTER_MODEL, [], ["not_started"]),
        (StopAt.AFTER_TOOLS, ["dig 1", "dig 2"], ["completed"]),
        (StopAt.SAFE_POINT, [], ["not_started"]),
    ):
        nested = Nested()
        nested.gate.set()
        nested.run.stop(at)
        outcome = await nested.run
        assert isinstance(outcome, Aborted)
        assert nested.steps == steps
        assert nested.results(outcome) == statuses
        assert len(nested.model.requests) == 1
    answered = Agent(ScriptedModel("the answer")).run("go")
    answered.stop(StopAt.SAFE_POINT)
    assert isinstance(await answered, Completed), "a final answer that arrives first wins"


@open_line
def test_05_a_bare_stop_finishes_the_running_turn_and_starts_no_other() -> None:
    """Bare `stop()` finishes the running turn and starts no other; queued items are `unhandled`."""
    not_built()


@open_line
def test_06_a_graceful_stop_takes_the_whole_tree_and_within_escalates_to_now() -> None:
    """Graceful: `at=SAFE_POINT` takes the whole tree; `within` escalates to NOW."""
    not_built()


@open_line
def test_07_a_stop_now_takes_the_whole_tree_at_once() -> None:
    """`at=NOW`: at once, whole tree. (Theirs left orphans; ours is a real abort.)"""
    not_built()


@open_line
def test_08_a_preempting_push_interrupts_the_turn_seen_and_goes_on_with_the_new_item() -> None:
    """`push(item, preempt=…)` interrupts the turn seen at push time at the safe point, root only; with `within` it
    escalates; the loop goes on with the new item.
    """
    not_built()


@open_line
def test_09_a_preempt_never_hits_a_later_turn_and_every_ack_resolves() -> None:
    """Preempt during planning hits the coming turn; between turns nothing; a delayed one never hits a later turn;
    every ack resolves.
    """
    not_built()


@open_line
def test_10_concurrent_preempts_and_stops_are_deterministic_and_stop_dominates() -> None:
    """Concurrent preempts and stops: no deadlock, deterministic, stop dominates."""
    not_built()


@open_line
def test_11_stop_when_idle_fires_after_continuous_idleness_and_never_touches_a_running_turn() -> None:
    """`stop(when_idle_for=d)`: fires after d of continuous idleness; a new item resets it; never touches a running
    turn; overridden by any other stop; first duration wins unless withdrawn.
    """
    not_built()


@open_line
def test_12_calls_before_start_and_after_the_end_are_legal_or_a_clear_error() -> None:
    """Stop before start, push before start, wait before and after: legal where the design says so, a clear error
    where not.
    """
    not_built()


@open_line
def test_13_the_stop_cause_is_kept_and_visible_in_the_turn_and_in_the_exit() -> None:
    """The stop cause is kept (first non-empty one) and visible in the turn and in the exit."""
    not_built()


@open_line
def test_14_every_item_ends_in_its_bucket_and_nothing_vanishes() -> None:
    """Items: `unhandled` in push order; `interrupted` are those of the stopped turn, never of an earlier preempted
    one; late pushes are refused and returned; nothing vanishes.
    """
    not_built()


@open_line
def test_15_a_callback_cannot_hide_the_abort_and_its_own_error_is_the_exit_reason() -> None:
    """Callback errors: a callback that hides the abort cannot hide it from the exit; its own error is the exit
    reason, and the items and checkpoint are still there.
    """
    not_built()


@open_line
def test_16_a_checkpoint_on_stop_resumes_all_items_in_order_and_failing_stores_lose_nothing() -> None:
    """Checkpoint on stop, resume with interrupted, unhandled and new items in order; corrupt or failing stores lose
    nothing.
    """
    not_built()


@open_line
def test_17_invalid_options_fail_at_the_call() -> None:
    """Invalid options (`within <= 0`, `when_idle_for <= 0`, preempt at turn end) fail at the call."""
    not_built()


@open_line
def test_18_the_buffer_keeps_order_loses_no_wake_up_and_stays_readable_when_closed() -> None:
    """The buffer: put back at the front keeps order; wake-ups lose no item; closing keeps what is inside readable."""
    not_built()
