"""abort_everywhere: clean scenarios pass, every planted defect is found and named, and the report says where."""

import asyncio
from types import SimpleNamespace

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, current_clock
from safepoint.errors import UsageError
from safepoint.testing import (
    DEFAULT_LAWS,
    MODES,
    FakeClock,
    Ignore,
    Mode,
    Point,
    Progress,
    Violation,
    abort_everywhere,
    point,
)
from tests.conftest import counts
from tests.testing import clean


def at(violation: Violation) -> Point:
    assert violation.point is not None
    return violation.point


async def two_steps(probe):
    await probe.signal.sleep(1)
    await probe.signal.sleep(2)
    return "done"


@pytest.mark.parametrize("scenario", clean.PURE, ids=lambda scenario: scenario.__name__)
def test_a_clean_scenario_breaks_no_law_and_every_point_is_reached(scenario):
    report = abort_everywhere(scenario, clock=FakeClock)
    assert report.violations == ()
    assert report.not_reached == ()
    assert report.stable
    assert report.aborted == sum(len(point.modes) for point in report.points) > 0


@pytest.mark.parametrize("scenario", clean.IMPURE, ids=lambda scenario: scenario.__name__)
def test_a_clean_scenario_with_threads_processes_or_sockets_breaks_no_law(scenario):
    report = abort_everywhere(scenario)
    assert report.violations == ()
    assert report.aborted > 0


def test_a_scenario_of_anyio_tasks_breaks_no_law():
    anyio = pytest.importorskip("anyio")

    async def scenario(probe):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1)  # real time: none, the loop's clock is fake
            with anyio.move_on_after(5):
                await probe.signal.run(anyio.sleep(2))  # real time: none, the loop's clock is fake
        return "done"

    abort_everywhere(scenario, clock=FakeClock)


def test_the_failure_report_reads_like_this():
    async def fetch(probe):
        await probe.signal.sleep(1)

    async def scenario(probe):
        try:
            await fetch(probe)
        except AbortError:
            raise RuntimeError("the tool broke") from None

    here = f"tests/testing/{__name__.rpartition('.')[2]}.py"
    first = fetch.__code__.co_firstlineno
    with pytest.raises(AssertionError) as failure:
        abort_everywhere(scenario, clock=FakeClock)
    lines = str(failure.value).splitlines()
    assert lines[0] == "abort_everywhere(scenario): 1 points, 7 runs, 4 of them aborted, 3 violations, 0 not reached"
    assert lines[2] == (
        "1. outcome_is_the_stop: an abort is never reported as failed:"
        f" failed: RuntimeError('the tool broke') at {here}:{first + 7}"
    )
    assert lines[3] == f"   point 1 at {here}:{first + 1} (await in task main), mode abort, inside, twice"
    name = "test_the_failure_report_reads_like_this.<locals>"
    assert lines[4:6] == [f"     {here}:{first + 5} {name}.scenario", f"     {here}:{first + 1} {name}.fetch"]
    assert lines[-1] == '   alone: abort_everywhere(scenario, only=(1, "abort"))'


def test_only_one_run_is_done_alone():
    struck = []

    async def scenario(probe):
        try:
            return await two_steps(probe)
        except AbortError as error:
            struck.append(str(error.reason))
            raise

    report = abort_everywhere(scenario, clock=FakeClock, only=(2, "inside"))
    assert report.aborted == len(struck) == 1
    assert "point 2" in struck[0]


@pytest.mark.parametrize("only", [(0, "abort"), (3, "abort"), (-1, "inside")])
def test_a_point_that_does_not_exist_is_refused(only):
    with pytest.raises(UsageError, match="there are 2 points"):
        abort_everywhere(two_steps, clock=FakeClock, only=only)


def test_an_event_cannot_be_aborted_from_outside():
    async def scenario(probe):
        probe.event("something happened")
        await probe.signal.sleep(1)

    with pytest.raises(UsageError, match="outside of an await only 'inside' and 'twice'"):
        abort_everywhere(scenario, clock=FakeClock, only=(1, "cancel"))


