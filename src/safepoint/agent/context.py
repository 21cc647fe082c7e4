"""Owns the contexts of agents: that of a tool call, and that of a run whose questions somebody outside answers."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias, Unpack
from urllib.parse import quote

from ..errors import UsageError
from ..receipt import Usage
from ..run.context import ChildContext, ChildOptions, Context
from ..run.journal import Journal
from ..run.leaf import wait
from ..run.once import RepeatableContext

__all__ = ["AskUserFn", "AskingContext", "ToolContext", "ask_function_of", "key_of"]

AskUserFn: TypeAlias = Callable[[Context, str, tuple[str, ...]], Awaitable[str]]


class ToolContext(RepeatableContext):
    """The context of one tool call. A tool that has a parameter of this type gets it.

    Args:
        outer: The context of the agent.
        name: The name of the tool.
        call_id: The id that the model gave this call.
        idempotency_key: The key of the call.
        kept: How far the call had come.
        ask: What asks the person.
        **options: What differs from `outer`: see `ChildContext`.

    Attributes:
        call_id: The id that the model gave this call.
        idempotency_key: Never changes for this call, even after a crash or on another worker: for effects
            that must happen once.
        kept: If this call was stopped before, how far it had come: an AgentResult or PartialWork. Otherwise None.
        usage: What models inside this call have cost.
    """

    __slots__ = ("_ask", "call_id", "kept", "usage")
    continues_from_kept: ClassVar[bool] = True

    def __init__(
        self,
        outer: Context,
        name: str | None,
        *,
        call_id: str,
        idempotency_key: str,
        kept: object,
        ask: AskUserFn,
        **options: Unpack[ChildOptions],
    ) -> None:
        super().__init__(outer, name, idempotency_key=idempotency_key, **options)
        self.calls = (*outer.calls, call_id)
        self.call_id = call_id
        self.kept: Any = kept  # the work that left it behind knows its type
        self.usage = Usage()
        self._ask = ask

    async def ask_user(self, question: str, options: tuple[str, ...] = ()) -> str:
        """Ask the person, and wait for the answer.

        Args:
            question: The question.
            options: Answers to choose from, if there are any.

        Raises:
            AbortError: The run was stopped, which withdraws the question.
            UsageError: There is no person.
        """
        return await self._ask(self, question, options)

    async def wait(self, seconds: float) -> None:
        """Pause. A stop ends the pause at once. Raises: AbortError."""
        await wait(self, seconds)

    def __reduce__(self) -> "tuple[Callable[..., ToolContext], tuple[object, ...]]":
        restore, arguments = super().__reduce__()
        return _restored, (restore, arguments, self.call_id, self.idempotency_key)


class AskingContext(ChildContext):
    """The context of a whole run whose questions go to somebody outside, as those of a turn go to its session.

    Args:
        outer: The context of the run.
        ask: What asks the person.
        idempotency_key: The beginning of the idempotency keys of its tool calls.
        journal: The durable record of the run.
    """

    __slots__ = ("ask", "idempotency_key")

    def __init__(self, outer: Context, *, ask: AskUserFn, idempotency_key: str, journal: Journal) -> None:
        super().__init__(outer, None)
        self.is_run = True
        self.journal = journal
        self.ask = ask
        self.idempotency_key = idempotency_key


def ask_function_of(ctx: Context) -> AskUserFn | None:
    """Return what asks the person in this context, that of a tool call or of a session's turn, or None."""
    if isinstance(ctx, ToolContext):
        return ctx._ask
    return ctx.ask if isinstance(ctx, AskingContext) else None


def key_of(ctx: Context, inner: Context) -> str:
    """Return the key from which those of the tool calls of an agent are made.

    Args:
        ctx: The context in which the agent runs. Its key never changes, so the first agent inside has the same one.
        inner: The context of the agent's own run, whose name differs from those of the runs before it in `ctx`.
    """
    if isinstance(ctx, RepeatableContext | AskingContext):
        key = ctx.idempotency_key
        return key if ctx.runs_inside < 2 else f"{key}/{quote(inner.path[-1], safe='')}"
    return f"{ctx.run_id}:{(ctx if ctx.runs_inside < 2 else inner).operation}"


def _restored(
    restore: Callable[..., Context], arguments: tuple[object, ...], call_id: str, idempotency_key: str
) -> ToolContext:
    """Make the context of a call in another process, where nobody can be asked and nothing can be recorded."""
    ask, outer = _refuse_question_in_process, restore(*arguments)
    outer.calls = outer.calls[:-1]  # the constructor adds the id of this call
    return ToolContext(outer, None, call_id=call_id, idempotency_key=idempotency_key, kept=None, ask=ask)


async def _refuse_question_in_process(ctx: Context, question: str, options: tuple[str, ...]) -> str:
    raise UsageError(f"{ctx.operation} runs in a process of its own, where nobody can be asked: use isolation='thread'")
