"""Owns the tests that look inside, beside those of `tests/agent/test_agent_run.py`.

An agent's run in the hand: when it starts, how it ends, its questions.
"""

import asyncio

import pytest

from safepoint.agent.agent_run import Questions
from safepoint.events import QuestionAsked
from safepoint.run import Context
from safepoint.testing import drain_ready_tasks


@pytest.mark.parametrize("answered_by", ["callback", "run"])
async def test_the_questions_of_a_run_know_whether_somebody_is_asked(answered_by: str):
    gate = asyncio.Event()

    async def person(question: str) -> str:
        await gate.wait()
        return "yes"

    questions = Questions(person if answered_by == "callback" else None)
    ids: list[str] = []
    ctx = Context(emit=lambda event: ids.append(event.question_id) if isinstance(event, QuestionAsked) else None)
    assert not questions.waiting
    task = asyncio.ensure_future(questions.ask(ctx, "Really?", ()))
    await drain_ready_tasks()
    assert questions.waiting
    gate.set()
    assert questions.answer(ids[0], "yes") == (answered_by == "run")
    assert await task == "yes"
    assert not questions.waiting
