"""Running one leaf operation under the signal: an await, a function in a thread, or one in a child process.

Guard leaves, never orchestration: the loop that calls a leaf is never interrupted from outside. It reads what the leaf
returned, records what happened, and stops when it next looks at the signal. This module does not know about tools,
models or nodes.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import FunctionType
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

from ..abort import AbortError, AbortReason, Guard, shield
from ..abort.guard import Ambient
from ..abort.resource_account import current_account, reset_account
from ..abort.threads import start_in_thread
from ..errors import SafepointError, UsageError
from ..process.isolate import ChildDied, IsolationOptions, call_isolated
from ..receipt import LeafKind
from .context import Context
from .interrupt import AbortInterrupt, InterruptibleCall
from .interrupt.code_location import place
from .interrupt.own_code import function_beneath
from .leaf_run import LeafRun, LeafTimeout
from .owned.threads import ThreadWork
from .policy import Policy

__all__ = ["LeafExit", "LeafTimeout", "kind_of", "launch", "leaf", "name_of", "wait"]

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=Context)
I = TypeVar("I")  # noqa: E741  # the input
DEFAULT = Policy()
COROUTINE_FLAG = inspect.CO_COROUTINE

Args: TypeAlias = tuple[object, ...]
KeywordArgs: TypeAlias = dict[str, Any]


class LeafExit(SafepointError):
    """The function called `sys.exit()`. That ends the leaf, not the program."""


@overload
async def leaf(
    ctx: Context,
    work: Callable[[Context, I], Awaitable[T]],
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
    ctx: Context, work: Callable[[Context, None], Awaitable[T]], *, name: str | None = None, policy: Policy = DEFAULT
) -> T: ...


@overload
async def leaf(
    ctx: Context, work: Callable[[Context, None], T], *, name: str | None = None, policy: Policy = DEFAULT
) -> T: ...


async def leaf(
    ctx: Context,
    work: Callable[..., object],
    value: object = None,
    *,
    name: str | None = None,
    policy: Policy = DEFAULT,
) -> object:
    """Run `work(ctx, value)` under the policy and return its value. The body does not begin after an abort.

    Args:
        ctx: The context of the run.
        work: An async function is awaited in the caller's task. A synchronous one runs in a thread, or with
            `isolation="process"` in a child process that can be killed.
        value: The input of the work.
        name: The name in the receipt; by default that of the function.
        policy: How the leaf is stopped, and its own limits.

    Raises:
        AbortError: The run was aborted. Look at `ctx.signal` after every leaf: the signal decides, not the error.
        LeafTimeout: The time limit of the policy was reached.
    """
    ctx.raise_if_abandoned("leaf()")
    if not callable(work):
        raise TypeError(f"work must be callable, not {type(work).__name__}")
    run = LeafRun(ctx, name or name_of(work), kind_of(work, policy), policy)
    return await launch(run, work, run.ctx, value)


async def wait(ctx: Context, seconds: float) -> None:
    """Pause as a leaf of its own, which an abort ends at once."""
    run = LeafRun(ctx, "wait", "wait", DEFAULT)
    await launch(run, run.ctx.signal.sleep, seconds)


def name_of(work: Callable[..., object]) -> str:
    """The name of a callable, for people."""
    return str(getattr(work, "__name__", None) or type(work).__name__)


def exit_of(work: Callable[..., object], error: SystemExit) -> LeafExit:
    """Turn a `sys.exit()` inside a leaf into an error of that leaf.

    Libraries such as `argparse` call it for a wrong argument, and that must not end the whole program.
    """
    exit = LeafExit(f"{name_of(function_beneath(work) or work)} called sys.exit({error.code!r})")
    exit.__cause__ = error
    return exit


def kind_of(work: Callable[..., object], policy: Policy) -> LeafKind:
    """Decide how the work runs: `async def` is awaited, everything else gets a thread or a process."""
    if policy.isolation == "process":
        return "process"
    # The usual case first: looking at the flags of the code is ten times as fast as asking `inspect`.
    if type(work) is FunctionType and work.__code__.co_flags & COROUTINE_FLAG:
        return "await"
    call = work if inspect.isroutine(work) or isinstance(work, functools.partial) else type(work).__call__
    return "await" if inspect.iscoroutinefunction(call) else "thread"


def launch(
    run: LeafRun[Any], work: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[object, object, Any]:
    """Run `work(*args, **kwargs)` as the body of a leaf, at the place that the kind and the policy of the leaf say.

    Every leaf begins here, except for streams, which their reader runs.

    Args:
        run: The leaf. Its context is what the body may get as an argument.
        work: An async function for a body in a task, a synchronous one for a thread or a process of its own. The child
            process must be able to import it.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        The coroutine to await for the value of the body.
    """
    match run.runs_in:
        case "caller":
            return inline(run, work, args, kwargs)
        case "task":
            return in_task(run, work, args, kwargs)
        case "thread":
            return in_thread(run, functools.partial(work, *args, **kwargs))
        case "process":
            return in_process(run, work, args, kwargs)


async def inline(run: LeafRun[C], work: Callable[..., Any], args: Args, kwargs: KeywordArgs) -> object:
    """Run the body in the caller's own task: one guard, no second task and no future."""
    run.begin()
    account = current_account.set(run)
    try:
        with run.guard_body():
            result = await work(*args, **kwargs)
        run.check_whole()
    except BaseException as error:
        # A SystemExit out of an agent or a flow that runs as a part (kind "child") was not raised by a leaf's own
        # function: it is meant for the program.
        if isinstance(error, SystemExit) and run.kind != "child":
            error = exit_of(work, error)
        ending = run.end_owned(error)
        raise run.failed(error) if ending is None else await error_after(run, error, ending)  # noqa: B904  # has a cause
    finally:
        reset_account(account)
    if run.owned is None:
        run.finished()
    else:
        await finish(run)
    return result


