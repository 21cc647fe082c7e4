"""A question to a person: race-free, so that no callback can hang a stop, and withdrawn by an event."""

import asyncio
import threading
from typing import Any

import pytest

from safepoint.abort import AbortError, AbortSignal
from safepoint.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn
from safepoint.run import ask
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.leaves import LeafRig


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)  # real time: a thread has to get somewhere


async def test_the_answer_comes_back_and_everybody_is_told():
    bench = LeafRig()

    async def person(question: str) -> str:
        return f"{question} Yes."

    assert await ask(bench.ctx, "Really?", person, options=("Yes.", "No.")) == "Really? Yes."
    asked, answered = (event for event in bench.events if event.kind.startswith("question"))
    assert isinstance(asked, QuestionAsked)
    assert isinstance(answered, QuestionAnswered)
    assert (asked.text, asked.options, asked.question_id) == ("Really?", ("Yes.", "No."), answered.question_id)
    assert [(e.kind, e.fate) for e in bench.entries()] == [("question", "finished")]


async def test_a_callback_may_take_the_signal_or_not_and_be_sync_or_async():
    bench, signals = LeafRig(), []

    async def with_signal(question: str, *, signal: AbortSignal) -> str:
        signals.append(signal)
        return "async"

    def in_a_thread(question: str, *, signal: AbortSignal) -> str:
        signals.append(signal)
        return "thread"

    assert await ask(bench.ctx, "?", with_signal) == "async"
    assert await ask(bench.ctx, "?", in_a_thread) == "thread"
    assert await ask(bench.ctx, "?", lambda question: with_signal(question, signal=signals[0])) == "async"
    assert not any(signal.aborted for signal in signals)


async def test_a_stop_interrupts_the_callback_and_withdraws_the_question():
    bench, fired = LeafRig(), []

    async def person(question: str, *, signal: AbortSignal) -> str:
        signal.add_listener(lambda: fired.append(True))
        await asyncio.get_running_loop().create_future()
        return "never"

    task = asyncio.ensure_future(ask(bench.ctx, "?", person))
    await drain_ready_tasks()
    bench.controller.abort("stop")
    with pytest.raises(AbortError, match="stop"):
        await task
    assert fired == [True]
    asked = next(event for event in bench.events if isinstance(event, QuestionAsked))
    (withdrawn,) = [event for event in bench.events if isinstance(event, QuestionWithdrawn)]
    assert withdrawn.question_id == asked.question_id
    assert bench.fates() == ["stopped"]


async def test_a_callback_that_ignores_the_stop_cannot_hang_it(clock: FakeClock):
    bench, gate = LeafRig(), asyncio.Event()

    async def deaf(question: str) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass
        return "too late"

    task = asyncio.ensure_future(ask(bench.ctx, "?", deaf))
    await drain_ready_tasks()
    bench.controller.abort()
    await clock.elapse(0.25)
    with pytest.raises(AbortError):
        await task
    assert "question_withdrawn" in bench.kinds()
    gate.set()
    await drain_ready_tasks()
    assert not any(isinstance(event, QuestionAnswered) for event in bench.events)


async def test_a_thread_that_waits_for_a_keyboard_cannot_hang_the_stop():
    bench, gate = LeafRig(), threading.Event()
    begun = threading.Event()

    def keyboard(question: str) -> str:
        begun.set()
        gate.wait(30)
        return "too late"

    task = asyncio.ensure_future(ask(bench.ctx, "?", keyboard))
    await until(begun.is_set)
    bench.controller.abort()
    with pytest.raises(AbortError):
        await task
    assert "question_withdrawn" in bench.kinds()
    gate.set()
    await until(lambda: bench.fates() == ["finished"])


async def test_an_aborted_run_asks_nobody():
    bench = LeafRig()
    bench.controller.abort()
    with pytest.raises(AbortError):
        await ask(bench.ctx, "?", pytest.fail)
    assert bench.events == []


async def test_a_callback_that_fails_withdraws_the_question_and_its_error_comes_out():
    bench = LeafRig()

    async def broken(question: str) -> str:
        raise LookupError("no screen")

    with pytest.raises(LookupError, match="no screen"):
        await ask(bench.ctx, "?", broken)
    assert "question_withdrawn" in bench.kinds()
