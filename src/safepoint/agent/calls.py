"""Owns the tool calls of one answer: they run side by side, and each gets exactly one result that says what happened.

Calls of a tool with `parallel=False` run alone, between those before and those after them in the answer. A call that
waits for its turn, or for a slot, when a stop comes has not begun: it is "not started", and on no record.

Three rules keep the results true, whatever ends a call:

1. The durable record comes first. Before the body of a call begins, `CallRecorded` is emitted and `_record_start`
   waits until it survives a crash. After a crash, a call that is on record counts as "unknown", and one that is not
   as "not started". If the body began first, a crash in between would make a call that had effects look as if it
   had none, and it would run twice. Calls whose tool only reads are not waited for. The wait ends early at a stop;
   the start gate of the leaf then refuses the body, so that nothing begins that is not on record.
2. The result exists before the call does. `_run_call` starts with "unknown" and writes the result in a `finally`
   block. A cancellation of the agent's own task leaves the block with "unknown", everything else with what is known.
3. A stop wins over an error. Stopping breaks connections and files, so that a tool often raises some error of its own
   after an abort. `_result_of_error` therefore looks at the signal first: an error after the abort is an interruption,
   an error without one is the tool's failure, which the model gets to read. A call that may have had effects, or that
   was left running, is never called interrupted without saying so.

One call ending does not end the other ones: no exception of a tool leaves `_run_call`, so the TaskGroup has nothing
to cancel. All calls reach `_record_start` in the same round of the event loop, so that a session can write their
records in one batch.

Retrying a failed tool is the model's decision. Knows nothing of models.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from ..abort import AbortError
from ..abort.guard import external_cancel_count
from ..errors import describe
from ..events import CallRecorded, ToolCalled, ToolEnded
from ..messages import CallStatus, ToolCall, ToolResult
from ..run.context import Context
from ..run.leaf import launch
from ..run.leaf_run import LeafRun, RunsIn
from ..run.partial_work import PartialWork, partial_work
from .call_slots import CallSlots
from .context import AskUserFn, ToolContext
from .conversation import AgentResult, Conversation
from .model_text import INTERRUPTED, NOT_RUN, UNKNOWN
from .tool import AnyTool, BadArguments
from .value_text import as_text

__all__ = ["idempotency_key", "run_calls"]

# The answers that allow a call, in any case and without punctuation. Everything else denies it: "yes, but not that
# account" begins with a yes, too.
YES = frozenset({"allow", "allowed", "approve", "approved", "go ahead", "ok", "sure", "true", "y", "yes", "yes please"})
NO = frozenset({"", "deny", "denied", "false", "n", "no"})
RUN_AGAIN, LEAVE = "run it again", "leave it"


@dataclass(frozen=True, slots=True)
class _Round:
    """What the calls of one answer share."""

    ctx: Context
    conversation: Conversation
    tools: Mapping[str, AnyTool]
    ask: AskUserFn
    slots: CallSlots


async def run_calls(
    ctx: Context,
    conversation: Conversation,
    tools: Mapping[str, AnyTool],
    ask: AskUserFn,
    max_parallel: int | None = None,
) -> None:
    """Run the open calls of the last answer side by side, and add their results to the conversation.

    Raises nothing for what a tool did: that is in the results.
    """
    this_round = _Round(ctx, conversation, tools, ask, CallSlots(max_parallel))
    for calls in _groups(conversation.open_calls, tools):
        if len(calls) == 1:
            await _run_call(this_round, calls[0])
        else:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(_run_call(this_round, call), name=f"{ctx.operation}/{call.name}")
    conversation.close_tool_round()


def _groups(calls: tuple[ToolCall, ...], tools: Mapping[str, AnyTool]) -> list[list[ToolCall]]:
    """Return the calls in the order of the answer, in groups that run side by side."""
    groups: list[list[ToolCall]] = []
    joins = False  # whether the next parallel call belongs to the last group
    for call in calls:
        tool = tools.get(call.name)
        parallel = tool is None or tool.parallel
        if parallel and joins:
            groups[-1].append(call)
        else:
            groups.append([call])
        joins = parallel
    return groups


async def _run_call(this_round: _Round, call: ToolCall) -> None:
    ctx, conversation = this_round.ctx, this_round.conversation
    if ctx.has_listener:
        key = idempotency_key(conversation.id, call.call_id)
        ctx.emit(
            ToolCalled(
                **ctx.stamp(), call_id=call.call_id, name=call.name, arguments=call.arguments, idempotency_key=key
            )
        )
    # Rule 2 of the module docstring: the truth about a call that is left by a cancellation of this task.
    result = UNKNOWN.result(call)
    try:
        prepared = await _prepare(this_round, call)
        if isinstance(prepared, ToolResult):
            result = prepared
        else:
            async with this_round.slots.hold(prepared.tool.kind, ctx.signal):
                result = await _run_body(this_round, call, prepared)
    finally:
        conversation.add_result(result)
        if ctx.has_listener:
            ctx.emit(
                ToolEnded(
                    **ctx.stamp(), call_id=call.call_id, name=call.name, status=result.status, content=result.content
                )
            )


def idempotency_key(conversation_id: str, call_id: str) -> str:
    """Return the key of a call: the conversation keeps its id for life, and the ids of calls are unique in it.

    Models choose the ids of calls. They are quoted, so that the key of a call is never that of a call inside of another
    one, and fits in an HTTP header.
    """
    return f"{conversation_id}:{quote(call_id, safe='')}"


def _context_of(ctx: Context, call: ToolCall) -> Context:
    """Return the context of a call before its body begins: questions and delays are events of that call."""
    child = ctx.child(call.name)
    child.calls = (*ctx.calls, call.call_id)
    return child


@dataclass(frozen=True, slots=True)
class _PreparedCall:
    """A call that may begin: its tool, its arguments, and the pending cancellations of this task before it."""

    tool: AnyTool
    value: object
    cancels_before: int


async def _prepare(this_round: _Round, call: ToolCall) -> ToolResult | _PreparedCall:
    """Check a call, and ask the person where that is needed. The result is that of a call that must not begin."""
    ctx, conversation, ask = this_round.ctx, this_round.conversation, this_round.ask
    if (reason := conversation.why_not_run(call)) is not None:
        return NOT_RUN.result(call, reason)
    tool = this_round.tools.get(call.name)
    if tool is None:
        known = ", ".join(this_round.tools) or "none"
        return _result(call, "failed", f"There is no tool named {call.name!r}. The tools are: {known}.")
    try:
        value = tool.read(call.arguments)
    except BadArguments as problem:
        return _result(call, "failed", str(problem))
    cancels_before = external_cancel_count()
    uncertain = conversation.uncertain_results.get(call.call_id)
    if uncertain is not None and not await _person_runs_it_again(_context_of(ctx, call), call, ask):
        return uncertain
    if tool.requires_approval and (denial := await _denial(_context_of(ctx, call), call, ask)) is not None:
        return denial
    return _PreparedCall(tool, value, cancels_before)


async def _run_body(this_round: _Round, call: ToolCall, prepared: _PreparedCall) -> ToolResult:
    tool, value = prepared.tool, prepared.value
    ctx, conversation = this_round.ctx, this_round.conversation
    make_context = partial(
        ToolContext,
        call_id=call.call_id,
        idempotency_key=idempotency_key(conversation.id, call.call_id),
        kept=conversation.kept.get(call.call_id),
        ask=this_round.ask,
    )
    runs_in: RunsIn | None = "task" if tool.kind == "await" else None
    run = LeafRun(ctx, tool.name, tool.kind, tool.policy, runs_in=runs_in, context=make_context)
    tool_ctx = run.ctx
    tool_ctx.records_agents = conversation.record is not None
    if ctx.signal.aborted or conversation.stopped_inside:  # the call has waited, and a stop came meanwhile
        run.skip()
        return NOT_RUN.result(call)
    try:
        await _record_start(this_round, call, tool, tool_ctx)
    except Exception as error:
        run.skip()
        return NOT_RUN.result(call, f"It could not be put on record: {describe(error)}")
    try:
        returned = await _launch(run, tool, value)
        content = as_text(returned.text if isinstance(returned, AgentResult) else returned)
    except BaseException as error:
        if _ends_the_task(error, prepared.cancels_before, tool):
            raise
        return _result_of_error(this_round, call, tool, run, error)
    finally:
        conversation.usage += tool_ctx.usage
    conversation.kept.pop(call.call_id, None)
    return _result(call, "completed", content)


async def _record_start(this_round: _Round, call: ToolCall, tool: AnyTool, tool_ctx: ToolContext) -> None:
    """Record that the body begins, and wait until the record survives a crash. Raises: what the store raised.

    See rule 1 of the module docstring.
    """
    ctx, conversation = this_round.ctx, this_round.conversation
    if ctx.has_listener:
        effects = "child" if tool.kind == "child" else tool.effects or "irreversible"
        ctx.emit(
            CallRecorded(
                **ctx.stamp(),
                name=tool.name,
                effects=effects,
                call_id=tool_ctx.call_id,
                idempotency_key=tool_ctx.idempotency_key,
            )
        )
    if tool.effects != "read":
        conversation.record_start(call)
        await (ctx.journal if conversation.record is None else conversation.record).flush(_context_of(ctx, call))


def _launch(run: LeafRun[ToolContext], tool: AnyTool, value: object) -> Awaitable[object]:
    """Start the body of a call.

    A function has a task, a thread or a process of its own, in which it can be abandoned. Agents and flows stay in
    this task: their leaves are abandoned one by one, so that what they have so far is kept.
    """
    fn, ctx = tool.fn, run.ctx
    if tool.is_work:
        resumes = isinstance(ctx.kept, PartialWork) and getattr(fn, "resumes_from_kept", False)
        return launch(run, fn, ctx, ctx.kept if resumes else value)
    assert isinstance(value, dict)  # Tool.read returns one for every tool that is a function
    arguments = value if tool.context_name is None else {**value, tool.context_name: ctx}
    return launch(run, fn, **arguments)


def _ends_the_task(error: BaseException, cancels_before: int, tool: AnyTool) -> bool:
    """Whether an exception is meant for the task of the agent, and not the end of this call alone."""
    # A tool may raise a CancelledError of its own, such as that of a task it awaited: only this task's own counts.
    if isinstance(error, asyncio.CancelledError):
        return external_cancel_count() > cancels_before
    # In a thread or a process of its own `sys.exit()` ends that thread or process, and not this program.
    in_this_task = tool.kind not in ("thread", "process")
    return in_this_task and isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def _result_of_error(
    this_round: _Round, call: ToolCall, tool: AnyTool, run: LeafRun[ToolContext], error: BaseException
) -> ToolResult:
    """Return the result of a call that raised. See rule 3 of the module docstring."""
    ctx, conversation = this_round.ctx, this_round.conversation
    if run.entry.fate == "not_started":
        return NOT_RUN.result(call)
    stopped_inside = ctx.stop.caused(error)
    if not ctx.signal.aborted and not stopped_inside:
        conversation.kept.pop(call.call_id, None)  # a failed call does not run again
        return _result(call, "failed", f"{tool.name} failed: {describe(error)}")
    if isinstance(error, AbortError):
        partial_result = ctx.take_partial(error)
        kept = partial_result if isinstance(partial_result, AgentResult) else partial_work(partial_result)
        if kept is not None:
            conversation.kept[call.call_id] = kept
    conversation.stopped_inside = conversation.stopped_inside or stopped_inside
    if run.entry.fate == "still_running" or run.left_running or tool.effects == "irreversible":
        return UNKNOWN.result(call)
    harmless = tool.effects == "read" or tool.kind == "child"
    return INTERRUPTED.result(call, "" if harmless else "It may have had effects.")


async def _person_runs_it_again(ctx: Context, call: ToolCall, ask: AskUserFn) -> bool:
    """Ask the person whether a cut-off call, of which nothing is known, is to run again."""
    question = f"Nobody knows whether {call.name}({call.arguments}) took effect before it was cut off. Run it again?"
    try:
        return _plain(await ask(ctx, question, (RUN_AGAIN, LEAVE))) in YES | {RUN_AGAIN}
    except Exception:
        return False  # there is no person, or the run was stopped: the old result of the call stays


async def _denial(ctx: Context, call: ToolCall, ask: AskUserFn) -> ToolResult | None:
    """Ask the person to allow a call. Return the result of a denied call, or None if it may run. A stop denies it."""
    if ctx.signal.aborted:
        return NOT_RUN.result(call)
    try:
        answer = await ask(ctx, f"Allow {call.name}({call.arguments})?", ("allow", "deny"))
    except Exception as error:
        if ctx.signal.aborted:
            return NOT_RUN.result(call, "The person was asked to allow it; the stop denied it.")
        return _result(
            call, "failed", f"It did not run: it could not be asked whether it is allowed: {describe(error)}"
        )
    if _plain(answer) in YES:
        return None  # if a stop came meanwhile, the start gate of the call refuses it
    words = "" if _plain(answer) in NO else f" The user answered: {answer.strip()}"
    return _result(call, "failed", f"The user did not allow this call of {call.name}. It did not run.{words}")


def _plain(answer: str) -> str:
    """Return an answer in lower case, without punctuation."""
    return " ".join("".join(c if c.isalnum() else " " for c in answer).lower().split())


def _result(call: ToolCall, status: CallStatus, content: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, name=call.name, content=content, status=status)