@pytest.mark.parametrize("wrong", [{"modes": ["kill"]}, {"only": (1, "kill")}])
def test_an_unknown_mode_is_refused(wrong):
    with pytest.raises(UsageError, match="modes must be of abort, inside, twice, cancel, not 'kill'"):
        abort_everywhere(two_steps, **wrong)


async def test_inside_a_running_loop_it_is_refused_with_advice():
    with pytest.raises(UsageError, match="call it from a plain test function"):
        abort_everywhere(two_steps)


def test_a_scenario_that_never_waits_is_refused():
    async def scenario(probe):
        return 1

    with pytest.raises(UsageError, match="no point at which to abort"):
        abort_everywhere(scenario)


def test_a_scenario_that_does_not_complete_by_itself_is_reported_and_not_aborted():
    async def scenario(probe):
        await asyncio.sleep(0)
        raise ValueError("always")

    with pytest.raises(AssertionError, match="without any abort it does not complete: failed: ValueError"):
        abort_everywhere(scenario)
    report = abort_everywhere(scenario, check=False)
    assert report.aborted == 0
    assert report.runs == 1


def test_a_leak_without_any_abort_is_reported_once():
    async def scenario(probe):
        await probe.signal.sleep(1)
        probe.signal.add_listener(lambda: None)

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert [(found.point, found.law) for found in report.violations] == [(None, "no_listener_left")]
    assert "in a clean run, with no abort at all" in str(report)


def test_what_only_the_first_run_leaves_is_no_leak():
    cache: list[object] = []

    async def scenario(probe):
        if not cache:
            cache.append(asyncio.get_running_loop().call_later(1000, print))
        await probe.signal.sleep(1)

    abort_everywhere(scenario, clock=FakeClock)


def test_each_mode_does_what_it_says():
    story: list[object] = []

    async def scenario(probe):
        signal = probe.signal
        with signal.add_listener(lambda: story.append(asyncio.current_task() is not None)):
            try:
                await signal.sleep(1)
                await signal.sleep(1)
            except AbortError:
                await asyncio.sleep(0)
                assert not probe.abort("too late")
                raise
            except asyncio.CancelledError:
                story.append("cancelled")
                raise

    told: dict[Mode, list[object]] = {"abort": [False], "inside": [True], "twice": [False], "cancel": ["cancelled"]}
    for mode, expected in told.items():
        story.clear()
        abort_everywhere(scenario, clock=FakeClock, only=(1, mode))
        assert story == expected


def test_the_second_abort_comes_at_the_next_point_and_changes_nothing():
    calls = []

    async def scenario(probe):
        abort = probe.abort

        def noted(reason):
            calls.append(str(reason))
            return abort(reason)

        probe.abort = noted
        try:
            await probe.signal.sleep(1)
        finally:
            await asyncio.sleep(0)

    abort_everywhere(scenario, clock=FakeClock, only=(1, "twice"))
    assert len(calls) == 2
    assert calls[1] == "abort_everywhere, the second abort"


def test_events_chunks_and_markers_are_points_too():
    async def numbers():
        for number in range(2):
            yield number

    async def scenario(probe):
        point("begin")
        async for _ in probe.signal.stream(numbers()):
            probe.event("received")
        return "done"

    report = abort_everywhere(scenario, clock=FakeClock, laws=[], modes=MODES)
    assert [each.what for each in report.points] == ["begin", "chunk", "event", "chunk", "event"]
    assert report.aborted == 10


def test_every_task_has_points_and_its_role_is_its_name_or_its_function():
    async def child():
        await asyncio.sleep(0)

    async def scenario(probe):
        with probe.signal.guard():
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                group.create_task(child())
                group.create_task(child(), name="named")

    report = abort_everywhere(scenario)
    name = child.__qualname__
    assert [each.task for each in report.points] == ["main", name, f"{name}#2", "named"]


def test_a_scenario_may_take_a_plain_controller():
    async def scenario(controller: AbortController) -> str:
        await controller.signal.sleep(1)
        return "done"

    assert abort_everywhere(scenario, clock=FakeClock).violations == ()


