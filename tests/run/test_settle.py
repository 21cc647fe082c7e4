"""Settle: the one place where exceptions become outcomes. What decides is the signal, never an exception's name."""

import asyncio
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal
from safepoint.events import CleanupFailed, Event, RunEnded, RunStarted
from safepoint.run import Aborted, Completed, Context, Failed, TimedOut, settle
from safepoint.testing import FakeClock
from safepoint.testing import drain_ready_tasks as let_settle


async def forever(ctx: Context, value: object) -> None:
    await ctx.signal.run(asyncio.get_running_loop().create_future())


async def double(ctx: Context, value: int) -> int:
    return 2 * value


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def test_a_value_is_completed(clock: FakeClock):
    events: list[Event] = []
    outcome = await settle(Context(emit=events.append), double, 21)
    assert outcome == Completed(42, started_at=clock.time(), finished_at=clock.time())
    assert kinds(events) == ["run_started", "run_ended"]
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "completed"


async def test_a_stop_is_aborted_with_its_reason_and_a_receipt():
    controller = AbortController()
    asyncio.get_running_loop().call_soon(controller.abort, "stop")
    outcome = await settle(Context(signal=controller.signal), forever, None)
    assert isinstance(outcome, Aborted)
    assert outcome.reason is controller.signal.reason
    assert outcome.receipt.reason is controller.signal.reason


async def test_a_deadline_is_timed_out(clock: FakeClock):
    ctx = Context(timeout=5)
    asyncio.get_running_loop().call_soon(clock.advance, 5)
    outcome = await settle(ctx, forever, None)
    assert isinstance(outcome, TimedOut)
    assert outcome.reason.kind == "deadline"
    assert outcome.finished_at == clock.time() == outcome.started_at + 5


