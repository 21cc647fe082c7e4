"""A question to a person, as a leaf. The callback decides how the person is reached.

The race between the answer and the stop is decided by the leaf, not by the callback. So a callback that ignores the
signal cannot delay the stop, and its question is withdrawn. The builtin `input` is such a callback, and an abandoned
`input` does further harm, because its thread takes the next line that is typed. `read_line` is called in its place,
which can be withdrawn.
"""

import inspect
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from ..events import QuestionAnswered, QuestionAsked, QuestionWithdrawn
from .context import Context
from .leaf import kind_of, launch
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
    awaited = kind_of(callback, POLICY) == "await"
    run = LeafRun(ctx, "question", "question", POLICY, runs_in="task" if awaited else "thread")
    options: dict[str, Any] = {"signal": run.ctx.signal} if "signal" in inspect.signature(callback).parameters else {}

    def call() -> object:
        return callback(question, **options)

    if awaited:
        return await launch(run, call)
    (answer,) = await launch(run, lambda: (call(),))  # wrapped: a leaf may not return an awaitable from its thread
    if not inspect.isawaitable(answer):
        return answer

    async def rest() -> object:
        return await answer

    return await launch(LeafRun(ctx, "question", "question", POLICY), rest)
