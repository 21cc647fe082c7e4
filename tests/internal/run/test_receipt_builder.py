"""Owns the tests that look inside, beside those of `tests/run/test_receipt.py`.

Receipts: filled by the leaves, true, readable, and the same after a journey through JSON.
"""

import threading

import pytest

from safepoint.abort import AbortController
from safepoint.receipt import duration
from safepoint.run import Fate, ReceiptBuilder
from safepoint.run.receipt_builder import LISTED, LISTED_OF_INTEREST, NOTE_LIMIT
from safepoint.testing import FakeClock


def test_thousands_of_finished_leaves_are_counted_and_the_newest_listed(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    for number in range(LISTED + 50):
        receipt_builder.begin(f"leaf {number}", "await").end("finished")
    live = receipt_builder.begin("live", "await")
    receipt = receipt_builder.receipt(AbortController().signal)
    assert (len(receipt.entries), receipt.omitted) == (LISTED + 1, 50)
    assert receipt.entries[0].name == "leaf 50"
    assert receipt.entries[-1].name == live.name
    assert "and 50 more that had ended" in str(receipt)


def test_a_stop_of_a_thousand_leaves_lists_each_of_them(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    for number in range(LISTED_OF_INTEREST):
        receipt_builder.begin(f"leaf {number}", "await").end("stopped")
    receipt = receipt_builder.receipt(AbortController().signal)
    assert (len(receipt.entries), receipt.omitted) == (LISTED_OF_INTEREST, 0)


@pytest.mark.parametrize(
    ("fate", "listed"), [("finished", LISTED), ("not_started", LISTED), ("stopped", LISTED_OF_INTEREST)]
)
def test_of_each_fate_the_newest_are_listed_and_the_others_counted(clock: FakeClock, fate: Fate, listed: int):
    receipt_builder = ReceiptBuilder(clock)
    before = receipt_builder.begin("another fate", "await")
    before.end("stopped" if fate == "finished" else "finished")
    for number in range(5_000):
        receipt_builder.begin(f"leaf {number}", "await").end(fate)
    receipt = receipt_builder.receipt(AbortController().signal)
    names = [entry.name for entry in receipt.entries if entry.fate == fate]
    assert names == [f"leaf {number}" for number in range(5_000 - listed, 5_000)]
    assert len(receipt.entries) == listed + 1, "one fate does not push out another"
    assert receipt.omitted == 5_000 - listed
    assert f"… and {5_000 - listed} more that had ended before" in str(receipt)
    assert len(receipt.to_json()) < 200_000


@pytest.mark.parametrize("fate", ["still_running", "unknown", None])
def test_of_what_may_still_run_a_thousand_are_listed_and_a_warning_counts_the_others(
    clock: FakeClock, fate: Fate | None
):
    receipt_builder = ReceiptBuilder(clock)
    for number in range(LISTED_OF_INTEREST + 7):
        line = receipt_builder.begin(f"leaf {number}", "await")
        if fate is not None:
            line.end(fate)
    receipt = receipt_builder.receipt(AbortController().signal)
    assert len(receipt.still_running) == LISTED_OF_INTEREST
    assert receipt.omitted == 0, "these have not ended"
    assert receipt.warnings == ("7 more operations may still run: they are not listed",)
    assert receipt_builder.warnings == ()


def test_of_the_warnings_the_newest_are_listed_and_the_others_counted(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    for number in range(LISTED):
        receipt_builder.warn(f"warning {number}")
    assert receipt_builder.receipt(AbortController().signal).warnings == tuple(
        f"warning {number}" for number in range(LISTED)
    )
    for number in range(LISTED, 10_000):
        receipt_builder.warn(f"warning {number}")
    warnings = receipt_builder.receipt(AbortController().signal).warnings
    assert warnings[:2] == (f"{10_000 - LISTED} warnings came before these", f"warning {10_000 - LISTED}")
    assert warnings[-1] == "warning 9999"
    assert len(warnings) == LISTED + 1


def test_a_long_warning_is_cut(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    receipt_builder.warn("x" * 20_000_000)
    [warning] = receipt_builder.receipt(AbortController().signal).warnings
    assert len(warning) == NOTE_LIMIT


@pytest.mark.parametrize(("seconds", "text"), [(0.0004, "0.4 ms"), (0.12, "120 ms"), (3.21, "3.2 s")])
def test_durations_are_short(seconds: float, text: str):
    assert duration(seconds) == text


def test_what_is_added_while_another_thread_brings_the_receipt_up_to_date_is_not_lost(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    inside, go_on, asked = threading.Event(), threading.Event(), list[str]()

    def slow() -> bool:
        if not inside.is_set():
            inside.set()
            go_on.wait(10)
        return True

    def later() -> bool:
        asked.append("later")
        return True

    receipt_builder.add_updater(slow)
    other = threading.Thread(target=receipt_builder.update)
    other.start()
    assert inside.wait(10)
    receipt_builder.update()
    receipt_builder.add_updater(later)
    go_on.set()
    other.join(10)
    receipt_builder.update()
    assert asked == ["later"]