@pytest.mark.parametrize(
    "private",
    [
        AbortError(AbortReason("user", "mine")),
        asyncio.CancelledError("mine"),
        TimeoutError("mine"),
        LookupError("mine"),
        ExceptionGroup("mine", [ValueError()]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_without_a_stop_every_error_is_a_failure_whatever_it_is_called(private: BaseException):
    async def work(ctx: Context, value: object) -> None:
        raise private

    outcome = await settle(Context(signal=AbortController().signal), work, None)
    assert isinstance(outcome, Failed)
    assert outcome.error is private


@pytest.mark.parametrize("error", [LookupError, TimeoutError, asyncio.CancelledError], ids=lambda kind: kind.__name__)
async def test_a_stop_plus_any_error_is_aborted(error: type[BaseException]):
    controller = AbortController()

    async def work(ctx: Context, value: object) -> None:
        controller.abort("stop")
        raise error("ordinary")

    outcome = await settle(Context(signal=controller.signal), work, None)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "stop"


async def test_a_stop_plus_a_value_is_aborted_and_the_value_is_kept():
    controller = AbortController()

    async def work(ctx: Context, value: object) -> str:
        controller.abort("stop")
        return "half"

    outcome: Any = await settle(Context(signal=controller.signal), work, None)
    assert isinstance(outcome, Aborted)
    assert outcome.partial == "half"


async def test_the_partial_of_an_abort_error_is_kept():
    controller = AbortController()

    async def work(ctx: Context, value: object) -> None:
        controller.abort()
        raise AbortError(AbortReason(), "so far")

    outcome: Any = await settle(Context(signal=controller.signal), work, None)
    assert outcome.partial == "so far"


async def test_what_work_keeps_in_its_context_is_the_partial_of_the_run():
    async def work(ctx: Context, value: object) -> None:
        error = ValueError("broken")
        ctx.child("part").keep_partial(error, "so far")
        raise error

    outcome: Any = await settle(Context(), work, None)
    assert isinstance(outcome, Failed)
    assert outcome.partial == "so far"
    assert not hasattr(outcome.error, "partial"), "an error of the user's code is not written to"


async def test_the_partial_of_another_error_is_not_that_of_the_run():
    async def work(ctx: Context, value: object) -> None:
        ctx.keep_partial(ValueError("handled"), "so far")
        raise KeyError("unrelated")

    outcome: Any = await settle(Context(), work, None)
    assert isinstance(outcome, Failed)
    assert outcome.partial is None


async def test_an_attribute_of_an_error_that_is_named_partial_is_not_that_of_the_run():
    async def work(ctx: Context, value: object) -> None:
        raise asyncio.IncompleteReadError(b"abc", 10)

    outcome: Any = await settle(Context(), work, None)
    assert isinstance(outcome, Failed)
    assert outcome.partial is None


async def test_a_signal_that_is_aborted_already_means_no_work_and_no_event_but_the_terminal_one():
    events: list[Event] = []

    async def work(ctx: Context, value: object) -> None:
        raise AssertionError("must not begin")

    outcome = await settle(Context(signal=AbortSignal.already("early"), emit=events.append), work, None)
    assert isinstance(outcome, Aborted)
    assert kinds(events) == ["run_ended"]


async def test_an_outer_cancellation_passes_through_untouched():
    events: list[Event] = []
    task = asyncio.ensure_future(settle(Context(emit=events.append), forever, None))
    await let_settle()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert kinds(events) == ["run_started", "run_ended"]


async def test_an_outer_cancellation_in_the_tick_of_a_stop_still_passes_through():
    controller = AbortController()
    task = asyncio.ensure_future(settle(Context(signal=controller.signal), forever, None))
    await let_settle()
    controller.abort()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_keyboard_interrupt_is_not_made_an_outcome():
    class Mine(KeyboardInterrupt):
        pass

    async def work(ctx: Context, value: object) -> None:
        raise Mine

    with pytest.raises(Mine):
        await settle(Context(), work, None)


async def test_user_stop_and_deadline_in_one_instant_give_the_user(clock: FakeClock):
    controller = AbortController()
    ctx = Context(signal=controller.signal, timeout=5)

    def both() -> None:
        clock._now += 5  # the time has come, its timer has not fired yet
        controller.abort("user")

    asyncio.get_running_loop().call_soon(both)
    outcome = await settle(ctx, forever, None)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "user"


@pytest.mark.parametrize("end", ["value", "error", "stop", "cancel"])
async def test_clean_ups_run_on_every_path_last_in_first_out(end: str):
    controller = AbortController()
    order: list[str] = []

    async def second() -> None:
        await asyncio.sleep(0)
        order.append("second")

    async def work(ctx: Context, value: str) -> None:
        ctx.on_exit(lambda: order.append("first"))
        ctx.on_exit(second)
        if value == "error":
            raise LookupError
        if value != "value":
            await forever(ctx, None)

    task = asyncio.ensure_future(settle(Context(signal=controller.signal), work, end))
    await let_settle()
    if end == "stop":
        controller.abort()
    if end == "cancel":
        task.cancel()
    await asyncio.wait([task])
    assert order == ["second", "first"]


async def test_a_clean_up_is_shielded_from_the_abort_that_ends_the_run():
    controller = AbortController()
    cleaned: list[bool] = []

    async def cleanup() -> None:
        await let_settle()
        cleaned.append(True)

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(cleanup)
        controller.abort()

    await settle(Context(signal=controller.signal), work, None)
    assert cleaned == [True]


async def test_a_clean_up_that_hangs_or_fails_is_bounded_and_becomes_a_warning(clock: FakeClock):
    events: list[Event] = []
    controller = AbortController()

    async def hangs() -> None:
        asyncio.get_running_loop().call_soon(clock.advance, 60)
        await asyncio.get_running_loop().create_future()

    def fails() -> None:
        raise LookupError("no")

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(hangs)
        ctx.on_exit(fails)
        controller.abort()

    outcome = await settle(Context(signal=controller.signal, emit=events.append), work, None)
    assert isinstance(outcome, Aborted)
    failed, hung = outcome.receipt.warnings
    assert "fails raised LookupError: no" in failed
    assert "hangs took too long" in hung
    assert len([event for event in events if isinstance(event, CleanupFailed)]) == 2
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)


async def test_sys_exit_in_a_clean_up_becomes_a_warning_too():
    def leaves() -> None:
        raise SystemExit(4)

    async def leaves_later() -> None:
        await asyncio.sleep(0)
        raise SystemExit(5)

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(leaves)
        ctx.on_exit(leaves_later)
        raise ValueError("to get a receipt")

    outcome = await settle(Context(), work, None)
    assert isinstance(outcome, Failed)
    later, first = outcome.receipt.warnings
    assert later.endswith("leaves_later raised SystemExit: 5")
    assert first.endswith("leaves raised SystemExit: 4")


async def test_an_outer_cancellation_in_a_clean_up_lets_the_others_run_and_then_passes_through():
    events: list[Event] = []
    order: list[str] = []

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(lambda: order.append("first"))
        ctx.on_exit(hangs)

    async def hangs() -> None:
        order.append("hangs")
        await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(settle(Context(emit=events.append), work, None))
    await let_settle()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert order == ["hangs", "first"]
    assert kinds(events) == ["run_started", "cleanup_failed", "run_ended"]
