"""Owns a small shop that a resumed run works in, also in a process of its own: every effect is a line in a file.

python -m tests.agent.shop <file with the outcome> <file of effects>     resumes, and prints the new outcome as JSON
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from safepoint.agent import Agent, AgentResult, ToolContext, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Completed
from safepoint.testing import drain_ready_tasks
from safepoint.wire import outcome_from_json, outcome_to_json

STEPS = ("reserve", "charge", "mail", "pack")


class Shop:
    """An agent that calls four tools side by side and then a clerk, a sub-agent that calls two more, one by one.

    `hold` names the calls that never end; each call leaves "name key" in the file of effects, as it begins.
    """

    def __init__(self, effects: Path, hold: tuple[str, ...] = (), stop: Any = lambda: None) -> None:
        self.effects = effects
        self.waiting = 0
        self._hold = hold
        self._stop = stop

    def agent(self, *answers: Any, clerk: Any = ()) -> Agent:
        async def act(name: str, ctx: ToolContext) -> str:
            with self.effects.open("a", encoding="utf-8") as file:
                file.write(f"{name} {ctx.idempotency_key}\n")
            if name in self._hold:
                self.waiting += 1
                if self.waiting == len(self._hold):
                    await drain_ready_tasks()  # the others have finished
                    self._stop()
                await asyncio.Event().wait()
            return f"{name} done"

        @tool(effects="idempotent")
        async def do(name: str, ctx: ToolContext) -> str:
            return await act(name, ctx)

        @tool(effects="irreversible")
        async def pay(name: str, ctx: ToolContext) -> str:
            return await act(name, ctx)

        helper = Agent(ScriptedModel(*clerk), tools=[do, pay], name="clerk")
        return Agent(ScriptedModel(*answers), tools=[do, pay, helper], name="shop")

    def lines(self) -> list[tuple[str, str]]:
        text = self.effects.read_text(encoding="utf-8") if self.effects.exists() else ""
        return [(line.split(" ")[0], line.split(" ")[1]) for line in text.splitlines()]


ROUND = [Call("do", name=name) for name in STEPS]
ASK_CLERK = [Call("clerk", prompt="see to the rest")]
CLERK = ([Call("do", name="stamp")], [Call("do", name="send")], "all sent")


async def resume(saved: Path, effects: Path) -> str:
    outcome = outcome_from_json(saved.read_text(encoding="utf-8"), AgentResult)
    assert not isinstance(outcome, Completed)
    partial = outcome.partial
    assert partial is not None
    asked = sum(message.kind == "assistant" for message in partial.messages)
    clerks = [kept for kept in partial.kept.values() if isinstance(kept, AgentResult)]
    clerk_asked = sum(message.kind == "assistant" for kept in clerks for message in kept.messages)
    agent = Shop(effects).agent(*[ROUND, ASK_CLERK, "finished"][asked:], clerk=CLERK[clerk_asked:])
    return outcome_to_json(await agent.run(resume=partial), AgentResult)


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(resume(Path(sys.argv[1]), Path(sys.argv[2]))))
