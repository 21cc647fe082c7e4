"""Owns running one leaf operation under the signal: an await, a function in a thread, one in a process.

Guard leaves, never orchestration: the loop that calls a leaf is never interrupted from outside. It reads what came
back, writes down what happened, and stops at its next look at the signal. Knows nothing of tools, models or nodes.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from ..abort import AbortError, AbortReason, Guard, shield
from ..abort.guard import Ambient
from ..abort.resource_account import current_account, reset_account
from ..abort.threads import start_in_thread
from ..errors import SafepointError, UsageError
from .code_location import place
from .context import Context
from .interrupt import AbortInterrupt, InterruptibleCall
from .isolate import ChildDied, run_isolated
from .leaf_run import LeafRun, LeafTimeout
from .own_code import function_beneath
from .owned.threads import ThreadWork
from .policy import Policy
from .receipt import LeafKind

__all__ = ["LeafExit", "LeafTimeout", "leaf", "wait"]

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741  # what goes in
DEFAULT = Policy()


class LeafExit(SafepointError):
    """The function called `sys.exit()`. It ends that leaf, not the program."""


@overload
async def leaf(
    ctx: Context,
    work: Callable[[Context, I], Coroutine[Any, Any, T]],
    value: I,
    *,
    name: str | None = None,
    policy: Policy = DEFAULT,
) -> T: ...


@overload
async def leaf(
    ctx: Context, work: Callable[[Context, I], T], value: I, *, name: str | None = None, policy: Policy = DEFAULT
) -> T: ...


@overload
async def leaf(
    ctx: Context,
    work: Callable[[Context, None], Coroutine[Any, Any, T]],
    *,
    name: str | None = None,
    policy: Policy = DEFAULT,
) -> T: ...


@overload
async def leaf(
    ctx: Context, work: Callable[[Context, None], T], *, name: str | None = None, policy: Policy = DEFAULT
) -> T: ...


async def leaf(
    ctx: Context,
    work: Callable[..., Any],
    value: object = None,
    *,
    name: str | None = None,
    policy: Policy = DEFAULT,
) -> Any:
    """Run `work(ctx, value)` under the policy and return its value. The body does not begin after an abort.

    Args:
        ctx: The context of the run.
        work: An async function is awaited here; a synchronous one runs in a thread, or in a process that can be killed.
        value: What the work is given.
        name: What the receipt calls it; by default the name of the function.
        policy: How it is stopped, and its own limits.

    Raises:
        AbortError: The run was aborted. After a leaf look at `ctx.signal`: the state is the truth.
        LeafTimeout: The time limit of the policy was up.
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


def exit_of(work: Callable[..., Any], error: SystemExit) -> LeafExit:
    """What `sys.exit()` in a leaf means for its caller. `argparse` calls it, and the program is to go on."""
    exit = LeafExit(f"{name_of(function_beneath(work) or work)} called sys.exit({error.code!r})")
    exit.__cause__ = error
    return exit


def kind_of(work: Callable[..., Any], policy: Policy) -> LeafKind:
    """How it will run: what is declared `async` is awaited, everything else gets a thread or a process."""
    if policy.isolation == "process":
        return "process"
    call = work if inspect.isroutine(work) or isinstance(work, functools.partial) else type(work).__call__
    return "await" if inspect.iscoroutinefunction(call) else "thread"


async def inline(run: LeafRun, work: Callable[..., Any], value: object) -> Any:
    """In the caller's own task: one guard, no second task, no future."""
    run.begin()
    account = current_account.set(run)
    try:
        with run.protection():
            result = await work(run.ctx, value)
        run.check_whole()
    except BaseException as error:
        # What comes out of an agent or a flow that runs as a part was not raised by a leaf: it is for the program.
        if isinstance(error, SystemExit) and run.kind != "child":
            error = exit_of(work, error)
        raise await ended_by(run, error)  # noqa: B904  # it is its own cause, or has it
    finally:
        reset_account(account)
    if run.owned is None:
        run.finished()
    else:
        await end_with_its_account(run)
    return result


async def in_task(run: LeafRun, work: Callable[..., Any], value: object) -> Any:
    """In a task of its own, which can be left behind."""

    async def body() -> Any:
        run.begin()
        current_account.set(run)  # in the context of this task alone
        try:
            with run.protection():
                result = await work(run.ctx, value)
            run.check_whole()
            return result
        except SystemExit as error:  # out of a task of its own it would end the event loop
            raise exit_of(work, error) from error

    return await await_evidence(run, asyncio.get_running_loop().create_task(body(), name=run.operation))


