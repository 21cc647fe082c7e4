"""Receipts: filled by the leaves, true, readable, and the same after a journey through JSON."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortReason
from safepoint.errors import RemoteError, WireError
from safepoint.run import Entry, Receipt, ReceiptBuilder, Usage
from safepoint.testing import FakeClock


def test_a_line_without_evidence_is_unknown(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    receipt_builder.begin("run/search", "await")
    assert receipt_builder.receipt(AbortController().signal).entries == (Entry("run/search", "await", "unknown"),)


def test_seconds_are_counted_from_the_abort_to_the_end(clock: FakeClock):
    receipt_builder, controller = ReceiptBuilder(clock), AbortController()
    before, after, never = (receipt_builder.begin(name, "thread") for name in ("before", "after", "never"))
    clock.advance(1)
    before.end("finished")
    clock.advance(1)
    controller.abort("stop")
    clock.advance(0.5)
    after.end("stopped", where="tool.py:3 in search", note="late")
    never.end("not_started")
    clock.advance(0.5)
    receipt = receipt_builder.receipt(controller.signal)
    assert receipt.reason == AbortReason("user", "stop")
    assert receipt.settled_at == clock.time()
    assert receipt.requested_at == clock.time() - 1.0
    assert receipt.entries == (
        Entry("before", "thread", "finished"),
        Entry("after", "thread", "stopped", 0.5, "tool.py:3 in search", "late"),
        Entry("never", "thread", "not_started", 0.5),
    )


def test_what_still_runs_may_end_later_and_an_end_stays(clock: FakeClock):
    receipt_builder, controller = ReceiptBuilder(clock), AbortController()
    line = receipt_builder.begin("run/tool", "thread")
    controller.abort()
    line.end("still_running", where="tool.py:3")
    assert receipt_builder.receipt(controller.signal).still_running == (
        Entry("run/tool", "thread", "still_running", None, "tool.py:3"),
    )
    line.end("stopped")
    line.end("still_running")
    assert [entry.fate for entry in receipt_builder.receipt(controller.signal).entries] == ["stopped"]
    assert receipt_builder.receipt(controller.signal).still_running == ()


def test_a_line_knows_the_process_behind_it(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    line = receipt_builder.begin("run/build/make", "program")
    line.pid, line.pid_started = 123, 4567
    line.end("still_running")
    (entry,) = receipt_builder.receipt(AbortController().signal).entries
    assert (entry.pid, entry.pid_started) == (123, 4567)


def test_what_ended_is_listed_in_the_order_of_the_ends(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    lines = [receipt_builder.begin(name, "await") for name in ("a", "b", "c", "d")]
    for line, fate in zip(lines, ("stopped", "not_started", "unknown", "stopped"), strict=True):
        line.end(fate)  # type: ignore[arg-type]  # a list of words is a list of strings to the type checker
    assert [entry.name for entry in receipt_builder.receipt(AbortController().signal).entries] == ["a", "b", "c", "d"]


def test_a_long_note_is_cut(clock: FakeClock):
    receipt_builder = ReceiptBuilder(clock)
    receipt_builder.begin("tool", "await").end("finished", note="failed: " + "x" * 20_000_000)
    receipt = receipt_builder.receipt(AbortController().signal)
    assert receipt.entries[0].note.endswith("x… (20000008 characters)")
    assert len(receipt.to_json()) < 10_000


def test_usage_adds_up_and_an_estimate_stays_one():
    assert Usage(1, 10, 5) + Usage(2, 1, 1, estimated=True) == Usage(3, 11, 6, estimated=True)


FULL = Receipt(
    AbortReason("user", "Stop", "app.py:7"),
    100.0,
    100.25,
    (
        Entry("run/search", "await", "stopped", 0.004),
        Entry("run/crawl", "thread", "still_running", None, "crawl.py:9 in fetch"),
        Entry("run/build/make", "program", "still_running", note="it ignored TERM", pid=123, pid_started=4567),
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


class Unlike(Exception):
    """Cannot be copied or pickled: it takes a keyword, and holds a lock."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.lock = threading.Lock()


