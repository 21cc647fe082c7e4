"""The report: one paragraph per breach, the modes together, and what was not tried is said."""

from dataclasses import replace

import pytest

from safepoint.testing import Point, Progress, Report, Violation

POINT = Point(number=3, what="await", task="main", nth=2, file="a.py", line=7, chain=("a.py:4 main", "a.py:7 work"))


GOOD = Report(scenario="download", points=(POINT,), runs=7, aborted=4)


def violation(mode, message="a task is left: x", point=POINT):
    return Violation(point=point, mode=mode, law="no_task_left", message=message)


def report(**changes):
    return Report(**{"scenario": "download", "points": (POINT,), "runs": 7, "aborted": 4, **changes})


def test_a_good_report_is_one_line_and_passes():
    GOOD.check()
    assert str(GOOD) == "abort_everywhere(download): 1 points, 7 runs, 4 of them aborted, 0 violations, 0 not reached"


def test_a_violation_shows_law_point_chain_and_how_to_see_it_alone():
    with pytest.raises(AssertionError) as failure:
        report(violations=(violation("inside"),)).check()
    assert str(failure.value).splitlines()[1:] == [
        "",
        "1. no_task_left: a task is left: x",
        "   point 3 at a.py:7 (await in task main, time 2), mode inside",
        "     a.py:4 main",
        "     a.py:7 work",
        '   alone: abort_everywhere(download, only=(3, "inside"))',
    ]


def test_modes_that_show_the_same_share_a_paragraph():
    text = str(report(violations=(violation("abort"), violation("cancel", "another"), violation("inside"))))
    assert "mode abort, inside\n" in text
    assert "mode cancel\n" in text
    assert "2. no_task_left: another" in text
    assert "3. " not in text


def test_the_same_at_many_points_is_told_in_full_three_times_only():
    points = [replace(POINT, number=number) for number in range(1, 6)]
    lines = str(report(violations=tuple(violation("abort", point=point) for point in points))).splitlines()
    assert len([line for line in lines if line.startswith("   alone: ")]) == 3
    assert lines[-2:] == [
        f"{n}. no_task_left: the same at point {n} at a.py:7 (await in task main, time 2), mode abort" for n in (4, 5)
    ]


def test_a_message_of_several_lines_is_indented():
    assert "1. no_task_left: first\n     second\n" in str(report(violations=(violation("abort", "first\nsecond"),)))


def test_an_empty_message_does_no_harm():
    assert "1. no_task_left: \n" in str(report(violations=(violation("abort", ""),)))


def test_a_breach_of_a_clean_run_has_no_point():
    text = str(report(violations=(violation(None, point=None),)))
    assert text.endswith("1. no_task_left: a task is left: x\n   in a clean run, with no abort at all")


def test_what_was_not_tried_is_said():
    text = str(report(not_reached=((POINT, "abort"),), stable=False, unfinished="enough"))
    assert "1 not reached" in text
    assert "not reached: point 3, 'abort': a.py:7 (await in task main, time 2)" in text
    assert "two clean runs had different points" in text
    assert "ended early: enough" in text


def test_points_not_reached_do_not_fail_unless_there_are_no_others():
    report(not_reached=((POINT, "abort"),)).check()
    with pytest.raises(AssertionError, match="nothing was tested"):
        report(aborted=0, not_reached=((POINT, "abort"),)).check()


def test_what_was_not_tried_has_not_passed():
    unfinished = report(not_tried=((POINT, "twice"), (POINT, "cancel")), unfinished="the time was up")
    with pytest.raises(AssertionError) as failure:
        unfinished.check()
    lines = str(failure.value).splitlines()
    assert lines[0].endswith("0 violations, 0 not reached, 2 not tried")
    assert "  not tried: 2 aborts, from point 3, 'twice': a.py:7 (await in task main, time 2)" in lines
    assert lines[-1] == "What was not tried has not passed: give it more time, or fewer modes."


def test_progress_is_one_line():
    progress = Progress(scenario="download", done=3, points=21, runs=17, violations=1, seconds=1.26)
    assert str(progress) == "abort_everywhere(download): 3 of 21 points, 17 runs, 1 violations, 1.3 s"