@pytest.mark.parametrize("wrapped", [lambda outcome: outcome, lambda outcome: SimpleNamespace(outcome=outcome)])
def test_outcomes_are_understood_as_well_as_exceptions(wrapped):
    async def scenario(probe):
        try:
            await probe.signal.sleep(1)
        except AbortError as error:
            return wrapped(SimpleNamespace(status="aborted", reason=error.reason))
        return wrapped(SimpleNamespace(status="completed", value=1))

    abort_everywhere(scenario, clock=FakeClock)


def test_an_outcome_that_says_failed_is_a_violation():
    async def scenario(probe):
        try:
            await probe.signal.sleep(1)
        except AbortError as error:
            return SimpleNamespace(status="failed", error=error)
        return SimpleNamespace(status="completed", value=1)

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert {(found.law, found.mode) for found in report.violations} == {
        ("outcome_is_the_stop", mode) for mode in ("abort", "inside", "twice")
    }


def test_a_law_of_ones_own_is_checked_and_may_assert():
    def nothing_is_sent_twice(run):
        assert len(run.effects) == len({effect.what for effect in run.effects}), "sent twice"

    async def scenario(probe):
        for _ in range(2):
            probe.signal.raise_if_aborted()
            probe.record("mail")
            await probe.signal.sleep(1)

    report = abort_everywhere(scenario, clock=FakeClock, laws=[*DEFAULT_LAWS, nothing_is_sent_twice], check=False)
    (found,) = report.violations
    assert found.law == "nothing_is_sent_twice"
    assert found.message.startswith("sent twice")


def test_a_point_that_does_not_come_up_again_is_not_reached_and_not_passed():
    runs: list[None] = []

    async def scenario(probe):
        runs.append(None)
        if len(runs) <= 2:
            await probe.signal.sleep(1)
        await probe.signal.sleep(2)

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert len(report.points) == 2
    assert {(each.number, mode) for each, mode in report.not_reached} == {(1, mode) for mode in MODES}
    assert report.aborted == 4
    assert "not reached: point 1, 'abort'" in str(report)


def test_a_report_in_which_nothing_was_reached_does_not_pass():
    runs: list[None] = []

    async def scenario(probe):
        runs.append(None)
        if len(runs) <= 2:
            await probe.signal.sleep(1)

    with pytest.raises(AssertionError, match="nothing was tested"):
        abort_everywhere(scenario, clock=FakeClock)


def test_two_clean_runs_with_different_points_are_said_to_differ():
    runs: list[None] = []

    async def scenario(probe):
        runs.append(None)
        for _ in range(1 if len(runs) == 1 else 2):
            await probe.signal.sleep(1)

    report = abort_everywhere(scenario, clock=FakeClock)
    assert not report.stable
    assert "two clean runs had different points" in str(report)


def test_what_makes_the_next_run_fail_is_laid_to_the_run_before_it():
    poison: list[bool] = []

    async def scenario(probe):
        if poison:
            raise RuntimeError("poisoned")
        await probe.signal.sleep(1)
        try:
            await probe.signal.sleep(2)
        except AbortError:
            poison.append(True)
            raise

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert {(at(found).number, found.mode, found.law) for found in report.violations} == {(2, "abort", "works_again")}
    assert report.unfinished


def test_what_makes_the_end_of_the_next_run_fail_is_laid_to_its_point():
    poison: list[bool] = []

    async def scenario(probe):
        try:
            await probe.signal.sleep(1)
        except AbortError:
            poison.append(True)
            raise
        if poison:
            raise RuntimeError("poisoned")

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert {(at(found).number, found.law) for found in report.violations} == {(1, "works_again")}


def test_a_real_hang_is_ended_and_shows_where_every_task_waits():
    async def never():
        await asyncio.Event().wait()

    async def scenario(probe):
        async with asyncio.TaskGroup() as group:
            group.create_task(never(), name="sleeper")
            await asyncio.sleep(0)

    report = abort_everywhere(scenario, seconds=0.1, check=False)
    (hang,) = report.violations
    assert hang.law == "ends"
    assert "it did not end within 0.1 s" in hang.message
    assert "task sleeper" in hang.message
    assert f"{never.__qualname__}" in hang.message
    assert "task main" in hang.message


