"""Owns the agent and its loop: ask the model, run its tool calls side by side, ask again, until it has answered.

The loop itself is never interrupted, only what it awaits. After each leaf it writes down what happened, and then checks
the signal and the stop. Knows nothing of providers, turns and sessions.
"""

import asyncio
import copy
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..abort import AbortController, AbortSignal
from ..abort.clock import check_seconds
from ..abort.guard import external_cancel_count
from ..abort.reason import caller, error_from
from ..abort.renamed_arguments import accepts_deadline, suggests
from ..errors import SafepointError, UsageError, require_method, shorten
from ..events import AnswerFinished, AnswerRestarted, AnswerStarted, TextStreamed
from ..messages import AssistantMessage, FinishReason, Message, SystemMessage, ToolResult, UserMessage
from ..receipt import Usage
from ..run.ask import AskUser
from ..run.context import Context
from ..run.policy import Policy
from ..run.retry import Retry
from ..run.stop import StopAt
from ..run.stream import stream
from .agent_run import AgentRun, AgentWork, Questions, refuse_question
from .builtin import ask_user as ask_user_tool
from .calls import run_calls
from .context import AskUserFn, ToolContext, ask_function_of, key_of
from .conversation import AgentResult, Conversation, PartialAnswer, RunAgain, never_run_again
from .left_behind import stop_left_behind
from .model import AnswerEnded, CallDelta, Chunk, Model, ModelError, ModelRequest, TextDelta, UsageReported
from .record import ConversationRecord, record_in
from .tool import AnyTool, ToolLike, tool

__all__ = ["Agent", "LimitExceeded"]

# A provider may ask to wait for up to a minute, because rate limits count by the minute. Our own pauses are shorter.
RETRY = Retry(attempts=4, delay=0.5, max_delay=60, on=lambda error: isinstance(error, ModelError) and error.retryable)
DEFAULT = Policy()
DESCRIPTION = 300  # characters of instructions that describe an agent to another one

# What is said of an answer with neither text nor calls, where the same request would end in the same way.
EMPTY_ANSWERS: dict[FinishReason, str] = {
    "length": "used up its token limit before the first word of its answer: give it a higher limit",
    "content_filter": "gave no answer: the provider's content filter held it back",
    "refusal": "refused to answer",
}


class LimitExceeded(SafepointError):
    """An agent used up its steps or its tokens before it had an answer."""


