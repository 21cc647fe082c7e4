"""The record of a run in memory: nothing is waited for, and a process of its own records nothing."""

from safepoint.run import Context


async def test_where_nothing_is_stored_nothing_is_waited_for():
    ctx = Context()
    await ctx.journal.flush(ctx)


def test_everything_inside_of_a_run_shares_its_record():
    ctx = Context()
    assert ctx.child("inside").child("deeper").journal is ctx.journal
    assert Context().journal is not ctx.journal