def in_task(
    run: LeafRun[C], work: Callable[..., Any], args: Args, kwargs: KeywordArgs
) -> Coroutine[object, object, object]:
    """Run the body in a task of its own, which can be left behind."""

    async def body() -> object:
        run.begin()
        current_account.set(run)  # in the context of this task alone
        try:
            with run.guard_body():
                result = await work(*args, **kwargs)
            run.check_whole()
            return result
        except SystemExit as error:  # from a task of its own it would end the event loop
            raise exit_of(work, error) from error

    return await_evidence(run, run.loop.create_task(body(), name=run.operation))


def in_thread(run: LeafRun[C], work: Callable[[], object]) -> Coroutine[object, object, object]:
    """Run the body in a thread."""
    call = InterruptibleCall(work, interruptible=run.policy.interruptible)
    thread = run.work = ThreadWork(call, run)
    run.locate = call.where

    def body() -> object:
        run.begin()
        current_account.set(run)  # in the context of this call alone
        try:
            with Ambient(run.signal):
                returned = thread.run()
        except SystemExit as error:
            raise exit_of(work, error) from error
        except asyncio.CancelledError as error:
            # The function ran an event loop of its own, whose main task was ended to interrupt the function.
            if call.interrupted or run.being_interrupted:
                raise AbortInterrupt from error
            raise
        if (problem := unfinished_result(returned)) is not None:
            raise UsageError(f"{run.operation} returned {problem}")
        return returned

    run.when_interrupted(0.0, thread.end)
    run.when_interrupted(run.policy.interrupt_after, thread.interrupt)
    return await_evidence(run, start_in_thread(body))


def unfinished_result(returned: object) -> str | None:
    """Describe a result that stands for work which has not run: a coroutine, a generator or another awaitable.

    The caller would drop it, and the work would silently never run. None if the result is an ordinary value.
    """
    if inspect.iscoroutine(returned):
        returned.close()
        return "a coroutine, which is never awaited: declare the function with `async def`"
    if inspect.isasyncgen(returned):
        return "an async generator, which is never read: read it in the function, and return what it yields"
    if inspect.isgenerator(returned):
        return "a generator, which is never read: read it in the function, and return what it yields"
    if inspect.isawaitable(returned):
        return "an awaitable, which is never awaited: await it in a function that is declared with `async def`"
    return None


def in_process(
    run: LeafRun[C], work: Callable[..., object], args: Args, kwargs: KeywordArgs
) -> Coroutine[object, object, object]:
    """Run the body in a child process that can be killed."""

    def started(pid: int) -> None:
        run.locate = lambda: f"process {pid}"

    async def body() -> object:
        run.begin()
        current_account.set(run)  # in the context of this task alone
        grace = run.policy.grace
        kill = run.interrupt_signal()
        try:
            options = IsolationOptions(signal=run.signal, kill=kill, grace=grace, on_start=started)
            return await call_isolated(work, args, kwargs, options)
        except ChildDied as error:
            if error.exit is None:
                raise
            raise LeafExit(f"{run.ctx.path[-1]} called sys.exit({error.exit})") from error

    return await_evidence(run, run.loop.create_task(body(), name=run.operation))


async def await_evidence(run: LeafRun[C], body: "asyncio.Future[T]") -> T:
    """Wait for a body that runs by itself.

    After an abort, wait until the body is over, which is the evidence that it stopped, or until it is abandoned.
    """
    if isinstance(body, asyncio.Task):
        task = body
        run.locate = run.locate or (lambda: place(task))
    try:
        try:
            with Guard(run.signal):
                await asyncio.wait([body])
        except AbortError:
            either: list[asyncio.Future[T] | asyncio.Future[None]] = [body, run.abandoned]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        run.controller.abort(AbortReason("parent", "the task that waited for it was cancelled"))
        try:
            await _let_end(body, run.limit_grace)
        finally:  # on a second cancellation (the loop is shutting down) stop waiting immediately
            run.go_on_without(body)
        raise
    if not body.done():
        raise run.go_on_without(body)
    try:
        result = body.result()
    except BaseException as error:
        ending = run.end_owned(error)
        raise run.failed(error) if ending is None else await error_after(run, error, ending)  # noqa: B904  # has a cause
    if run.owned is None:
        run.finished()
    else:
        await finish(run)
    return result


async def finish(run: LeafRun[C]) -> None:
    """Record that the body has returned a value. If the leaf was stopped as well, first end what it started."""
    try:
        if (ending := run.end_owned()) is not None:
            await ending
    finally:
        run.finished()


async def error_after(run: LeafRun[C], error: BaseException, ending: Awaitable[None]) -> BaseException:
    """Wait for the end of everything that a failed leaf started, record how the leaf ended, and return its error."""
    try:
        await ending
    finally:  # even if the caller is cancelled meanwhile
        raised = run.failed(error)
    return raised


async def _let_end(body: "asyncio.Future[T]", seconds: float) -> None:
    try:
        with shield(seconds):
            await asyncio.wait([body])
    except AbortError:
        pass  # it did not end in time; the receipt says so