class Agent:
    """A model with tools and instructions. One agent may have many runs at once; they do not affect each other."""

    # When it runs as Work, nothing interrupts it from outside: it stops by itself, leaf by leaf.
    handles_abort = True

    @suggests(system_prompt="instructions", system="instructions", functions="tools", llm="model")
    def __init__(
        self,
        model: Model,
        *,
        tools: Iterable[ToolLike] = (),
        instructions: str = "",
        name: str = "agent",
        description: str = "",
        ask_user: AskUser | bool | None = None,
        retry: Retry = RETRY,
        max_steps: int = 50,
        max_parallel: int | None = None,
        token_budget: int | None = None,
        model_policy: Policy = DEFAULT,
    ) -> None:
        """Make an agent.

        Args:
            model: What answers.
            tools: What the model may call: functions, tools, agents, any Work.
            instructions: The system message.
            name: The name in events, receipts and errors.
            description: What it does, for the model of another agent that has it as a tool. By default the first
                sentence of the instructions.
            ask_user: Answers questions to the person: `fn(question)` or `fn(question, *, signal)`. With True,
                `AgentRun.answer` does.
            retry: For requests that failed and may succeed later. Tools are never retried.
            max_steps: How many requests one run may make.
            max_parallel: How many tool calls of one answer run at once. By default async calls have no limit, and
                32 synchronous ones run at once.
            token_budget: How many tokens one run may use, in and out, sub-agents included. It is checked before each
                request.
            model_policy: How a request is stopped.

        Raises:
            UsageError: An argument is wrong, or two tools have the same name.
        """
        require_method(model, "stream", 'model must be a model such as OpenAIModel("…")')
        given: object = tools  # callers without a type checker give a tool alone, too
        if not isinstance(given, Iterable):
            raise UsageError(f"tools must be a list of tools, not {shorten(repr(given), 100)}: put it into [ ]")
        text: object = instructions
        if not isinstance(text, str):
            raise UsageError(f"instructions must be a text, not {type(text).__name__}")
        if max_steps < 1:
            raise UsageError(f"max_steps must be 1 or more, not {max_steps!r}")
        if max_parallel is not None and (type(max_parallel) is not int or max_parallel < 1):
            raise UsageError(f"max_parallel must be a whole number of 1 or more, or None, not {max_parallel!r}")
        self.model = model
        self.name = name
        self.instructions = instructions
        self.description = description
        self._callback: AskUser | None = ask_user if callable(ask_user) else None
        self._can_ask = bool(ask_user)
        self._retry = retry
        self._max_steps = max_steps
        self._max_parallel = max_parallel
        self._token_budget = token_budget
        self._model_policy = model_policy
        self._tools: dict[str, AnyTool] = {}
        for each in [*tools, *([ask_user_tool] if ask_user else [])]:
            made = tool(each)
            if made.name in self._tools:
                raise UsageError(f"agent {name!r} has two tools named {made.name!r}: give one of them another name=…")
            self._tools[made.name] = made
        self._specs = tuple(made.spec for made in self._tools.values())

    @accepts_deadline
    @suggests(message_history="history", messages="history", user_prompt="prompt", input="prompt")
    def run(
        self,
        prompt: "str | Message | Sequence[Message] | None" = None,
        *,
        history: Sequence[Message] = (),
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        resume: AgentResult | None = None,
    ) -> AgentRun:
        """Make a run. It starts with the first await, iteration or `async with`.

        Args:
            prompt: What the user says: a text, a message, or several messages.
            history: The messages before it. A history that a provider would refuse is repaired.
            signal: Stops the run; by default the signal of the work around it.
            timeout: Seconds after which the run is stopped.
            resume: The `partial` of a stopped run, instead of a prompt. Only what has not run yet is run.

        Inside a node of a flow that runs again, this is the run that the node made before, and it goes on.

        Raises:
            UsageError: The arguments do not go together, or the prompt is empty.
        """
        conversation = _start_conversation(prompt, history, resume, self._run_again)
        record = record_in(None, self.name)
        if record is not None:
            conversation = record.restore(conversation, resume, self._run_again)
        work = AgentWork(self.name, self._converse, self._callback)
        return AgentRun(work, conversation, signal=signal, timeout=timeout, origin=caller(1))

    async def _converse(self, ctx: Context, conversation: Conversation, ask: AskUserFn) -> AgentResult:
        while not conversation.answered:
            if conversation.in_tool_round:
                await run_calls(ctx, conversation, self._tools, ask, self._max_parallel)
                _check_stop(ctx, StopAt.AFTER_TOOLS, stopped_inside=conversation.stopped_inside)
                await conversation.flush(ctx)
            self._check_limits(conversation)
            await self._retry.run(lambda: self._ask_model(ctx, conversation), ctx=ctx)
            if conversation.in_tool_round:
                _check_stop(ctx, StopAt.AFTER_MODEL)
        await conversation.flush(ctx)
        return conversation.sealed()

    async def _ask_model(self, ctx: Context, conversation: Conversation) -> None:
        """Make one request. The answer is added to the conversation when it is complete."""
        system = [SystemMessage(text=self.instructions)] if self.instructions else []
        request = ModelRequest(messages=(*system, *conversation.messages), tools=self._specs)
        if conversation.answer is not None and conversation.answer.text and ctx.has_listener:
            ctx.emit(AnswerRestarted(**ctx.stamp()))
        answer = conversation.answer = PartialAnswer()
        if ctx.has_listener:
            ctx.emit(AnswerStarted(**ctx.stamp(), model=self.model.name, step=conversation.steps + 1))
        cancels_before = external_cancel_count()
        try:
            source = self.model.stream(request, signal=ctx.signal)
            async with stream(ctx, source, name="model", policy=self._model_policy) as chunks:
                await _read(ctx, chunks, answer)
            if not answer.finished:
                raise ModelError(f"the answer of {self.model.name} broke off before its end", retryable=True)
        except asyncio.CancelledError as error:
            if external_cancel_count() > cancels_before:
                raise
            # Nothing cancelled this task: the client library let a CancelledError of one of its own tasks escape.
            raise ModelError(f"the request to {self.model.name} was dropped by its client", retryable=True) from error
        finally:
            self._record_usage(ctx, conversation, answer, request)
        conversation.answer = None
        conversation.steps += 1
        if not answer.text.strip() and not answer.calls():
            raise _empty_answer(self.model.name, answer.finish_reason)
        conversation.add(answer)

    def _record_usage(
        self, ctx: Context, conversation: Conversation, answer: PartialAnswer, request: ModelRequest
    ) -> None:
        usage = answer.cost(request, stopped=ctx.signal.aborted)
        conversation.usage += usage
        ctx.receipt_builder.usage += usage
        if ctx.has_listener:
            reason = answer.finish_reason
            ctx.emit(
                AnswerFinished(
                    **ctx.stamp(), text=answer.text, interrupted=reason is None, usage=usage, finish_reason=reason
                )
            )

    def _check_limits(self, conversation: Conversation) -> None:
        if conversation.steps >= self._max_steps:
            raise LimitExceeded(
                f"agent {self.name!r} has made {conversation.steps} requests; max_steps={self._max_steps}"
            )
        used = conversation.usage.input_tokens + conversation.usage.output_tokens
        if self._token_budget is not None and used >= self._token_budget:
            raise LimitExceeded(f"agent {self.name!r} has used {used} tokens; token_budget={self._token_budget}")

    async def __call__(self, ctx: Context, value: "str | Sequence[Message] | AgentResult", /) -> AgentResult:
        """Run the agent as Work.

        Args:
            ctx: The context of a run, which this then is, or of a leaf, in which this becomes a child run.
            value: A prompt, a whole conversation, or the `partial` of a stopped run.

        Raises:
            AbortError: The run was stopped. Its `partial` is the conversation so far.
        """
        inner = ctx if ctx.is_run else ctx.child_run(self.name, AbortController(ctx.signal))
        return await self._run_as_child(ctx, inner, value, record_in(ctx, self.name))

    async def _run_as_child(
        self,
        ctx: Context,
        inner: Context,
        value: "str | Sequence[Message] | AgentResult",
        record: ConversationRecord | None,
    ) -> AgentResult:
        conversation = Conversation()
        try:
            given = value if isinstance(value, AgentResult) else None
            conversation = (
                _start_conversation(value)
                if not isinstance(value, AgentResult)
                else Conversation(resume=value, run_again=self._run_again)
            )
            conversation.usage = Usage()  # the run that was stopped has counted its own usage
            if record is not None:
                conversation = record.restore(conversation, given, self._run_again)
                if isinstance(ctx, ToolContext):
                    conversation.usage = Usage()  # the agent around it has counted it
            conversation.id = conversation.id or key_of(ctx, inner)
            return await self._converse(inner, conversation, self._ask_function(ctx))
        except Exception as error:
            if inner.signal.aborted:
                raise error_from(inner.signal.reason or inner.stop.reason, conversation.sealed()) from error
            ctx.keep_partial(error, conversation.sealed())
            raise
        finally:
            if inner is not ctx:
                inner.stop.close()
            if isinstance(ctx, ToolContext):
                ctx.usage += conversation.usage

    def _run_again(self, result: ToolResult) -> RunAgain:
        """Decide whether a call of a stopped conversation runs again, by what its tool says of its effects.

        A call that did not begin runs. One that was cut off, or whose outcome is unknown, may have had its effects: it
        runs again only if that does no harm, or if it continues from where it was.
        """
        tool = self._tools.get(result.name)
        match result.status:
            case "not_started":
                return "yes"
            case "completed" | "failed":
                return "no"
            case "interrupted" | "unknown":
                if tool is None:
                    return "no"
                if tool.kind == "child" or tool.effects in ("read", "idempotent"):
                    return "yes"
                return "ask" if tool.effects == "reversible" and self._can_ask else "no"

    def _ask_function(self, ctx: Context) -> AskUserFn:
        if self._callback is not None:
            return Questions(self._callback).ask
        return ask_function_of(ctx) or refuse_question

    def as_tool(self, name: str | None = None, description: str | None = None) -> AnyTool:
        """Return this agent as a tool of another agent.

        A call is a child run: it stops with the run of the other agent, and appears in its receipt.
        """

        async def call(prompt: str, ctx: ToolContext) -> AgentResult:
            value = _with_prompt(ctx.kept, prompt) if isinstance(ctx.kept, AgentResult) else prompt
            record = ConversationRecord(ctx, ctx.idempotency_key, self.name) if ctx.records_agents else None
            return await self._run_as_child(ctx, ctx.child_run(None, AbortController(ctx.signal)), value, record)

        text = description or self.description or f"Ask {self.name}. {_first_sentence(self.instructions)}".strip()
        # It handles an abort itself, leaf by leaf. So it only sees the signal, and is not interrupted.
        made = tool(call, name=name or self.name, description=text, on_abort="cooperate")
        return replace(made, kind="child", inner_tools=self._tools)

    def with_abandon_after(self, after: float) -> "Agent":
        """Return a copy of this agent whose tools are abandoned `after` seconds after a stop.

        A tool whose policy has an `abandon_after` of its own keeps it.

        Raises:
            UsageError: `after` is not a number of 0 or more.
        """
        check_seconds("after", after)
        changed = copy.copy(self)
        changed._tools = {
            name: each
            if each.policy.abandon_after is not None
            else replace(each, policy=replace(each.policy, abandon_after=after))
            for name, each in self._tools.items()
        }
        return changed

    async def stop_left_behind(self, conversation: AgentResult) -> tuple[str, ...]:
        """Stop what the unfinished calls of a conversation left running on other machines.

        It is for conversations that are never resumed, because nothing else would stop that work.

        Returns:
            What may still be running, as warnings for a receipt.
        """
        return await stop_left_behind(self._tools, conversation)