class Wordless(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("plain"), "plain"),
        (Unlike(code=7), "code 7"),
        (Wordless(), "(its text cannot be read: LookupError)"),
        (ValueError("half \ud83d of a pair"), "half \ud83d of a pair"),
        (ExceptionGroup("some", [Unlike(code=1)]), "some (1 sub-exception)"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_receipt_can_be_written_whatever_exception_was_the_reason(clock: FakeClock, error: Exception, told: str):
    controller = AbortController()
    controller.abort(error)
    receipt = ReceiptBuilder(clock).receipt(controller.signal)
    back = Receipt.from_json(receipt.to_json())
    assert back == receipt
    assert back.reason is not None
    assert isinstance(back.reason.cause, RemoteError)
    assert (back.reason.cause.type_name, back.reason.cause.message) == (type(error).__name__, told)
    assert type(error).__name__ in str(receipt)
    assert receipt.reason is not None
    assert receipt.reason.cause is error


@pytest.mark.parametrize("kind", [ValueError, str])
def test_a_reason_of_twenty_megabytes_makes_a_small_receipt(clock: FakeClock, kind: Callable[[str], Any]):
    controller = AbortController()
    controller.abort(kind("x" * 20_000_000))
    receipt = ReceiptBuilder(clock).receipt(controller.signal)
    assert len(receipt.to_json()) < 10_000
    assert len(str(receipt)) < 10_000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "this receipt is not a JSON object but list"),
        ("{}", "this receipt cannot be read: it has no 'settled_at'"),
        ("{", "this receipt is not JSON"),
        ("[" * 100_000, "this receipt is not JSON: RecursionError"),
        ('{"settled_at": "abc"}', "'settled_at' must be a finite number, not str"),
        ('{"settled_at": NaN}', "'settled_at' must be a finite number"),
        ('{"settled_at": 1, "reason": "x"}', "'reason' must be an object, not str"),
        ('{"settled_at": 1, "usage": null}', "'usage' must be an object, not NoneType"),
        ('{"settled_at": 1, "entries": [1]}', "this entry is not a JSON object but int"),
        (
            '{"settled_at": 1, "entries": [{"name": "a", "kind": "await"}]}',
            "this entry cannot be read: it has no 'fate'",
        ),
        ('{"settled_at": 1, "warnings": [1]}', "'warnings' must be a list of strings"),
        ('{"settled_at": 1, "omitted": true}', "'omitted' must be a whole number"),
    ],
)
def test_what_is_no_receipt_is_refused_with_what_and_why(text: str, told: str):
    with pytest.raises(WireError) as caught:
        Receipt.from_json(text)
    assert told in str(caught.value)


def test_a_fate_of_a_newer_writer_is_unknown_and_keeps_its_name():
    text = '{"settled_at": 1, "entries": [{"name": "a", "kind": "await", "fate": "moved", "note": "to Mars"}]}'
    receipt = Receipt.from_json(text)
    assert receipt.still_running == (Entry("a", "await", "unknown", note="[moved] to Mars"),)


def test_a_receipt_is_a_small_table_a_person_likes_to_read():
    assert str(FULL).splitlines() == [
        "Stopped: user: Stop (app.py:7), settled after 250 ms",
        "  run/search      await     stopped        after 4.0 ms",
        "  run/crawl       thread    still running  at crawl.py:9 in fetch",
        "  run/build/make  program   still running  pid 123  it ignored TERM",
        "  … and 2 more that had ended before",
        "  warning: the clean-up close took too long",
        "  usage: 3 requests, about 1200 tokens in, 80 out",
        "  resume: checkpoint-7",
    ]
    assert str(Receipt(None, None, 1.0)) == "Ended without a stop"
