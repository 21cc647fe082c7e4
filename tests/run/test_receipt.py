"""Receipts: filled by the leaves, true, readable, and the same after a journey through JSON."""

import json

import pytest

from safepoint.abort import AbortController, AbortReason
from safepoint.run.receipt import LISTED, Entry, Ledger, Receipt, Usage, duration
from safepoint.testing import FakeClock


def test_a_line_without_evidence_is_unknown(clock: FakeClock):
    ledger = Ledger(clock)
    ledger.begin("run/search", "await")
    assert ledger.receipt(AbortController().signal).entries == (Entry("run/search", "await", "unknown"),)


def test_seconds_are_counted_from_the_abort_to_the_end(clock: FakeClock):
    ledger, controller = Ledger(clock), AbortController()
    before, after, never = (ledger.begin(name, "thread") for name in ("before", "after", "never"))
    clock.advance(1)
    before.end("finished")
    clock.advance(1)
    controller.abort("stop")
    clock.advance(0.5)
    after.end("stopped", where="tool.py:3 in search", note="late")
    never.end("not_started")
    clock.advance(0.5)
    receipt = ledger.receipt(controller.signal)
    assert receipt.reason == AbortReason("user", "stop")
    assert receipt.settled_at == clock.time()
    assert receipt.requested_at == clock.time() - 1.0
    assert receipt.entries == (
        Entry("before", "thread", "finished"),
        Entry("after", "thread", "stopped", 0.5, "tool.py:3 in search", "late"),
        Entry("never", "thread", "not_started", 0.5),
    )


def test_what_still_runs_may_end_later_and_an_end_stays(clock: FakeClock):
    ledger, controller = Ledger(clock), AbortController()
    line = ledger.begin("run/tool", "thread")
    controller.abort()
    line.end("still_running", where="tool.py:3")
    assert ledger.receipt(controller.signal).still_running == (
        Entry("run/tool", "thread", "still_running", None, "tool.py:3"),
    )
    line.end("stopped")
    line.end("still_running")
    assert [entry.fate for entry in ledger.receipt(controller.signal).entries] == ["stopped"]
    assert ledger.receipt(controller.signal).still_running == ()


def test_thousands_of_finished_leaves_are_counted_and_the_newest_listed(clock: FakeClock):
    ledger = Ledger(clock)
    for number in range(LISTED + 50):
        ledger.begin(f"leaf {number}", "await").end("finished")
    live = ledger.begin("live", "await")
    receipt = ledger.receipt(AbortController().signal)
    assert (len(receipt.entries), receipt.omitted) == (LISTED + 1, 50)
    assert receipt.entries[0].name == "leaf 50"
    assert receipt.entries[-1].name == live.name
    assert "and 50 more that had finished" in str(receipt)


def test_what_was_stopped_is_always_listed(clock: FakeClock):
    ledger = Ledger(clock)
    for number in range(3 * LISTED):
        ledger.begin(f"leaf {number}", "await").end("stopped")
    assert len(ledger.receipt(AbortController().signal).entries) == 3 * LISTED


def test_usage_adds_up_and_an_estimate_stays_one():
    assert Usage(1, 10, 5) + Usage(2, 1, 1, estimated=True) == Usage(3, 11, 6, estimated=True)


FULL = Receipt(
    AbortReason("user", "Stop", "app.py:7"),
    100.0,
    100.25,
    (
        Entry("run/search", "await", "stopped", 0.004),
        Entry("run/crawl", "thread", "still_running", None, "crawl.py:9 in fetch"),
    ),
    Usage(3, 1200, 80, estimated=True),
    "checkpoint-7",
    ("the clean-up close took too long",),
    2,
)


def test_a_receipt_survives_json_and_ignores_fields_it_does_not_know():
    assert Receipt.from_json(FULL.to_json()) == FULL
    data = json.loads(FULL.to_json())
    data["new"] = 1
    data["entries"][0]["new"] = 1
    data["usage"]["new"] = 1
    assert Receipt.from_json(json.dumps(data)) == FULL
    with pytest.raises(ValueError, match="JSON object"):
        Receipt.from_json("[]")


def test_a_receipt_is_a_small_table_a_person_likes_to_read():
    assert str(FULL).splitlines() == [
        "Stopped: user: Stop (app.py:7), settled after 250 ms",
        "  run/search  await     stopped        after 4.0 ms",
        "  run/crawl   thread    still running  at crawl.py:9 in fetch",
        "  … and 2 more that had finished before",
        "  warning: the clean-up close took too long",
        "  usage: 3 requests, about 1200 tokens in, 80 out",
        "  resume: checkpoint-7",
    ]
    assert str(Receipt(None, None, 1.0)) == "Ended without a stop"


@pytest.mark.parametrize(("seconds", "text"), [(0.0004, "0.4 ms"), (0.12, "120 ms"), (3.21, "3.2 s")])
def test_durations_are_short(seconds: float, text: str):
    assert duration(seconds) == text