def _first_sentence(text: str) -> str:
    """Return the first sentence of instructions. The whole of them is too long for a provider, and not its business."""
    line = next(iter(text.strip().splitlines()), "")
    return shorten(line.partition(". ")[0].removesuffix(".") + "." if line else "", DESCRIPTION)


def _with_prompt(kept: AgentResult, prompt: str) -> AgentResult:
    """Return what a sub-agent continues from. A conversation that was rebuilt after a crash lacks its prompt."""
    first = next((message for message in kept.messages if not isinstance(message, SystemMessage)), None)
    if isinstance(first, UserMessage):
        return kept
    return replace(kept, messages=(UserMessage(text=prompt), *kept.messages))


def _empty_answer(model: str, reason: FinishReason | None) -> ModelError:
    """Return the error for an answer without a word. Only one that just ended may be better the next time."""
    explanation = EMPTY_ANSWERS.get(reason or "stop")
    if explanation is None:
        return ModelError(f"{model} answered with neither text nor tool calls", retryable=True)
    return ModelError(f"{model} {explanation}", finish_reason=reason)


async def _read(ctx: Context, chunks: AsyncIterable[Chunk], answer: PartialAnswer) -> None:
    async for chunk in chunks:
        match chunk:
            case TextDelta(text):
                _show(ctx, answer.add_text(text))
            case CallDelta():
                answer.add_call(chunk)
            case UsageReported(usage):
                answer.usage = usage
            case AnswerEnded(reason):
                _show(ctx, answer.end_text())
                answer.finish_reason = reason
                return  # the answer is complete: what a provider sends after it is not waited for


