"""Owns an agent whose tool call is cut off in the middle, and what becomes of that call for each word of `effects=`."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from safepoint.agent import Agent, ToolContext, tool
from safepoint.events import QuestionAsked, TurnEnded
from safepoint.messages import AssistantMessage, ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Completed
from safepoint.session import Host
from tests.kit.hosts import end_of

# What the tool says of its effects; what the person answers, None where nobody can be asked; whether it runs again.
WORDS: list[tuple[str | None, str | None, bool]] = [
    ("read", None, True),
    ("idempotent", None, True),
    ("reversible", None, False),
    ("reversible", "run it again", True),
    ("reversible", "leave it", False),
    ("irreversible", None, False),
    (None, None, False),
]


@dataclass
class CutOff:
    """The agent, and the idempotency key of each time that the body of its tool has begun."""

    effects: str | None
    answer: str | None
    keys: list[str] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def agent(self) -> Agent:
        options: Any = {} if self.effects is None else {"effects": self.effects}

        @tool(**options)
        async def act(ctx: ToolContext) -> str:
            self.keys.append(ctx.idempotency_key)
            if len(self.keys) == 1:
                self.begun.set()
                await asyncio.Event().wait()
            return "acted"

        def said(request: Any) -> Any:
            answered = any(isinstance(message, AssistantMessage) for message in request.messages)
            return "I see" if answered else [Call("act")]

        return Agent(ScriptedModel(*[said] * 10), name="actor", tools=[act], ask_user=self.answer is not None)

    async def check(self, host: Host, again: bool) -> None:
        """The turn goes on to its end; the call has run again, under its key, or the model was told the truth.

        Args:
            host: One that goes on with what was cut off.
            again: Whether the call is to run again.
        """
        questions: list[str] = []
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._answer(host, questions))
            outcome = await end_of(host, "s", "t")
            while not isinstance(outcome, Completed):  # it was sealed, and the turn that goes on has not come yet
                await asyncio.sleep(0.01)  # real time: another turn begins
                outcome = await end_of(host, "s", "t")
            asking.cancel()
        results = [message for message in outcome.value.messages if isinstance(message, ToolResult)]
        assert (len(self.keys), len(set(self.keys))) == (2 if again else 1, 1)
        assert [result.content == "acted" for result in results] == [again]
        assert again or "may have had effects" in results[0].content
        assert len(questions) == (self.answer is not None)

    async def _answer(self, host: Host, questions: list[str]) -> None:
        async for recorded in host.events("s"):
            event = recorded.event
            if isinstance(event, QuestionAsked) and self.answer is not None:
                questions.append(event.text)
                await host.answer("s", event.question_id, self.answer)
            if isinstance(event, TurnEnded) and isinstance(event.outcome, Completed):
                return
