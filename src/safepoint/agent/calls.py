"""Owns the tool calls of one answer: side by side, each with exactly one result that says truthfully what became of it.

A call is on record before its body begins, so that after a crash nobody repeats what may have had an effect. Knows
nothing of models. Retrying a failed tool is the model's choice, never ours.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from ..abort import AbortError
from ..abort.guard import external_cancel_count
from ..errors import describe
from ..run.context import Context
from ..run.events import CallRecorded, ToolCalled, ToolEnded
from ..run.leaf import in_process, in_task, in_thread, inline
from ..run.leaf_run import LeafRun
from ..run.messages import CallStatus, ToolCall, ToolResult
from ..run.partial_work import PartialWork, partial_work
from ..run.receipt import Usage
from .conversation import AgentResult, Conversation
from .history import INTERRUPTED, NOT_RUN, UNKNOWN
from .tool import AnyTool, AskUserFn, BadArguments, ToolContext, as_text

__all__ = ["run_calls"]

YES = frozenset({"allow", "yes", "y", "ok", "true"})
RUN_AGAIN, LEAVE = "run it again", "leave it"


async def run_calls(ctx: Context, conversation: Conversation, tools: Mapping[str, AnyTool], ask: AskUserFn) -> None:
    """Run the open calls of the last answer, all at once. Raises nothing for what a tool did."""
    calls = conversation.open_calls
    if len(calls) == 1:
        await _run_call(ctx, conversation, calls[0], tools, ask)
    elif calls:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(_run_call(ctx, conversation, call, tools, ask), name=f"{ctx.operation}/{call.name}")
    conversation.close_round()


async def _run_call(
    ctx: Context, conversation: Conversation, call: ToolCall, tools: Mapping[str, AnyTool], ask: AskUserFn
) -> None:
    key = idempotency_key(conversation, call)
    if ctx.has_listener:
        told: dict[str, Any] = {"name": call.name, "arguments": call.arguments, "idempotency_key": key}
        ctx.emit(ToolCalled(**ctx.stamp(), call_id=call.call_id, **told))
    result = UNKNOWN.result(call)  # until more is known: what is meant for the task itself may pass through
    try:
        result = await _result(ctx, conversation, call, tools, ask)
    finally:
        conversation.results[call.call_id] = result
        if ctx.has_listener:
            told = {"name": call.name, "status": result.status, "content": result.content}
            ctx.emit(ToolEnded(**ctx.stamp(), call_id=call.call_id, **told))


def idempotency_key(conversation: Conversation, call: ToolCall) -> str:
    """The key of a call: the conversation keeps its id, and the model's ids of calls are unique inside of it."""
    return f"{conversation.id}:{call.call_id}"


async def _result(
    ctx: Context, conversation: Conversation, call: ToolCall, tools: Mapping[str, AnyTool], ask: AskUserFn
) -> ToolResult:
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        return _told(call, "failed", f"There is no tool named {call.name!r}. The tools are: {known}.")
    try:
        value = tool.read(call.arguments)
    except BadArguments as problem:
        return _told(call, "failed", str(problem))
    before = external_cancel_count()
    doubtful = conversation.doubtful.get(call.call_id)
    if doubtful is not None and not await _may_run_again(ctx, call, ask):
        return doubtful
    if tool.requires_approval and (refusal := await _refused(ctx, call, ask)) is not None:
        return refusal
    run = LeafRun(
        ctx,
        tool.name,
        tool.kind,
        tool.policy,
        runs_in="task" if tool.kind == "await" else "caller",
        context=ToolContext,
    )
    tool_ctx: Any = run.ctx  # a LeafRun makes the context it is told to make
    tool_ctx.call_id, tool_ctx.kept, tool_ctx._ask = call.call_id, conversation.kept.get(call.call_id), ask
    tool_ctx.idempotency_key = idempotency_key(conversation, call)
    tool_ctx.calls = (*ctx.calls, call.call_id)
    tool_ctx.spent = Usage()
    try:
        await _put_on_record(ctx, tool, tool_ctx)
    except Exception as error:
        run.skip()
        return NOT_RUN.result(call, f"It could not be put on record: {describe(error)}")
    try:
        returned = await _launch(run, tool, value)
        content = as_text(returned.text if isinstance(returned, AgentResult) else returned)
    except BaseException as error:
        if _is_for_the_task(error, before, tool):
            raise
        return _ended(ctx, conversation, call, tool, run, error)
    finally:
        conversation.usage += tool_ctx.spent
    conversation.kept.pop(call.call_id, None)
    return _told(call, "completed", content)


