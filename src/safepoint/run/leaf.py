"""Owns running one leaf operation under the signal: an await, a function in a thread, one in a process.

Guard leaves, never orchestration: the loop that calls a leaf is never interrupted from outside. It reads what came
back, writes down what happened, and stops at its next look at the signal. Knows nothing of tools, models or nodes.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..abort import AbortError, AbortReason, Guard, shield
from ..abort.guard import Ambient
from ..abort.threads import start_in_thread
from .context import Context
from .interrupt import InterruptibleCall
from .isolate import run_isolated
from .leafrun import LeafRun, LeafTimeout
from .policy import Policy
from .receipt import LeafKind
from .where import place

__all__ = ["LeafTimeout", "leaf", "wait"]

T = TypeVar("T")
DEFAULT = Policy()

# A synchronous function that sees the signal gets this long to return by itself before it is interrupted.
RETURN_SECONDS = 0.1
# While it is inside a library it is not touched: look again this much later.
SAMPLE_SECONDS = 0.01


async def leaf(
    ctx: Context,
    work: Callable[..., Any],
    value: object = None,
    *,
    name: str | None = None,
    policy: Policy = DEFAULT,
) -> Any:
    """Run `work(ctx, value)` under the policy and return its value. The body does not begin after an abort.

    An async function is awaited here; a synchronous one runs in a thread, or in a process that can be killed.
    Raises: AbortError; LeafTimeout; what the work raised. After it, look at `ctx.signal`: the state is the truth.
    """
    ctx.admit("leaf()")
    if not callable(work):
        raise TypeError(f"work must be callable, not {type(work).__name__}")
    kind = kind_of(work, policy)
    run = LeafRun(ctx, name or name_of(work), kind, policy, threaded=kind == "thread")
    if kind == "await":
        return await (inline if policy.abandon_after is None else in_task)(run, work, value)
    return await (in_thread if kind == "thread" else in_process)(run, work, value)


async def wait(ctx: Context, seconds: float) -> None:
    """A pause as a leaf: it ends at once on abort."""
    run = LeafRun(ctx, "wait", "wait", DEFAULT)
    await inline(run, lambda leaf_ctx, value: leaf_ctx.signal.sleep(value), seconds)


def name_of(work: Callable[..., Any]) -> str:
    """What a callable is called, for people."""
    return str(getattr(work, "__name__", type(work).__name__))


def kind_of(work: Callable[..., Any], policy: Policy) -> LeafKind:
    """How it will run: what is declared `async` is awaited, everything else gets a thread or a process."""
    if policy.isolation == "process":
        return "process"
    call = work if inspect.isroutine(work) or isinstance(work, functools.partial) else type(work).__call__
    return "await" if inspect.iscoroutinefunction(call) else "thread"


async def inline(run: LeafRun, work: Callable[..., Any], value: object) -> Any:
    """In the caller's own task: one guard, no second task, no future."""
    run.begin()
    try:
        with run.protection():
            result = await work(run.ctx, value)
    except BaseException as error:
        told = run.failed(error)
        if told is error:
            raise
        raise told from error
    run.finished()
    return result


async def in_task(run: LeafRun, work: Callable[..., Any], value: object) -> Any:
    """In a task of its own, which can be left behind."""

    async def body() -> Any:
        run.begin()
        with run.protection():
            return await work(run.ctx, value)

    return await outlast(run, asyncio.get_running_loop().create_task(body(), name=run.operation))


async def in_thread(run: LeafRun, work: Callable[..., Any], value: object) -> Any:
    call = InterruptibleCall(functools.partial(work, run.ctx, value))
    run.locate = call.where

    def body() -> Any:
        run.begin()
        with Ambient(run.signal):
            return call.run()

    def interrupt() -> None:
        if not call.interrupt() and not call.ended:
            run.watch.again(SAMPLE_SECONDS, interrupt)

    if run.policy.on_abort != "cooperate":
        finish = run.policy.on_abort == "finish"
        run.watch.after_abort(run.policy.grace if finish else RETURN_SECONDS, interrupt)
    return await outlast(run, start_in_thread(body))


async def in_process(
    run: LeafRun, work: Callable[..., Any], value: object, kwargs: dict[str, object] | None = None
) -> Any:
    """In a process that can be killed. With `kwargs` the function is no Work: it is called with these alone."""

    def started(pid: int) -> None:
        run.locate = lambda: f"process {pid}"

    async def body() -> Any:
        run.begin()
        grace = run.policy.grace
        args = (run.ctx, value) if kwargs is None else ()
        kill = run.interrupting()
        return await run_isolated(
            work, *args, signal=run.signal, kill=kill, grace=grace, on_start=started, **(kwargs or {})
        )

    return await outlast(run, asyncio.get_running_loop().create_task(body(), name=run.operation))


async def outlast(run: LeafRun, ended: "asyncio.Future[T]") -> T:
    """Wait for what runs by itself. After an abort: until it is over, which is the evidence, or is abandoned."""
    if isinstance(ended, asyncio.Task):
        task = ended
        run.locate = run.locate or (lambda: place(task))
    try:
        try:
            with Guard(run.signal):
                await asyncio.wait([ended])
        except AbortError:
            either: list[asyncio.Future[Any]] = [ended, run.abandoned]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        run.controller.abort(AbortReason("parent", "the task that waited for it was cancelled"))
        try:
            await _let_end(ended, run.policy.grace)
        finally:  # told twice, as when a whole loop ends, it goes at once
            run.leave(ended)
        raise
    if not ended.done():
        raise run.leave(ended)
    try:
        result = ended.result()
    except BaseException as error:
        told = run.failed(error)
        if told is error:
            raise
        raise told from error
    run.finished()
    return result


async def _let_end(ended: "asyncio.Future[Any]", seconds: float) -> None:
    try:
        with shield(seconds):
            await asyncio.wait([ended])
    except AbortError:
        pass  # it did not end in time; the receipt says so
