"""Owns the agent and its one loop: ask the model, run its tool calls side by side, ask again, until it has answered.

The loop is never interrupted: what it awaits is. After each leaf it looks at the signal and the stop, and writes down
what happened. Knows nothing of providers, turns and sessions.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import replace

from ..abort import AbortController, AbortSignal
from ..abort.guard import external_cancel_count
from ..abort.reason import caller, error_from
from ..abort.renamed_arguments import accepts_deadline
from ..errors import SafepointError, UsageError, require_method
from ..run.ask import AskUser
from ..run.context import Context
from ..run.events import AnswerFinished, AnswerRestarted, AnswerStarted, TextStreamed
from ..run.messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from ..run.policy import Policy
from ..run.receipt import Usage
from ..run.retry import Retry
from ..run.stop import StopAt
from ..run.stream import stream
from .agent_run import AgentRun, Questions, nobody
from .builtin import ask_user as ask_user_tool
from .calls import run_calls
from .conversation import Again, AgentResult, Conversation, PartialAnswer, stays
from .left_behind import stop_left_behind
from .model import AnswerEnded, CallDelta, Chunk, Model, ModelError, ModelRequest, TextDelta, UsageReported
from .tool import AnyTool, AskUserFn, ToolContext, ToolLike, tool

__all__ = ["Agent", "LimitExceeded"]

# Rate limits count by the minute, so a provider may ask to wait for one. Our own pauses stay far below.
RETRY = Retry(attempts=4, delay=0.5, max_delay=60, on=lambda error: isinstance(error, ModelError) and error.retryable)
DEFAULT = Policy()


class LimitExceeded(SafepointError):
    """An agent has used up its steps or its tokens before it had an answer."""


class Agent:
    """A model with tools and instructions. One agent may have many runs at once; they know nothing of each other.

    ask_user      answers questions: `fn(question)` or `fn(question, *, signal)`; True: `run.answer` does
    retry         for requests that failed and may succeed later; tools are never retried
    max_steps     how many requests one run may make
    token_budget  how many tokens one run may use, in and out, sub-agents included; looked at before each request
    """

    handles_abort = True  # as work it is not interrupted from outside: it stops by itself, leaf by leaf

    def __init__(
        self,
        model: Model,
        *,
        tools: Iterable[ToolLike] = (),
        instructions: str = "",
        name: str = "agent",
        ask_user: AskUser | bool | None = None,
        retry: Retry = RETRY,
        max_steps: int = 50,
        token_budget: int | None = None,
        model_policy: Policy = DEFAULT,
    ) -> None:
        require_method(model, "stream", 'model must be a model such as OpenAIModel("…")')
        if max_steps < 1:
            raise UsageError(f"max_steps must be 1 or more, not {max_steps!r}")
        self.model = model
        self.name = name
        self.instructions = instructions
        self._callback: AskUser | None = ask_user if callable(ask_user) else None
        self._asks = bool(ask_user)
        self._retry = retry
        self._max_steps = max_steps
        self._token_budget = token_budget
        self._model_policy = model_policy
        self._tools: dict[str, AnyTool] = {}
        for one in [*tools, *([ask_user_tool] if ask_user else [])]:
            made = tool(one)
            if made.name in self._tools:
                raise UsageError(f"agent {name!r} has two tools named {made.name!r}: give one of them another name=…")
            self._tools[made.name] = made
        self._specs = tuple(made.spec for made in self._tools.values())

    @accepts_deadline
    def run(
        self,
        prompt: "str | Message | Sequence[Message] | None" = None,
        *,
        history: Sequence[Message] = (),
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        resume: AgentResult | None = None,
    ) -> AgentRun:
        """Make a run; it starts with the first await, iteration or `async with`.

        history   what was said before; a history from elsewhere is mended
        resume    the `partial` of a stopped run, instead of a prompt: only what has not run is run
        """
        conversation = _conversation(prompt, history, resume, self._again)
        return AgentRun(
            self.name, self._converse, conversation, self._callback, signal=signal, timeout=timeout, origin=caller(1)
        )

    async def _converse(self, ctx: Context, conversation: Conversation, ask: AskUserFn) -> AgentResult:
        while not conversation.answered:
            if conversation.in_round:
                await run_calls(ctx, conversation, self._tools, ask)
                _look(ctx, StopAt.AFTER_TOOLS, stopped_inside=conversation.stopped_inside)
            self._check_limits(conversation)
            await self._retry.run(lambda: self._ask_model(ctx, conversation), ctx=ctx)
            if conversation.in_round:
                _look(ctx, StopAt.AFTER_MODEL)
        return conversation.sealed()

    async def _ask_model(self, ctx: Context, conversation: Conversation) -> None:
        """One request, chunk by chunk; its answer becomes part of the conversation when it is whole."""
        system = [SystemMessage(text=self.instructions)] if self.instructions else []
        request = ModelRequest(messages=(*system, *conversation.messages), tools=self._specs)
        if conversation.answer is not None and conversation.answer.text and ctx.has_listener:
            ctx.emit(AnswerRestarted(**ctx.stamp()))
        answer = conversation.answer = PartialAnswer()
        if ctx.has_listener:
            ctx.emit(AnswerStarted(**ctx.stamp(), model=self.model.name, step=conversation.steps + 1))
        before = external_cancel_count()
        try:
            source = self.model.stream(request, signal=ctx.signal)
            async with stream(ctx, source, name="model", policy=self._model_policy) as chunks:
                await _read(ctx, chunks, answer)
            if not answer.finished:
                raise ModelError(f"the answer of {self.model.name} broke off before its end", retryable=True)
        except asyncio.CancelledError as error:
            if external_cancel_count() > before:
                raise
            # Nobody has told this task to go: a client library has let a private matter of its own escape.
            raise ModelError(f"the request to {self.model.name} was dropped by its client", retryable=True) from error
        finally:
            self._count(ctx, conversation, answer, request)
        conversation.answer = None
        conversation.steps += 1
        if not answer.text.strip() and not answer.calls():
            raise ModelError(f"{self.model.name} answered with neither text nor tool calls", retryable=True)
        conversation.add(answer)

    def _count(self, ctx: Context, conversation: Conversation, answer: PartialAnswer, request: ModelRequest) -> None:
        usage = answer.cost(request, stopped=ctx.signal.aborted)
        conversation.usage += usage
        ctx.receipt_builder.usage += usage
        if ctx.has_listener:
            ctx.emit(AnswerFinished(**ctx.stamp(), text=answer.text, interrupted=not answer.finished, usage=usage))

    def _check_limits(self, conversation: Conversation) -> None:
        if conversation.steps >= self._max_steps:
            raise LimitExceeded(
                f"agent {self.name!r} has made {conversation.steps} requests; max_steps={self._max_steps}"
            )
        used = conversation.usage.input_tokens + conversation.usage.output_tokens
        if self._token_budget is not None and used >= self._token_budget:
            raise LimitExceeded(f"agent {self.name!r} has used {used} tokens; token_budget={self._token_budget}")

    async def __call__(self, ctx: Context, value: "str | Sequence[Message] | AgentResult", /) -> AgentResult:
        """As work: a prompt, a whole conversation, or the partial of a stopped run. Raises: AbortError with a partial.

        Given the context of a run, it is that run; given the context of a leaf, it is a run inside.
        """
        inner = ctx if ctx.is_run else ctx.child_run(self.name, AbortController(ctx.signal))
        return await self._run_inside(ctx, inner, value)

    async def _run_inside(
        self, ctx: Context, inner: Context, value: "str | Sequence[Message] | AgentResult"
    ) -> AgentResult:
        conversation = Conversation()
        try:
            conversation = (
                Conversation(resume=value, again=self._again)
                if isinstance(value, AgentResult)
                else _conversation(value)
            )
            conversation.usage = Usage()  # what was used before the stop is counted already
            conversation.id = conversation.id or getattr(ctx, "idempotency_key", "") or f"{ctx.run_id}:{ctx.operation}"
            return await self._converse(inner, conversation, self._who_answers(ctx))
        except Exception as error:
            if inner.signal.aborted:
                raise error_from(inner.signal.reason or inner.stop.reason, conversation.sealed()) from error
            object.__setattr__(error, "partial", conversation.sealed())  # the boundary of the run looks for it
            raise
        finally:
            if inner is not ctx:
                inner.stop.close()
            if isinstance(ctx, ToolContext):
                ctx.spent += conversation.usage

    def _again(self, result: ToolResult) -> Again:
        """Whether a call of a stopped conversation is to run again: what its tool says of its effects decides.

        A call that did not begin runs. Of one that was cut off, or of which nobody knows, the effects may have
        happened: it runs again only where that does no harm, or where it goes on from where it was.
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
                return "ask" if tool.effects == "reversible" and self._asks else "no"

    def _who_answers(self, ctx: Context) -> AskUserFn:
        ask: AskUserFn = getattr(ctx, "_ask", nobody)
        return ask if self._callback is None else Questions(self._callback).ask

    def as_tool(self, name: str | None = None, description: str | None = None) -> AnyTool:
        """This agent as a tool of another: a run inside its run, which stops with it and is in its receipt."""

        async def call(prompt: str, ctx: ToolContext) -> AgentResult:
            value = _with_prompt(ctx.kept, prompt) if isinstance(ctx.kept, AgentResult) else prompt
            return await self._run_inside(ctx, ctx.child_run(None, AbortController(ctx.signal)), value)

        told = description or f"Ask {self.name}. {self.instructions}".strip()
        # It handles the abort itself, leaf by leaf: from outside it is only shown the signal.
        made = tool(call, name=name or self.name, description=told, on_abort="cooperate")
        return replace(made, kind="child", inside=self._tools)

    async def stop_left_behind(self, left: AgentResult) -> tuple[str, ...]:
        """Stop what the unfinished calls of a conversation have left on other machines: nobody goes on with them.

        Returns:
            What may go on all the same, as warnings for a receipt.
        """
        return await stop_left_behind(self._tools, left)