async def _put_on_record(ctx: Context, tool: AnyTool, tool_ctx: ToolContext) -> None:
    """Write down that the body begins, and wait until that survives a crash. Raises: what the store raised.

    A tool that only reads is not waited for: running it again does no harm. The wait ends at a stop; the gate before
    the body, which every leaf has, then keeps it from beginning. The calls of one answer get here in one round of the
    event loop, so that a session writes them in one batch.
    """
    if ctx.has_listener:
        effects = "child" if tool.kind == "child" else tool.effects or "irreversible"
        told: dict[str, Any] = {"call_id": tool_ctx.call_id, "idempotency_key": tool_ctx.idempotency_key}
        ctx.emit(CallRecorded(**ctx.stamp(), name=tool.name, effects=effects, **told))
    if tool.effects != "read":
        await ctx.journal.flush(ctx)


def _launch(run: LeafRun[ToolContext], tool: AnyTool, value: Any) -> Awaitable[Any]:
    """Start the function where it belongs: in a task, a thread or a process of its own, in which it can be left behind.

    Agents and flows as tools stay in this task: what is inside them is left behind leaf by leaf, so that what they
    have so far is not lost.
    """
    fn, name = tool.fn, tool.context_name
    if tool.kind == "process" and not tool.is_work:
        return in_process(run, fn, None, {**value, **({name: run.ctx} if name else {})})

    def call(ctx: Any, value: Any) -> Any:
        if not tool.is_work:
            return fn(**value, **({name: ctx} if name else {}))
        goes_on = isinstance(ctx.kept, PartialWork) and getattr(fn, "goes_on_from_kept", False)
        return fn(ctx, ctx.kept if goes_on else value)

    call.__wrapped__ = fn  # type: ignore[attr-defined]  # an interrupt looks for the file it is in
    if tool.kind == "thread":
        return in_thread(run, call, value)
    if tool.kind == "await":
        return in_task(run, call, value)
    return (inline if run.policy.abandon_after is None else in_task)(run, call, value)


def _is_for_the_task(error: BaseException, before: int, tool: AnyTool) -> bool:
    # A tool may raise anything, also a cancellation that is a private matter of its own.
    if isinstance(error, asyncio.CancelledError):
        return external_cancel_count() > before
    # In a thread or process of its own `sys.exit()` ends what is there, and not this program.
    here = tool.kind not in ("thread", "process")
    return here and isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def _ended(
    ctx: Context,
    conversation: Conversation,
    call: ToolCall,
    tool: AnyTool,
    run: LeafRun[ToolContext],
    error: BaseException,
) -> ToolResult:
    """What is said of a call that raised. A stop plus any error is a stop; without one it is the tool's failure."""
    if run.entry.fate == "not_started":
        return NOT_RUN.result(call)
    stopped_inside = ctx.stop.caused(error)
    if not ctx.signal.aborted and not stopped_inside:
        conversation.kept.pop(call.call_id, None)  # a call that has failed does not run again
        return _told(call, "failed", f"{tool.name} failed: {describe(error)}")
    if isinstance(error, AbortError):
        kept = error.partial if isinstance(error.partial, AgentResult) else partial_work(error.partial)
        if kept is not None:
            conversation.kept[call.call_id] = kept
    conversation.stopped_inside = conversation.stopped_inside or stopped_inside
    if run.entry.fate == "still_running" or run.left_running or tool.effects == "irreversible":
        return UNKNOWN.result(call)
    harmless = tool.effects == "read" or tool.kind == "child"
    return INTERRUPTED.result(call, "" if harmless else "It may have had effects.")


async def _may_run_again(ctx: Context, call: ToolCall, ask: AskUserFn) -> bool:
    """Ask the person whether a call of which nobody knows what became of it is to run again. A stop leaves it."""
    question = f"Nobody knows whether {call.name}({call.arguments}) took effect before it was cut off. Run it again?"
    try:
        return (await ask(ctx, question, (RUN_AGAIN, LEAVE))).strip().lower() in YES | {RUN_AGAIN}
    except Exception:
        return False  # nobody could be asked, or the run was stopped: what was said of the call before stays true


async def _refused(ctx: Context, call: ToolCall, ask: AskUserFn) -> ToolResult | None:
    """Ask the person; None: it may run. A stop denies."""
    if ctx.signal.aborted:
        return NOT_RUN.result(call)
    try:
        answer = await ask(ctx, f"Allow {call.name}({call.arguments})?", ("allow", "deny"))
    except Exception as error:
        if ctx.signal.aborted:
            return NOT_RUN.result(call, "The person was asked to allow it; the stop denied it.")
        return _told(call, "failed", f"It did not run: it could not be asked whether it is allowed: {describe(error)}")
    if answer.strip().lower() in YES:
        return None  # if it was stopped meanwhile, it does not begin
    return _told(call, "failed", f"The user did not allow this call of {call.name}. It did not run.")


def _told(call: ToolCall, status: CallStatus, content: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, name=call.name, content=content, status=status)
