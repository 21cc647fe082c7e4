"""Owns the tests that look inside, beside those of `tests/run/test_journal.py`.

The record of a run in memory: nothing is waited for, and a process of its own records nothing.
"""

import pytest

from safepoint import UsageError
from safepoint.run.journal import ChildProcessJournal, Journal, part_name


def test_a_journal_begins_with_what_is_on_record_already_and_leaves_it_as_it_was():
    before = {part_name("call", "charge"): '"paid"'}
    journal = Journal(before)
    journal.results["more"] = "1"
    assert before == {"call/charge": '"paid"'}


def test_two_who_ask_for_one_part_get_one_lock():
    journal = Journal()
    assert journal.lock("a") is journal.lock("a")
    assert journal.lock("a") is not journal.lock("b")


def test_from_a_process_of_its_own_nothing_can_be_recorded():
    with pytest.raises(UsageError, match="isolation='thread'"):
        ChildProcessJournal().lock("a")