def _with_prompt(kept: AgentResult, prompt: str) -> AgentResult:
    """What a sub-agent goes on from. Put together from a log after a crash it is without the prompt."""
    begins = next((message for message in kept.messages if not isinstance(message, SystemMessage)), None)
    if isinstance(begins, UserMessage):
        return kept
    return replace(kept, messages=(UserMessage(text=prompt), *kept.messages))


async def _read(ctx: Context, chunks: AsyncIterable[Chunk], answer: PartialAnswer) -> None:
    async for chunk in chunks:
        match chunk:
            case TextDelta(text):
                answer.add_text(text)
                if ctx.has_listener:
                    ctx.emit(TextStreamed(**ctx.stamp(), text=text))
            case CallDelta():
                answer.add_call(chunk)
            case UsageReported(usage):
                answer.usage = usage
            case AnswerEnded():
                answer.finished = True
                return  # it is whole: there is nothing to wait for


def _look(ctx: Context, place: StopAt, *, stopped_inside: bool = False) -> None:
    """The look after each leaf: at the signal, and whether a stop waits for this place. Raises: AbortError."""
    ctx.signal.raise_if_aborted()
    if stopped_inside or ctx.stop.due(place):
        ctx.stop.abort_run()
        ctx.signal.raise_if_aborted()


def _conversation(
    prompt: "str | Message | Sequence[Message] | None",
    history: Sequence[Message] = (),
    resume: AgentResult | None = None,
    again: Callable[[ToolResult], Again] = stays,
) -> Conversation:
    if (prompt is None) == (resume is None):
        raise UsageError("give a prompt, or resume=outcome.partial: one of the two")
    if resume is not None:
        if history:
            raise UsageError("resume= brings its own history: leave history= out")
        return Conversation(resume=resume, again=again)
    said: list[Message] = []
    if isinstance(prompt, str):
        said = [UserMessage(text=prompt)] if prompt.strip() else []
    elif isinstance(prompt, SystemMessage | UserMessage | AssistantMessage | ToolResult):
        said = [prompt]
    elif prompt is not None:
        said = list(prompt)
    conversation = Conversation([*history, *said])
    if not said or not conversation.messages:
        raise UsageError("the prompt is empty")
    if conversation.answered:
        raise UsageError("the last message is an answer: give the user's next one")
    return conversation
