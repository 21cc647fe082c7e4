"""Owns the tests that look inside, beside those of `tests/internal/testing/test_inject_ignore.py`.

ignore=: what matches is not counted and not hidden either, and a rule that cannot be meant is refused.
"""

import pytest

from safepoint.errors import UsageError
from safepoint.testing import DEFAULT_LAWS, Ignore, Point, RecordedRun, RunEnding
from safepoint.testing.inject.left import Leftover
from safepoint.testing.inject.report import LAW_OF, Ignored

POINT = Point(
    number=1, what="await", task="main", nth=1, file="app.py", line=7, chain=("app.py:7 main", "asyncio/x.py:9 serve")
)


TASK = Leftover("task serve\n  app.py:3 serve", "serve", "app.py:3 serve")


THREAD = Leftover("exporter-1 at lib/otel.py:50", "exporter-1", "lib/otel.py:50")


def run(**left):
    return RecordedRun(point=POINT, mode="abort", reason=None, ending=RunEnding("completed"), **left)


@pytest.mark.parametrize(
    "rule",
    [
        Ignore(law="no_task_left"),
        Ignore(law="no_*"),
        Ignore(name="serve"),
        Ignore(name="s?rv*"),
        Ignore(place="app.py:3"),
        Ignore(place="app.py:*"),
        Ignore(place="*serve"),
        Ignore(at="app.py:7"),
        Ignore(at="asyncio/x.py:* serve"),
        Ignore(law="no_task_left", name="serve", place="app.py:*", at="*"),
    ],
    ids=repr,
)
def test_what_matches_in_every_field_is_covered(rule):
    assert rule.covers("no_task_left", TASK, POINT)


@pytest.mark.parametrize(
    "rule",
    [
        Ignore(law="no_thread_left"),
        Ignore(name="serv"),
        Ignore(name="Serve"),
        Ignore(place="app.py:4"),
        Ignore(at="app.py:8"),
        Ignore(name="serve", place="lib/*"),
    ],
    ids=repr,
)
def test_what_does_not_match_in_one_field_is_not_covered(rule):
    assert not rule.covers("no_task_left", TASK, POINT)


def test_a_thing_without_places_or_a_run_without_a_point_matches_no_pattern_for_them():
    descriptor = Leftover("7 (socket:[1])", "socket:[1]")
    assert Ignore(name="socket:*").covers("no_descriptor_left", descriptor, None)
    assert not Ignore(name="socket:*", place="*:*").covers("no_descriptor_left", descriptor, POINT)
    assert not Ignore(at="app.py:*").covers("no_descriptor_left", descriptor, None)


def test_the_run_that_the_laws_see_is_without_what_is_ignored_and_that_is_counted():
    ignored = Ignored([Ignore(name="exporter-*"), Ignore(law="no_timer_armed"), Ignore(name="never")])
    seen = ignored.without(run(tasks=(TASK,), threads=(THREAD, THREAD), timers=(Leftover("t", "t"),)))
    assert (seen.tasks, seen.threads, seen.timers) == ((TASK,), (), ())
    assert [count for _, count in ignored.used] == [2, 1, 0]


def test_without_rules_the_run_stays_as_it_is():
    before = run(tasks=(TASK,))
    assert Ignored().without(before) is before
    assert Ignored().used == ()


def test_a_law_that_counts_nothing_can_be_ignored_as_a_whole_or_at_a_place():
    ignored = Ignored([Ignore(law="works_again", at="app.py:*")])
    assert ignored.drops("works_again", POINT)
    assert not ignored.drops("works_again", None)
    assert not ignored.drops("ends", POINT)
    assert not Ignored([Ignore(law="works_again", name="x")]).drops("works_again", POINT)
    assert [count for _, count in ignored.used] == [1]


def test_asking_whether_a_thing_is_covered_is_no_use_of_the_rule():
    ignored = Ignored([Ignore(name="exporter-*")])
    assert ignored.covers("threads", THREAD)
    assert not ignored.covers("tasks", TASK)
    assert ignored.used == ((Ignore(name="exporter-*"), 0),)


def test_rules_that_are_no_rules_are_refused_with_an_example():
    with pytest.raises(UsageError, match=r"takes rules such as Ignore\(name='serve'\), not 'serve'"):
        Ignored(["serve"])  # type: ignore[list-item]
    for no_list in ("serve", Ignore(name="serve")):
        with pytest.raises(UsageError, match=r"takes a list: ignore=\[Ignore\(name='serve'\)\]"):
            Ignored(no_list)  # type: ignore[arg-type]


def test_a_law_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(
        UsageError, match=r"Ignore\(law='no_tasks_left'\): there is no such law; the laws are ends, no_task_left"
    ):
        Ignored([Ignore(law="no_tasks_left")], ["ends", "no_task_left"])


def test_every_kind_of_thing_has_a_law_that_exists():
    assert set(LAW_OF.values()) <= {law.__name__ for law in DEFAULT_LAWS}
