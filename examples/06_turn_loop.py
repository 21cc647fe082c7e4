"""A user types while the agent works: queue, steer, interrupt, stop. Another loop continues from the checkpoint."""

import asyncio
import tempfile

from safepoint import Agent, Completed, StopAt, tool
from safepoint.agent import AgentResult, validate
from safepoint.events import Event, ToolEnded, TurnEnded
from safepoint.messages import Message, UserMessage
from safepoint.models.scripted import Call, Delay, ScriptedModel
from safepoint.run import FolderCheckpoints
from safepoint.turns import InterruptedTurn, LoopExit, TurnLoop, TurnPlan

started = asyncio.Event()


@tool
async def search(query: str) -> str:
    started.set()
    await asyncio.sleep(0.3)
    return f"3 books on {query}"


class Chat:
    """A conversation that keeps the messages of every turn, however the turn ended."""

    def __init__(self, agent: Agent, folder: str) -> None:
        self.agent = agent
        self.messages: tuple[Message, ...] = ()
        self.loop: TurnLoop[str] = TurnLoop(
            self.plan,
            resume=self.resume,
            on_event=self.show,
            checkpoints=FolderCheckpoints(folder),
            checkpoint_id="chat-7",
            item_type=str,
        )

    async def plan(self, typed: list[str]) -> TurnPlan[str]:
        return TurnPlan(self.agent, [*self.messages, *(UserMessage(text=line) for line in typed)])

    async def resume(self, stopped: InterruptedTurn[str], typed: list[str]) -> TurnPlan[str]:
        if stopped.partial is None:  # it was stopped before it began
            return await self.plan([*stopped.items, *typed])
        return TurnPlan(self.agent, stopped.partial, consumed=stopped.items, remaining=typed)

    def show(self, event: Event) -> None:
        if isinstance(event, ToolEnded):
            print(f"  {event.name}: {event.status}")
        elif isinstance(event, TurnEnded):
            outcome = event.outcome
            result = outcome.value if isinstance(outcome, Completed) else outcome.partial
            if isinstance(result, AgentResult):
                validate(result.messages)  # the next model call accepts it
                self.messages = result.messages
                print(f"  agent: {result.text!r}, turn {outcome.status}, {len(self.messages)} messages")

    def type(self, text: str, preempt: StopAt | None = None) -> None:
        print(f"> {text}" + (f"   [{preempt.name}]" if preempt else ""))
        self.loop.push(text, preempt=preempt)


def books(exit: LoopExit[str]) -> str:
    parts = {"preempted": exit.preempted, "interrupted": exit.interrupted, "unhandled": exit.unhandled}
    told = ", ".join(f"{name}: {items}" for name, items in parts.items())
    return f"{exit.handled} handled, {told}; checkpoint {exit.checkpoint.status}"


async def main(folder: str) -> None:
    look_up = [Call("search", query="owls")]
    model = ScriptedModel(look_up, look_up, ["Doves ", Delay(5), "coo."], "Fog!", look_up, "There are 3.", "Goodbye.")
    agent = Agent(model, tools=[search], instructions="You are a librarian.")
    chat = Chat(agent, folder)
    async with chat.loop:
        chat.type("Find books on owls.")
        await started.wait()
        chat.type("Only old ones.", preempt=StopAt.AFTER_TOOLS)  # steer: the search finishes, its result is kept
        started.clear()
        await started.wait()
        chat.type("No: doves!", preempt=StopAt.NOW)  # interrupt
        started.clear()
        await asyncio.sleep(0.2)
        chat.type("No: fog!", preempt=StopAt.NOW)
        chat.type("And then owls again.")  # queue: both are answered in one turn
        await asyncio.sleep(0.2)
        chat.type("How many are there?")
        await started.wait()
        chat.type("Bye.")
        chat.loop.stop(at=StopAt.SAFE_POINT, within=5, reason="closing time")  # the search finishes first
    print(f"Stopped ({(exit := await chat.loop.wait()).stop_cause}): {books(exit)}")

    again = Chat(agent, folder)
    async with again.loop:
        print("Another loop continues:")
        again.loop.stop(when_idle_for=0.1)
        print(f"Stopped: {books(await again.loop.wait())}")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
