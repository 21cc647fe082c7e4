"""Owns an agent's run in the hand: its conversation, its questions, its outcome. Knows nothing of the loop."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..abort import AbortSignal
from ..errors import UsageError
from ..run.ask import AskUser, ask
from ..run.context import Context
from ..run.journal import Journal
from ..run.outcome import Completed, Outcome
from ..run.run_handle import RunHandle
from .conversation import AgentResult, Conversation
from .tool import AskUserFn

__all__ = ["AgentRun", "Questions", "nobody"]


async def nobody(ctx: Context, question: str, options: tuple[str, ...]) -> str:
    """Where there is no person. Raises: UsageError."""
    raise UsageError(f"nobody can be asked in {ctx.operation}: give the agent ask_user=fn")


class Questions:
    """The questions of one run that wait for an answer. Given no callback, `answer` is how a person answers."""

    def __init__(self, callback: AskUser | None) -> None:
        self._callback = callback
        self._open: dict[str, asyncio.Future[str]] = {}

    async def ask(self, ctx: Context, question: str, options: tuple[str, ...]) -> str:
        """Ask; the answer. Raises: AbortError on a stop, with the question withdrawn."""
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
        """True: somebody is asked, and has not answered."""
        return bool(self._open)

    def answer(self, question_id: str, text: str) -> bool:
        """From any thread; the first answer counts. False: no such question waits for an answer, here."""
        answer = self._open.pop(question_id, None) if self._callback is None else None
        if answer is None or answer.done():
            return False
        answer.get_loop().call_soon_threadsafe(_give, answer, text)
        return True


def _give(answer: "asyncio.Future[str]", text: str) -> None:
    if not answer.done():
        answer.set_result(text)


class AgentRun(RunHandle[AgentResult, Outcome[AgentResult]]):
    """An agent that runs: await it for its outcome, iterate it for its events, stop it, answer its questions."""

    def __init__(
        self,
        name: str,
        work: Callable[[Context, Conversation, AskUserFn], Awaitable[AgentResult]],
        conversation: Conversation,
        ask_user: AskUser | None,
        *,
        signal: AbortSignal | None,
        timeout: float | None,
        origin: str | None,
    ) -> None:
        super().__init__(name, signal=signal, timeout=timeout, run_id=None, origin=origin)
        self._converse = work
        self._conversation = conversation
        conversation.id = conversation.id or self.id
        self._ctx.journal = Journal(conversation.parts)
        conversation.parts = (
            self._ctx.journal.results
        )  # what is recorded from now on is part of the conversation's result
        self._questions = Questions(ask_user)

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question of this run, from any thread. False: it waits no more, or a callback answers it."""
        return self._questions.answer(question_id, text)

    def _work(self, ctx: Context, value: None, /) -> Awaitable[AgentResult]:
        return self._converse(ctx, self._conversation, self._questions.ask)

    async def _result(self, outcome: Outcome[AgentResult]) -> Outcome[AgentResult]:
        return outcome if isinstance(outcome, Completed) else replace(outcome, partial=self._conversation.sealed())
