"""Retry: owns its sleep, wakes at once, starts nothing after an abort, keeps no state."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal, Guard
from safepoint.errors import UsageError
from safepoint.events import Event, RetryScheduled
from safepoint.run import Context, Retry, StopAt, StopRequest
from safepoint.testing import FakeClock, drain_ready_tasks

STEADY = Retry(attempts=3, delay=1, factor=2, jitter=0)


class Flaky:
    """Fails `times` times, then gives a value; remembers when it was called."""

    def __init__(self, times: int, clock: FakeClock, error: Exception | None = None) -> None:
        self.times = times
        self.clock = clock
        self.error = error or ConnectionError("down")
        self.calls: list[float] = []

    async def __call__(self) -> str:
        self.calls.append(self.clock.monotonic() - 1000)
        if len(self.calls) <= self.times:
            raise self.error
        return "value"


async def test_the_value_of_the_first_attempt_that_succeeds_with_growing_pauses(clock: FakeClock):
    flaky = Flaky(2, clock)
    task = asyncio.ensure_future(STEADY.run(flaky))
    await clock.elapse(10)
    assert await task == "value"
    assert flaky.calls == [0, 1, 3]


async def test_the_last_error_comes_out_when_the_attempts_are_used_up(clock: FakeClock):
    flaky = Flaky(9, clock)
    task = asyncio.ensure_future(STEADY.run(flaky))
    await clock.elapse(100)
    with pytest.raises(ConnectionError, match="down"):
        await task
    assert len(flaky.calls) == 3


async def test_an_abort_in_the_pause_wakes_it_at_once_and_nothing_starts_afterwards(clock: FakeClock):
    controller, flaky = AbortController(), Flaky(9, clock)
    task = asyncio.ensure_future(STEADY.run(flaky, signal=controller.signal))
    await drain_ready_tasks()
    controller.abort("stop")
    with pytest.raises(AbortError, match="stop"):
        await task
    await clock.elapse(30)  # many times the pause
    assert flaky.calls == [0]
    assert clock.pending == 0
    assert controller.signal.observers == 0


async def test_an_abort_during_an_attempt_is_never_retried_whatever_error_came_with_it(clock: FakeClock):
    controller = AbortController()
    calls = []

    async def attempt() -> None:
        calls.append(1)
        controller.abort("stop")
        raise ConnectionError("ordinary")

    with pytest.raises(ConnectionError):
        await STEADY.run(attempt, signal=controller.signal)
    await clock.elapse(30)
    assert calls == [1]


async def test_an_aborted_signal_means_no_attempt_at_all(clock: FakeClock):
    flaky = Flaky(0, clock)
    with pytest.raises(AbortError):
        await STEADY.run(flaky, signal=AbortSignal.already())
    assert flaky.calls == []


async def test_without_a_signal_the_ambient_one_counts(clock: FakeClock):
    controller, flaky = AbortController(), Flaky(9, clock)

    async def guarded() -> None:
        with Guard(controller.signal):
            await STEADY.run(flaky)

    task = asyncio.ensure_future(guarded())
    await drain_ready_tasks()
    controller.abort()
    with pytest.raises(AbortError):
        await task
    assert flaky.calls == [0]


async def test_one_policy_serves_fifty_calls_and_the_abort_of_one_leaves_the_others_alone(clock: FakeClock):
    controllers = [AbortController() for _ in range(50)]
    flakies = [Flaky(2, clock) for _ in range(50)]
    tasks = [asyncio.ensure_future(STEADY.run(f, signal=c.signal)) for f, c in zip(flakies, controllers, strict=True)]
    await clock.elapse(0.5)
    controllers[17].abort("only this one")
    await clock.elapse(10)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(17), AbortError)
    assert results == ["value"] * 49
    assert [flaky.calls for flaky in flakies] == [[0] if n == 17 else [0, 1, 3] for n in range(50)]


async def test_only_the_errors_worth_it_are_retried(clock: FakeClock):
    for on in (ConnectionError, (ConnectionError, OSError), lambda error: isinstance(error, ConnectionError)):
        retry = Retry(attempts=2, delay=0, jitter=0, on=on)
        assert await retry.run(Flaky(1, clock)) == "value"
        other = Flaky(1, clock, LookupError("no"))
        with pytest.raises(LookupError):
            await retry.run(other)
        assert len(other.calls) == 1


async def test_a_pause_that_the_server_asks_for_replaces_a_shorter_one(clock: FakeClock):
    class Busy(Exception):
        retry_after = 7.0

    flaky = Flaky(1, clock, Busy())
    task = asyncio.ensure_future(STEADY.run(flaky))
    await clock.elapse(20)
    await task
    assert flaky.calls == [0, 7]


def asking(wait: Any) -> Exception:
    error = ConnectionError("busy")
    error.retry_after = wait  # type: ignore[attr-defined]  # as clients of servers do
    return error


@pytest.mark.parametrize(
    "wait",
    [
        7,
        7.0,
        "7",
        " 7 ",
        timedelta(seconds=7),
        Decimal(7),
        "Tue, 14 Nov 2023 22:30:07 GMT",
        "Tue, 14 Nov 2023 22:30:07",
    ],
    ids=repr,
)
async def test_a_pause_may_be_a_number_a_timedelta_or_the_text_of_a_header(clock: FakeClock, wait: object):
    clock.advance(datetime(2023, 11, 14, 22, 30, tzinfo=UTC).timestamp() - clock.time())
    start = clock.monotonic() - 1000
    flaky = Flaky(1, clock, asking(wait))
    task = asyncio.ensure_future(STEADY.run(flaky))
    await clock.elapse(20)
    assert await task == "value"
    assert flaky.calls == [start, start + 7]


@pytest.mark.parametrize(
    "wait",
    [None, True, "soon", "", "nan", float("inf"), object(), [], "Tue, 99 Nov 2023", 10**400],
    ids=lambda value: f"{value!r:.20}" if type(value) is not object else "object",
)
async def test_a_pause_that_cannot_be_read_is_ignored(clock: FakeClock, wait: object):
    flaky = Flaky(9, clock, error := asking(wait))
    task = asyncio.ensure_future(STEADY.run(flaky))
    await clock.elapse(20)
    with pytest.raises(ConnectionError) as caught:
        await task
    assert caught.value is error, "the error itself, and not what went wrong when it was read"
    assert flaky.calls == [0, 1, 3]


async def test_a_function_that_fails_to_read_the_pause_does_not_hide_the_error(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    def read(error: Exception) -> float:
        raise LookupError("no such header")

    task = asyncio.ensure_future(Retry(attempts=2, delay=1, jitter=0, retry_after=read).run(Flaky(9, clock)))
    await clock.elapse(20)
    with pytest.raises(ConnectionError, match="down"):
        await task
    assert "the time to wait could not be read from a ConnectionError" in caplog.text


@pytest.mark.parametrize("wait", [86400, "86400", timedelta(days=1), 30.5])
async def test_a_pause_beyond_the_longest_one_is_not_waited_for(clock: FakeClock, wait: Any):
    events: list[Event] = []
    flaky = Flaky(9, clock, error := asking(wait))
    before = str(error)
    with pytest.raises(ConnectionError) as caught:
        await Retry(attempts=3, jitter=0).run(flaky, ctx=Context("job", emit=events.append))
    assert caught.value is error
    seconds = "30.5" if wait == 30.5 else "86400"
    assert str(error) == f"{before}; it asks to wait {seconds} s, longer than max_delay=30"
    assert flaky.calls == [0]
    assert events == []
    assert clock.pending == 0


async def test_a_pause_of_just_the_longest_one_is_waited_for(clock: FakeClock):
    flaky = Flaky(1, clock, error := asking(30))
    task = asyncio.ensure_future(Retry(jitter=0).run(flaky))
    await clock.elapse(30)
    assert await task == "value"
    assert "max_delay" not in str(error)


async def test_an_error_that_makes_up_its_own_text_gets_a_note_about_the_pause(clock: FakeClock):
    class Busy(Exception):
        retry_after = 86400

        def __str__(self) -> str:
            return f"busy ({len(self.args)})"

    with pytest.raises(Busy, match=r"busy \(2\)") as caught:
        await Retry(attempts=3).run(Flaky(9, clock, Busy("a", "b")))
    assert caught.value.__notes__ == ["it asks to wait 86400 s, longer than max_delay=30"]


async def test_the_text_of_an_error_that_has_none_does_not_keep_it_from_being_tried_again(clock: FakeClock):
    class Wordless(Exception):
        def __str__(self) -> str:
            raise LookupError("no words")

    events: list[Event] = []
    retry = Retry(attempts=2, delay=0)
    assert await retry.run(Flaky(1, clock, Wordless()), ctx=Context("job", emit=events.append)) == "value"
    (event,) = events
    assert isinstance(event, RetryScheduled)
    assert event.error == "Wordless: (its text cannot be read: LookupError)"


async def test_each_retry_is_told(clock: FakeClock):
    events: list[Event] = []
    task = asyncio.ensure_future(STEADY.run(Flaky(1, clock), ctx=Context("job", emit=events.append)))
    await clock.elapse(5)
    await task
    (event,) = events
    assert isinstance(event, RetryScheduled)
    assert (event.attempt, event.delay, event.error, event.path) == (2, 1, "ConnectionError: down", ("job",))


def test_pauses_grow_to_their_limit_and_jitter_only_shortens_them():
    retry = Retry(attempts=9, delay=1, factor=3, max_delay=5, jitter=0.5)
    for attempt, full in ((1, 1), (2, 3), (3, 5), (4, 5)):
        pauses = [retry.pause(attempt, ValueError()) for _ in range(200)]
        assert full / 2 <= min(pauses) < max(pauses) <= full


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"delay": -1}, {"jitter": 2}, {"max_delay": -1}])
def test_wrong_numbers_are_refused_by_name(wrong: dict[str, float]):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Retry(**wrong)  # type: ignore[arg-type]


async def test_a_stop_that_was_honoured_at_a_safe_point_is_not_tried_again():
    controller = AbortController()
    ctx = Context(controller=controller)
    calls: list[int] = []

    async def work() -> None:
        calls.append(1)
        ctx.stop.join(StopRequest(StopAt.SAFE_POINT, reason=AbortReason("user", "enough")))
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.safe_point())

    with pytest.raises(BaseExceptionGroup) as raised:
        await Retry(attempts=3, delay=0).run(work, ctx=ctx)
    assert calls == [1]
    assert ctx.stop.caused(raised.value)