async def in_thread(
    run: LeafRun, work: Callable[..., Any], value: object, *, may_return_awaitable: bool = False
) -> Any:
    """In a thread. A function that returns a coroutine is refused, unless the caller awaits what it returns."""
    call = InterruptibleCall(functools.partial(work, run.ctx, value), interruptible=run.policy.interruptible)
    thread = run.work = ThreadWork(call, run)
    run.locate = call.where

    def body() -> Any:
        run.begin()
        current_account.set(run)  # in the context of this call alone
        try:
            with Ambient(run.signal):
                returned = thread.run()
        except SystemExit as error:
            raise exit_of(work, error) from error
        except asyncio.CancelledError as error:
            if call.interrupted or run.being_interrupted:  # of a loop that it runs inside, whose task was ended
                raise AbortInterrupt from error
            raise
        if not may_return_awaitable and (problem := has_not_run(returned)) is not None:
            raise UsageError(f"{run.operation} returned {problem}")
        return returned

    run.when_interrupted(0.0, thread.end)
    run.when_interrupted(run.policy.interrupt_after, thread.interrupt)
    return await await_evidence(run, start_in_thread(body))


def has_not_run(returned: object) -> str | None:
    """What is wrong with a value that stands for work which has not been done, so that nobody would do it."""
    if inspect.iscoroutine(returned):
        returned.close()
        return "a coroutine, which nobody awaits: declare it with `async def`"
    if inspect.isasyncgen(returned):
        return "an async generator, which nobody reads: read it in the function, and return what it gave"
    if inspect.isgenerator(returned):
        return "a generator, which nobody reads: read it in the function, and return what it gave"
    if inspect.isawaitable(returned):
        return "an awaitable, which nobody awaits: await it in a function that is declared with `async def`"
    return None


async def in_process(
    run: LeafRun, work: Callable[..., Any], value: object, kwargs: dict[str, object] | None = None
) -> Any:
    """In a process that can be killed. With `kwargs` the function is no Work: it is called with these alone."""

    def started(pid: int) -> None:
        run.locate = lambda: f"process {pid}"

    async def body() -> Any:
        run.begin()
        current_account.set(run)  # in the context of this task alone
        grace = run.policy.grace
        args = (run.ctx, value) if kwargs is None else ()
        kill = run.interrupting()
        try:
            return await run_isolated(
                work, *args, signal=run.signal, kill=kill, grace=grace, on_start=started, **(kwargs or {})
            )
        except ChildDied as error:
            if error.exit is None:
                raise
            raise LeafExit(f"{run.ctx.path[-1]} called sys.exit({error.exit})") from error

    return await await_evidence(run, asyncio.get_running_loop().create_task(body(), name=run.operation))


async def await_evidence(run: LeafRun, ended: "asyncio.Future[T]") -> T:
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
            await _let_end(ended, run.limit_grace)
        finally:  # told twice, as when a whole loop ends, it goes at once
            run.leave(ended)
        raise
    if not ended.done():
        raise run.leave(ended)
    try:
        result = ended.result()
    except BaseException as error:
        raise await ended_by(run, error)  # noqa: B904  # it is its own cause, or has it
    if run.owned is None:
        run.finished()
    else:
        await end_with_its_account(run)
    return result


async def end_with_its_account(run: LeafRun) -> None:
    """The leaf has a value. If it was stopped all the same, what it started ends with it."""
    try:
        await run.end_owned()
    finally:
        run.finished()


async def ended_by(run: LeafRun, error: BaseException) -> BaseException:
    """The leaf ended by this error: see to what it started, write it down, and give back what its caller is to get."""
    try:
        if not isinstance(error, GeneratorExit):
            await run.end_owned()
    finally:  # also if the caller is told to go meanwhile
        told = run.failed(error)
    if told is not error:
        told.__cause__ = error
    return told


async def _let_end(ended: "asyncio.Future[Any]", seconds: float) -> None:
    try:
        with shield(seconds):
            await asyncio.wait([ended])
    except AbortError:
        pass  # it did not end in time; the receipt says so
