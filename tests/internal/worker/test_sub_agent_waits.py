"""Owns the tests that look inside, beside those of `tests/worker/test_sub_agent_waits.py`.

Owns the tests of places that are lent: turns that wait for sub-agents do not keep these from being worked on.
"""

import asyncio

from safepoint.worker.remote_tool import SubAgentWaits, waiting_for_a_sub_agent


async def test_the_first_call_that_waits_is_told_and_the_last_one_that_does_not_any_more():
    told: list[bool] = []
    with waiting_for_a_sub_agent():
        assert told == []

    async def work() -> None:
        with waiting_for_a_sub_agent(), waiting_for_a_sub_agent():
            assert told == [True]
        assert told == [True, False]

    async def order() -> None:
        SubAgentWaits(told.append).observe()
        async with asyncio.TaskGroup() as group:
            group.create_task(work())

    await asyncio.create_task(order())
    with waiting_for_a_sub_agent():
        assert told == [True, False]
