"""Owns the tests that look inside, beside those of `tests/internal/testing/test_inject.py`.

abort_everywhere: clean scenarios pass, every planted defect is found and named, and the report says where.
"""

import asyncio
from types import SimpleNamespace

import pytest

from safepoint.abort import AbortError
from safepoint.errors import UsageError
from safepoint.testing import (
    DEFAULT_LAWS,
    FakeClock,
    Ignore,
    RunTimings,
    abort_everywhere,
)
from safepoint.testing.inject import everywhere
from safepoint.testing.laws import outcome_is_the_stop, works_again
from tests.testing.planted import DEFECTS, After
from tests.testing.test_inject import at, two_steps

TIMINGS = RunTimings(linger=0.05)


@pytest.mark.parametrize("planted", DEFECTS, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found_and_named_with_its_place(planted):
    after = After()
    with after.todo:
        report = abort_everywhere(planted.make(after), clock=FakeClock, timings=TIMINGS, check=False)
    found = [violation for violation in report.violations if violation.law == planted.law]
    assert planted.says in "\n".join(violation.message for violation in found)
    assert any(planted.place in line for violation in found for line in at(violation).chain)
    with pytest.raises(AssertionError) as failure:
        report.check()
    text = str(failure.value)
    assert f" {planted.law}: " in text
    assert planted.place in text
    assert f'only=({at(found[0]).number}, "{found[0].mode}")' in text


@pytest.mark.parametrize("planted", DEFECTS, ids=lambda planted: planted.name)
def test_a_planted_defect_breaks_no_other_law(planted):
    after = After()
    with after.todo:
        report = abort_everywhere(planted.make(after), clock=FakeClock, timings=TIMINGS, check=False)
    assert {violation.law for violation in report.violations} == {planted.law}


def test_without_that_law_there_is_no_run_without_an_abort_in_between():
    laws = [law for law in DEFAULT_LAWS if law is not works_again]
    assert abort_everywhere(two_steps, clock=FakeClock, laws=laws).runs == 2 + 2 * 4


def test_it_gives_up_when_too_many_runs_hang():
    async def scenario(probe):
        for _ in range(10):
            try:
                await probe.signal.sleep(1)
            except AbortError:
                await asyncio.Event().wait()

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert len(report.violations) == everywhere.HUNG_RUNS
    assert "by hanging" in report.unfinished


def test_it_gives_up_when_too_many_runs_break_laws():
    async def scenario(probe):
        try:
            for _ in range(20):
                await probe.signal.sleep(1)
        except AbortError:
            return

    report = abort_everywhere(scenario, clock=FakeClock, check=False, laws=[outcome_is_the_stop])
    assert len(report.violations) == everywhere.BROKEN_RUNS
    assert report.unfinished


def test_a_campaign_that_reaches_its_time_limit_says_what_it_did_not_try_and_does_not_pass(monkeypatch):
    times = iter(range(1000))
    monkeypatch.setattr(everywhere, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    report = abort_everywhere(two_steps, clock=FakeClock, time_limit=5, check=False)
    assert 0 < report.aborted < 8
    assert report.aborted + len(report.not_tried) == 8
    assert report.violations == ()
    assert report.unfinished == "the time limit of the campaign was reached"
    assert f"{len(report.not_tried)} not tried" in str(report)
    with pytest.raises(AssertionError, match="What was not tried has not passed"):
        report.check()


def test_what_was_done_within_the_time_limit_is_still_checked_for_working_again(monkeypatch):
    times = iter(range(1000))
    monkeypatch.setattr(everywhere, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    broken: list[bool] = []

    async def scenario(probe):
        if broken:
            raise RuntimeError("broken")
        try:
            await two_steps(probe)
        except AbortError:
            broken.append(True)
            raise

    report = abort_everywhere(scenario, clock=FakeClock, time_limit=3, check=False)
    assert {found.law for found in report.violations} == {"works_again"}


def test_what_is_not_tried_because_enough_is_broken_is_said_too():
    async def scenario(probe):
        try:
            for _ in range(20):
                await probe.signal.sleep(1)
        except AbortError:
            return

    report = abort_everywhere(scenario, clock=FakeClock, check=False, laws=[outcome_is_the_stop])
    assert len(report.not_tried) == 80 - report.aborted > 0


def test_a_rule_for_a_law_that_is_not_checked_is_refused():
    with pytest.raises(UsageError, match="there is no such law; the laws are outcome_is_the_stop, ends"):
        abort_everywhere(two_steps, laws=[outcome_is_the_stop], ignore=[Ignore(law="no_tasks")])