def test_a_scenario_that_spins_for_ever_is_ended():
    async def scenario(probe):
        while True:
            await asyncio.sleep(0)

    report = abort_everywhere(scenario, seconds=0.1, check=False)
    assert [found.law for found in report.violations] == ["ends"]


def test_fake_time_jumps_over_sleeps_timeouts_and_deadlines():
    async def scenario(probe):
        began = current_clock().monotonic()
        await asyncio.sleep(1000)  # real time: none, the loop's clock is fake
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        with pytest.raises(AbortError):
            await AbortSignal.timeout(1000).sleep(5000)
        await probe.signal.sleep(1000)
        return current_clock().monotonic() - began

    assert len(abort_everywhere(scenario, clock=FakeClock).points) == 4


def test_a_long_scenario_is_aborted_at_each_of_its_points():
    length = counts(40, 200)

    async def scenario(probe):
        for _ in range(length):
            await probe.signal.sleep(1)

    report = abort_everywhere(scenario, clock=FakeClock)
    assert len(report.points) == length
    assert report.aborted == 4 * length


def test_a_campaign_whose_time_is_up_before_the_first_abort_tries_nothing():
    with pytest.raises(AssertionError, match="8 not tried"):
        abort_everywhere(two_steps, clock=FakeClock, time_limit=0)
    report = abort_everywhere(two_steps, clock=FakeClock, time_limit=0, check=False)
    assert (report.runs, report.aborted, len(report.not_tried)) == (2, 0, 8)


def test_within_its_time_limit_everything_is_tried():
    report = abort_everywhere(two_steps, clock=FakeClock, time_limit=60)
    assert (report.aborted, report.not_tried, report.unfinished) == (8, (), "")


@pytest.mark.parametrize(("limit", "error"), [(-1, UsageError), ("soon", TypeError), (float("nan"), UsageError)])
def test_a_time_limit_that_is_none_is_refused(limit, error):
    with pytest.raises(error, match="time_limit must be"):
        abort_everywhere(two_steps, time_limit=limit)


def test_progress_is_told_before_the_first_point_and_after_each():
    told: list[Progress] = []
    report = abort_everywhere(two_steps, clock=FakeClock, on_progress=told.append)
    assert [(each.done, each.points) for each in told] == [(0, 2), (1, 2), (2, 2)]
    assert [each.runs for each in told] == [2, 7, report.runs]
    assert told[0].seconds <= told[1].seconds <= told[2].seconds
    assert str(told[1]).startswith("abort_everywhere(two_steps): 1 of 2 points, 7 runs, 0 violations, ")


def test_a_task_that_is_ignored_is_not_counted_and_the_report_says_so():
    async def scenario(probe):
        probe.janitor = asyncio.create_task(asyncio.Event().wait(), name="janitor")
        await probe.signal.sleep(1)

    report = abort_everywhere(scenario, clock=FakeClock, ignore=[Ignore(law="no_task_left", name="janitor")])
    assert report.violations == ()
    assert report.aborted == 8
    assert "not counted: 9, by Ignore(law='no_task_left', name='janitor')" in str(report)
    with pytest.raises(AssertionError, match="a task is left: task janitor"):
        abort_everywhere(scenario, clock=FakeClock, ignore=[Ignore(name="other")])


def test_a_law_may_be_ignored_where_the_abort_comes_at_a_place():
    async def fragile(probe):
        await probe.signal.sleep(1)

    async def scenario(probe):
        try:
            await fragile(probe)
        except AbortError:
            raise RuntimeError("known") from None
        await probe.signal.sleep(1)

    rule = Ignore(law="outcome_is_the_stop", at="*fragile")
    assert abort_everywhere(scenario, clock=FakeClock, ignore=[rule]).ignored == ((rule, 3),)


def test_progress_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="on_progress must be a function of one argument, such as print, not True"):
        abort_everywhere(two_steps, on_progress=True)  # type: ignore[arg-type]
