"""A question to a person, as a leaf. The callback decides how the person is reached.

The race between the answer and the stop is decided by the leaf, not by the callback. So a callback that ignores the
signal cannot delay the stop, and its question is withdrawn. The builtin `input` is such a callback, and an abandoned
`input` does further harm, because its thread takes the next line that is typed. `read_line` is called in its place,
which can be withdrawn.
"""

import inspect
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from .context import Context
from .events import QuestionAnswered, QuestionAsked, QuestionWithdrawn
from .leaf import in_task, in_thread, kind_of
from .leaf_run import LeafRun
from .policy import Policy
from .terminal import read_line, withdrawable

__all__ = ["AskUser", "ask"]

# `callback(question)` or `callback(question, *, signal)`, sync or async. The text of what it returns is the answer.
AskUser: TypeAlias = Callable[..., object]

# The callback is interrupted at once, and soon left behind if it goes on: a person who pressed Stop is waiting.
POLICY = Policy(on_abort="interrupt", warn_after=3.0, abandon_after=0.25)


async def ask(
    ctx: Context, question: str, callback: AskUser, *, options: tuple[str, ...] = (), question_id: str | None = None
) -> str:
    """Ask a person a question and return the answer.

    Args:
        ctx: The context of the run.
        question: The text of the question.
        callback: The function that asks: `callback(question)` or `callback(question, *, signal)`, sync or async. For
            the builtin `input`, `read_line` is called instead, so that a stop leaves no thread waiting at the keyboard.
        options: Answers to choose from, for the event.
        question_id: The id of the question; by default a new one.

    Raises:
        AbortError: The run was stopped; the question is withdrawn.
        Exception: What the callback raised.
    """
    ctx.raise_if_abandoned("ask()")
    ctx.signal.raise_if_aborted()
    question_id = question_id or uuid.uuid4().hex
    ctx.emit(QuestionAsked(**ctx.stamp(), question_id=question_id, text=question, options=options))
    try:
        answer = str(await _answer(ctx, question, callback))
    except BaseException:
        ctx.emit(QuestionWithdrawn(**ctx.stamp(), question_id=question_id))
        raise
    ctx.emit(QuestionAnswered(**ctx.stamp(), question_id=question_id, text=answer))
    return answer


async def _answer(ctx: Context, question: str, callback: AskUser) -> object:
    callback = read_line if withdrawable(callback) else callback
    takes_signal = "signal" in inspect.signature(callback).parameters

    def call(leaf_ctx: Context, _: None) -> object:
        return callback(question, signal=leaf_ctx.signal) if takes_signal else callback(question)

    async def call_and_wait(leaf_ctx: Context, _: None) -> object:
        answer = call(leaf_ctx, None)
        assert isinstance(answer, Awaitable)
        return await answer

    if kind_of(callback, POLICY) == "await":
        return await in_task(LeafRun(ctx, "question", "question", POLICY), call_and_wait, None)
    answer = await in_thread(
        LeafRun(ctx, "question", "question", POLICY, runs_in="thread"), call, None, may_return_awaitable=True
    )
    if not inspect.isawaitable(answer):
        return answer

    async def rest(leaf_ctx: Context, _: None) -> object:
        return await answer

    return await in_task(LeafRun(ctx, "question", "question", POLICY), rest, None)
