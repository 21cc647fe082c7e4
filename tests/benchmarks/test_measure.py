"""Rounds, medians, ratios, verdicts and the table. Contenders here return figures of their choice: nothing is timed."""

import gc
import json
from typing import TypeVar

import pytest

from benchmarks.measure import AtMost, Contender, Limit, Line, Measure, Samples, Target, Verdict, statement
from benchmarks.table import as_json, markdown, quantity

T = TypeVar("T")


def line(ours: float, theirs: float | None, target: Target | None = None) -> Line:
    ratio = ours / theirs if theirs else None
    return Line(what="a check", ours=ours, peer="a peer", theirs=theirs, ratio=ratio, target=target)


def noted(notes: list[T], note: T) -> float:
    notes.append(note)
    return 1.0


def test_each_contender_runs_once_per_round_in_alternating_order() -> None:
    ran: list[str] = []

    def contender(name: str) -> Contender:
        return lambda: noted(ran, name)

    Measure(3, str)("a check", contender("ours"), {"p": contender("p"), "q": contender("q")})
    assert ran == ["ours", "p", "q", *("ours", "p", "q"), *("q", "p", "ours"), *("ours", "p", "q")]


def test_the_first_round_does_not_count() -> None:
    figures = iter([100.0, 1.0, 2.0, 3.0])
    samples = Measure(3, str)("a check", lambda: next(figures), {})
    assert samples == Samples("a check", [1.0, 2.0, 3.0], {})


def test_a_contender_of_short_samples_takes_several_per_round() -> None:
    samples = Measure(3, str)("a check", lambda: 1.0, {"p": lambda: 2.0}, samples=4)
    assert (len(samples.ours), len(samples.peers["p"])) == (12, 12)


def test_what_is_measured_is_told_before_it_is() -> None:
    heard: list[str] = []
    Measure(1, heard.append)("a check", lambda: noted(heard, "runs"), {})
    assert heard == ["a check", "runs", "runs"]


def test_garbage_is_collected_between_rounds_and_not_inside_them() -> None:
    states: list[bool] = []
    Measure(1, str)("a check", lambda: noted(states, gc.isenabled()), {})
    assert (states, gc.isenabled()) == ([False, False], True)


def test_garbage_collection_is_on_again_after_a_crash() -> None:
    with pytest.raises(ZeroDivisionError):
        Measure(1, str)("a check", lambda: 1 / 0, {})
    assert gc.isenabled()


def test_lines_have_medians_so_that_one_bad_round_is_forgotten() -> None:
    (shown,) = Samples("a check", [1.0, 90.0, 2.0], {"p": [4.0, 4.0, 70.0]}).lines({"p": AtMost(0.3)})
    assert (shown.what, shown.ours, shown.peer, shown.theirs) == ("a check", 2.0, "p", 4.0)
    assert (shown.ratio, shown.verdict) == (0.25, "ok")


def test_a_ratio_is_taken_within_each_round_so_that_load_on_both_cancels_out() -> None:
    (shown,) = Samples("a check", [1.0, 10.0, 100.0, 1.0], {"p": [2.0, 20.0, 200.0, 2.0]}).lines()
    assert shown.ratio == 0.5


def test_a_peer_without_a_target_is_only_shown() -> None:
    (shown,) = Samples("a check", [9.0], {"p": [1.0]}).lines({"q": AtMost(1)})
    assert (shown.target, shown.verdict) == (None, "")


def test_a_peer_that_is_not_here_has_a_line_without_figures() -> None:
    samples = Measure(1, str)("a check", lambda: 1.0, {"Node": None})
    (shown,) = samples.lines({"Node": AtMost(0.3)})
    assert (shown.theirs, shown.ratio, shown.verdict) == (None, None, "")
    assert "| not here |" in markdown([shown])


def test_added_cost_is_taken_within_the_same_round() -> None:
    samples = Samples("a check", [3.0, 13.0], {"bare": [1.0, 11.0], "p": [5.0, 15.0]})
    assert samples.over("bare") == Samples("a check", [2.0, 2.0], {"p": [4.0, 4.0]})


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "verdict"),
    [
        (1.0, 2.0, None, ""),
        (1.0, 2.0, AtMost(0.5), "ok"),
        (1.1, 2.0, AtMost(0.5), "MISSED"),
        (1.0, None, AtMost(1), ""),
        (0.0, 57.0, Limit(0), "ok"),
        (1.0, 57.0, Limit(0), "MISSED"),
        (1e-6, None, Limit(1e-6), "ok"),
    ],
)
def test_verdict(ours: float, theirs: float | None, target: Target | None, verdict: Verdict) -> None:
    assert line(ours, theirs, target).verdict == verdict


def test_a_statement_runs_as_often_as_it_says_it_does() -> None:
    ran: list[None] = []
    statement("ran.append(None)", 200, ran=ran)()
    assert len(ran) == 200


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.06e-9, "s", "4.06 ns"),
        (181e-9, "s", "181 ns"),
        (1e-6, "s", "1.00 us"),
        (0.0253, "s", "25.3 ms"),
        (2.0, "s", "2.00 s"),
        (0.0, "s", "0.00 ns"),
        (0, "B", "0 B"),
        (57.46, "B", "57.5 B"),
        (999_999, "B", "999,999 B"),
        (54_947_840, "B", "54.9 MB"),
        (100_000, "", "100,000"),
    ],
)
def test_quantities_have_three_digits_and_the_unit_that_fits(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text  # type: ignore[arg-type]


def test_the_table_has_one_aligned_row_per_line() -> None:
    table = markdown([line(1e-6, 4e-6, AtMost(0.5)), line(1e-6, 8e-6)])
    assert table.splitlines() == [
        "| what    | ours    | peer   | theirs  | ratio | target   | verdict |",
        "|---------|---------|--------|---------|-------|----------|---------|",
        "| a check | 1.00 us | a peer | 4.00 us | 0.25  | <= 0.5 x | ok      |",
        "| a check | 1.00 us | a peer | 8.00 us | 0.125 |          |         |",
    ]


def test_a_missed_target_is_printed_with_the_word_of_its_owner() -> None:
    explained = line(3.0, 1.0, AtMost(2, why="it does more"))
    table = markdown([explained, line(3.0, 1.0, AtMost(2)), line(1.0, 1.0, AtMost(2, why="not needed"))])
    assert table.splitlines()[-3:] == [
        "",
        "- MISSED: a check, against a peer: it does more",
        "- MISSED: a check, against a peer: not explained yet",
    ]


def test_the_json_has_plain_values() -> None:
    (row,) = json.loads(json.dumps(as_json([line(3.0, 1.0, AtMost(2, why="it does more"))])))
    assert row == {
        "what": "a check",
        "ours": 3.0,
        "peer": "a peer",
        "theirs": 1.0,
        "unit": "s",
        "ratio": 3.0,
        "target": "<= 2 x",
        "verdict": "MISSED",
        "why": "it does more",
    }
