"""The record of a run in memory: nothing is waited for, and a process of its own records nothing."""

import pytest

from safepoint import UsageError
from safepoint.run import Context
from safepoint.run.journal import Journal, JournalElsewhere, part_name


async def test_where_nothing_is_stored_nothing_is_waited_for():
    ctx = Context()
    await ctx.journal.recorded(ctx)


def test_everything_inside_of_a_run_shares_its_record():
    ctx = Context()
    assert ctx.child("inside").child("deeper").journal is ctx.journal
    assert Context().journal is not ctx.journal


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
        JournalElsewhere().lock("a")