def _show(ctx: Context, text: str) -> None:
    if text and ctx.has_listener:
        ctx.emit(TextStreamed(**ctx.stamp(), text=text))


def _check_stop(ctx: Context, point: StopAt, *, stopped_inside: bool = False) -> None:
    """Check the signal, and whether a stop waits for this point of the loop. Raises: AbortError."""
    ctx.signal.raise_if_aborted()
    if stopped_inside or ctx.stop.due(point):
        ctx.stop.abort_run()
        ctx.signal.raise_if_aborted()


def _listed(name: str, messages: Sequence[Message]) -> list[Message]:
    given: object = messages  # callers without a type checker give a text, one dict, or None
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        instead = "; read dicts of OpenAI with messages.from_openai([…])" if isinstance(given, Mapping) else ""
        raise UsageError(f"{name} must be a list of messages, not {shorten(repr(given), 100)}{instead}")
    return list(messages)


def _start_conversation(
    prompt: "str | Message | Sequence[Message] | None",
    history: Sequence[Message] = (),
    resume: AgentResult | None = None,
    run_again: Callable[[ToolResult], RunAgain] = never_run_again,
) -> Conversation:
    if (prompt is None) == (resume is None):
        raise UsageError("give a prompt, or resume=outcome.partial: one of the two")
    if resume is not None:
        if history:
            raise UsageError("resume= brings its own history: leave history= out")
        given: object = resume
        if not isinstance(given, AgentResult):
            wanted = "resume must be an AgentResult: read it with outcome_from_json(text, AgentResult).partial"
            raise UsageError(f"{wanted}, not {type(given).__name__}")
        return Conversation(resume=resume, run_again=run_again)
    new: list[Message] = []
    if isinstance(prompt, str):
        new = [UserMessage(text=prompt)] if prompt.strip() else []
    elif isinstance(prompt, SystemMessage | UserMessage | AssistantMessage | ToolResult):
        new = [prompt]
    elif prompt is not None:
        new = _listed("prompt", prompt)
    conversation = Conversation([*_listed("history", history), *new])
    if not new or not conversation.messages:
        raise UsageError("the prompt is empty")
    if conversation.answered:
        raise UsageError("the last message is an answer: give the user's next one")
    return conversation
