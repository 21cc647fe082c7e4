"""Owns a question to a person, as a leaf. Knows nothing of how the person is reached.

The race between the answer and the stop is decided here, not in the callback: one that ignores the signal cannot hang
the stop, and the question is withdrawn. The builtin `input` is one of those, and does harm even then: its thread takes
the next line that is typed. So `read_line` is called in its place, which can be withdrawn.
"""

import inspect
import uuid
from collections.abc import Callable
from typing import Any

from .context import Context
from .events import QuestionAnswered, QuestionAsked, QuestionWithdrawn
from .leaf import in_task, in_thread, kind_of
from .leaf_run import LeafRun
from .policy import Policy
from .terminal import read_line, withdrawable

__all__ = ["AskUser", "ask"]

AskUser = Callable[..., Any]

# The callback is interrupted at once; one that goes on is left behind after this, for a person has pressed Stop.
POLICY = Policy(on_abort="interrupt", warn_after=3.0, abandon_after=0.25)


async def ask(
    ctx: Context, question: str, callback: AskUser, *, options: tuple[str, ...] = (), question_id: str | None = None
) -> str:
    """Ask, and return the answer. `callback(question)` or `callback(question, *, signal)`, sync or async.

    For the builtin `input` its counterpart `read_line` is called, so that a stop leaves nobody at the keyboard.

    Raises: AbortError on a stop, with the question withdrawn; what the callback raised.
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


async def _answer(ctx: Context, question: str, callback: AskUser) -> Any:
    callback = read_line if withdrawable(callback) else callback
    takes_signal = "signal" in inspect.signature(callback).parameters

    def call(leaf_ctx: Context, _: object) -> Any:
        return callback(question, signal=leaf_ctx.signal) if takes_signal else callback(question)

    async def call_and_wait(leaf_ctx: Context, _: object) -> Any:
        return await call(leaf_ctx, None)

    if kind_of(callback, POLICY) == "await":
        return await in_task(LeafRun(ctx, "question", "question", POLICY), call_and_wait, None)
    answer = await in_thread(
        LeafRun(ctx, "question", "question", POLICY, runs_in="thread"), call, None, may_return_awaitable=True
    )
    if not inspect.isawaitable(answer):
        return answer

    async def rest(leaf_ctx: Context, _: object) -> Any:
        return await answer

    return await in_task(LeafRun(ctx, "question", "question", POLICY), rest, None)
