"""Owns the handle of an agent's run: its conversation, its questions, its outcome. Knows nothing of the loop."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ..abort import AbortSignal
from ..abort.event_loop import post, resolve
from ..errors import UsageError
from ..outcome import Completed, Outcome
from ..run.ask import AskUser, ask
from ..run.context import Context
from ..run.journal import Journal
from ..run.run_handle import RunHandle
from .context import AskUserFn
from .conversation import AgentResult, Conversation

__all__ = ["AgentRun", "AgentWork", "Questions", "refuse_question"]


async def refuse_question(ctx: Context, question: str, options: tuple[str, ...]) -> str:
    """Answer no question: the agent has no person to ask. Raises: UsageError."""
    raise UsageError(f"nobody can be asked in {ctx.operation}: give the agent ask_user=fn")


class Questions:
    """The open questions of one run.

    With a callback, the callback answers them. Without one, `answer` does.
    """

    def __init__(self, callback: AskUser | None) -> None:
        self._callback = callback
        self._open: dict[str, asyncio.Future[str]] = {}

    async def ask(self, ctx: Context, question: str, options: tuple[str, ...]) -> str:
        """Ask a question and return the answer. Raises: AbortError on a stop, which withdraws the question."""
        question_id = uuid.uuid4().hex
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def answered(question: str) -> str:
            return await answer

        callback = answered if self._callback is None else self._callback
        self._open[question_id] = answer
        try:
            return await ask(ctx, question, callback, options=options, question_id=question_id)
        finally:
            self._open.pop(question_id, None)

    @property
    def waiting(self) -> bool:
        """Whether a question has not been answered yet."""
        return bool(self._open)

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question, from any thread. The first answer counts.

        Returns:
            False if the question is not open any longer, or if the callback answers it.
        """
        answer = self._open.pop(question_id, None) if self._callback is None else None
        if answer is None or answer.done():
            return False
        return post(answer.get_loop(), resolve, answer, text)


@dataclass(frozen=True, slots=True)
class AgentWork:
    """What an agent gives to each of its runs.

    Attributes:
        name: The name of the agent.
        converse: The agent's loop.
        ask_user: What answers questions; None if `AgentRun.answer` does.
    """

    name: str
    converse: Callable[[Context, Conversation, AskUserFn], Awaitable[AgentResult]]
    ask_user: AskUser | None


class AgentRun(RunHandle[AgentResult, Outcome[AgentResult]]):
    """A run of an agent: await it for its outcome, iterate it for its events, stop it, answer its questions."""

    def __init__(
        self,
        work: AgentWork,
        conversation: Conversation,
        *,
        signal: AbortSignal | None,
        timeout: float | None,
        origin: str | None,
    ) -> None:
        super().__init__(work.name, signal=signal, timeout=timeout, run_id=None, origin=origin)
        self._converse = work.converse
        self._conversation = conversation
        conversation.id = conversation.id or self.id
        if conversation.record is None:
            # The journal copies the results; from then on its dict is the one to which results of this run are added.
            self._ctx.journal = Journal(conversation.parts)
            conversation.parts = self._ctx.journal.results
        else:
            self._ctx.journal = conversation.record.journal()
        self._questions = Questions(work.ask_user)

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question of this run, from any thread.

        Returns:
            False if the question is not open any longer, or if a callback answers it.
        """
        return self._questions.answer(question_id, text)

    def _work(self, ctx: Context, value: None, /) -> Awaitable[AgentResult]:
        return self._converse(ctx, self._conversation, self._questions.ask)

    async def _result(self, outcome: Outcome[AgentResult]) -> Outcome[AgentResult]:
        return outcome if isinstance(outcome, Completed) else replace(outcome, partial=self._conversation.sealed())
