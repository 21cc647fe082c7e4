"""The context: one signal, one ledger, one sink for a run and its parts; a fence for what was abandoned."""

import asyncio
import pickle
import threading

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, Guard
from safepoint.events import Event, ProgressMade
from safepoint.run import Context
from safepoint.testing import FakeClock


def test_a_child_is_one_step_deeper_and_shares_the_run():
    events: list[Event] = []
    ctx = Context("agent", signal=AbortController().signal, emit=events.append)
    child = ctx.child("search")
    assert child.path == ("agent", "search")
    assert child.operation == "agent/search"
    assert (child.run_id, child.signal, child.receipt_builder, child.clock) == (
        ctx.run_id,
        ctx.signal,
        ctx.receipt_builder,
        ctx.clock,
    )
    child.progress("halfway", 0.5)
    (event,) = events
    assert isinstance(event, ProgressMade)
    assert (event.path, event.message, event.fraction, event.run_id) == (child.path, "halfway", 0.5, ctx.run_id)


def test_a_child_may_have_a_signal_of_its_own():
    own = AbortController().signal
    assert Context().child("x", signal=own).signal is own


def test_every_run_has_its_own_id_unless_it_is_given():
    assert Context().run_id != Context().run_id
    assert Context(run_id="r7").run_id == "r7"


def test_without_a_signal_it_is_never_aborted_and_without_a_sink_events_go_nowhere():
    ctx = Context()
    assert not ctx.signal.aborted
    assert not ctx.has_listener
    ctx.progress("nobody hears")


def test_signal_and_deadline_fold_into_one(clock: FakeClock):
    controller = AbortController()
    ctx = Context(signal=controller.signal, timeout=5)
    assert ctx.signal.remaining() == 5
    clock.advance(5)
    assert ctx.signal.reason is not None
    assert ctx.signal.reason.kind == "deadline"
    assert ctx.signal.reason.origin is not None
    assert ctx.signal.reason.origin.startswith(__file__)
    assert not controller.signal.aborted


def test_a_wrong_timeout_is_refused_by_name():
    with pytest.raises(ValueError, match="timeout must be"):
        Context(timeout=-1)


def test_behind_a_closed_fence_events_are_dropped_and_said_once(caplog: pytest.LogCaptureFixture):
    events: list[Event] = []
    ctx = Context("run", signal=AbortSignal.already("stop"), emit=events.append, run_id="r1")
    revocation = ctx.new_revocation()
    leaf = ctx.child("tool", revocation=revocation)
    deeper = leaf.child("part")
    nested = leaf.child("nested", revocation=leaf.new_revocation())
    leaf.progress("before")
    revocation.close()
    for late in (leaf, deeper):
        late.progress("late")
    with pytest.raises(AbortError):
        leaf.raise_if_abandoned("leaf()")
    with pytest.raises(AbortError):
        deeper.on_exit(print)
    assert [event.message for event in events if isinstance(event, ProgressMade)] == ["before"]
    (record,) = [r for r in caplog.records if "abandoned" in r.getMessage()]
    assert record.__dict__["run_id"] == "r1"
    assert record.__dict__["operation"] == "run/tool"
    nested.progress("late too")
    assert len(events) == 1
    ctx.progress("the run itself goes on")
    assert len(events) == 2


async def test_events_of_a_part_in_a_thread_arrive_in_the_loops_own_thread():
    threads: list[int] = []
    ctx = Context("run", emit=lambda event: threads.append(threading.get_ident()))
    leaf = ctx.child("tool", loop=asyncio.get_running_loop())
    await asyncio.to_thread(leaf.progress, "from a thread")
    assert threads == [threading.get_ident()]


async def test_a_context_that_travels_keeps_its_name_and_finds_the_signal_that_is_there():
    controller = AbortController()
    text = pickle.dumps(Context("run", run_id="r9", emit=print).child("tool"))
    with Guard(controller.signal):
        arrived = pickle.loads(text)
    assert (arrived.run_id, arrived.path, arrived.signal) == ("r9", ("run", "tool"), controller.signal)
    assert not arrived.has_listener
