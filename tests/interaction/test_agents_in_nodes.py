"""An agent that runs inside a node of a flow goes on where it was when the node runs again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from safepoint import Completed, UsageError
from safepoint.agent import Agent, AgentResult, ToolContext, tool
from safepoint.flow import END, Checkpoint, Flow, FlowResult, NodeContext
from safepoint.messages import AssistantMessage, ToolResult, UserMessage
from safepoint.models.scripted import Call, Error, ScriptedModel, Stall
from safepoint.run import FolderCheckpoints, Retry, leaf
from safepoint.session import MemoryStore, Session
from tests.kit.agents import ONCE

Asking = Callable[[Agent, NodeContext[Any], str], Awaitable[AgentResult]]


@dataclass
class Desk:
    """The state of the flows."""

    notes: list[str] = field(default_factory=list)


async def call(agent: Agent, ctx: NodeContext[Any], prompt: str) -> AgentResult:
    """The agent as Work."""
    return await agent(ctx, prompt)


async def run(agent: Agent, ctx: NodeContext[Any], prompt: str) -> AgentResult:
    """The agent with a run of its own."""
    return (await agent.run(prompt)).unwrap()


async def as_leaf(agent: Agent, ctx: NodeContext[Any], prompt: str) -> AgentResult:
    """The agent as a leaf, whose context is inside that of the node."""
    return await leaf(ctx, agent, prompt)


class Till:
    """Tools of every kind of effect, of which one stays in its body as long as it is `stuck`."""

    def __init__(self, stuck: str = "", store: Any = None) -> None:
        self.stuck = stuck
        self.store = store
        self.reached = asyncio.Event()
        self.effects: list[tuple[str, str]] = []
        self.recorded: list[bool] = []
        self.kinds: dict[str, Any] = {
            "pay": "irreversible",
            "mail": None,
            "charge": "idempotent",
            "look": "read",
            "book": "reversible",
        }

    def tool(self, name: str) -> Any:
        async def body(ctx: ToolContext) -> str:
            self.effects.append((name, ctx.idempotency_key))
            if self.store is not None:
                checkpoint = await Checkpoint.recall(self.store, "run")
                texts = "" if checkpoint is None else "".join(checkpoint.once.values())
                self.recorded.append(f'"{ctx.call_id}"' in texts and "unknown" in texts)
            if name == self.stuck:
                self.stuck = ""
                self.reached.set()
                await asyncio.get_running_loop().create_future()
            return f"{name} done"

        body.__name__ = name
        effects = self.kinds[name]
        return tool(body) if effects is None else tool(body, effects=effects)

    def tools(self) -> list[Any]:
        return [self.tool(name) for name in self.kinds]

    def agent(self, *rounds: Any, **options: Any) -> Agent:
        """An agent that says its next round, however often it is asked, and by whom."""
        return Agent(scripted(*rounds), tools=self.tools(), retry=ONCE, **options)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.effects]


def scripted(*rounds: Any) -> ScriptedModel:
    def answer(request: Any) -> Any:
        return rounds[sum(isinstance(message, AssistantMessage) for message in request.messages)]

    return ScriptedModel(*[answer] * 40)


def flow_of(node: Callable[..., Any], **options: Any) -> Flow[Desk, Any]:
    flow: Flow[Desk, Any] = Flow("office", start="work", state=Desk)
    flow.node("work", node, **options)
    flow.route("work", END)
    return flow


def asks(
    agent: Agent, how: Asking = call, prompt: str = "go", then: Callable[[], Awaitable[object]] | None = None
) -> Any:
    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        result = await how(agent, ctx, prompt)
        state.notes += [message.content for message in result.messages if isinstance(message, ToolResult)]
        if then is not None:
            await then()
        state.notes.append(result.text)

    return work


async def stop(flow: Flow[Desk, Any], reached: asyncio.Event, **options: Any) -> FlowResult[Desk]:
    run = flow.start(Desk(), **options)
    async with asyncio.timeout(10), run:
        await reached.wait()
        run.abort("enough")
        result = await run
    assert result.outcome.status == "aborted"
    return result


async def go_on(flow: Flow[Desk, Any], stopped: FlowResult[Desk]) -> FlowResult[Desk]:
    """In another process, as far as the flow can tell."""
    checkpoint = Checkpoint.from_json(Checkpoint.from_result(stopped).to_json())
    async with asyncio.timeout(10):
        return await flow.execute(resume=checkpoint)


@pytest.mark.parametrize("how", [call, run, as_leaf])
async def test_it_goes_on_after_its_last_answer_and_repeats_no_call_that_has_a_result(how: Asking):
    till, reached = Till(), asyncio.Event()

    def stall(request: Any) -> Any:
        reached.set()
        return Stall()

    first = till.agent([Call("pay"), Call("look")], stall)
    result = await stop(flow_of(asks(first, how)), reached)
    again = till.agent("never", "paid")
    result = await go_on(flow_of(asks(again, how)), result)
    assert result.state.notes == ["pay done", "look done", "paid"]
    assert till.names == ["pay", "look"]


@pytest.mark.parametrize("how", [call, run])
@pytest.mark.parametrize(
    ("stuck", "ran", "told"),
    [
        ("pay", ["pay"], "It is not known"),
        ("mail", ["mail"], "It may have had effects."),
        ("charge", ["charge", "charge"], "charge done"),
        ("look", ["look", "look"], "look done"),
        ("book", ["book"], "It may have had effects."),
    ],
)
async def test_what_becomes_of_a_call_that_was_cut_off_depends_on_its_effects(
    how: Asking, stuck: str, ran: list[str], told: str
):
    till = Till(stuck)
    agent = till.agent([Call(stuck)], "that is all")
    result = await stop(flow_of(asks(agent, how)), till.reached)
    result = await go_on(flow_of(asks(agent, how)), result)
    assert till.names == ran
    assert len(set(till.effects)) == 1, "the key is the same each time"
    assert told in result.state.notes[0]
    assert result.state.notes[1:] == ["that is all"]


@pytest.mark.parametrize(("answer", "ran"), [("yes", ["book", "book"]), ("leave it", ["book"])])
async def test_a_person_is_asked_whether_a_reversible_call_runs_again(answer: str, ran: list[str]):
    till = Till("book")
    questions: list[str] = []

    def person(question: str) -> str:
        questions.append(question)
        return answer

    agent = till.agent([Call("book")], "that is all", ask_user=person)
    result = await go_on(flow_of(asks(agent)), await stop(flow_of(asks(agent)), till.reached))
    assert till.names == ran
    assert len(questions) == 1
    assert isinstance(result.outcome, Completed)


@pytest.mark.parametrize("how", [call, run])
async def test_the_answer_of_an_agent_that_had_ended_is_used_again(how: Asking):
    till, reached = Till(), asyncio.Event()

    async def wait() -> None:
        if not reached.is_set():
            reached.set()
            await asyncio.get_running_loop().create_future()

    agent = till.agent([Call("pay")], "paid")
    result = await stop(flow_of(asks(agent, how, then=wait)), reached)
    result = await go_on(flow_of(asks(Agent(ScriptedModel(), tools=till.tools()), how, then=wait)), result)
    assert result.state.notes == ["pay done", "paid"]
    assert till.names == ["pay"]


async def test_what_an_agent_has_cost_is_told_once_however_often_its_node_runs():
    till, spent = Till("look"), []

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        spent.append((await agent(ctx, "go")).usage.requests)

    agent = till.agent([Call("look")], "seen")
    await go_on(flow_of(work), await stop(flow_of(work), till.reached))
    assert spent == [2]


async def test_each_agent_of_a_node_goes_on_with_its_own_work_and_no_two_calls_have_one_key():
    till = Till("charge")
    first = Agent(scripted([Call("pay")], "one"), name="helper", tools=till.tools())
    second = Agent(scripted([Call("charge")], "two"), name="helper", tools=till.tools())
    third = Agent(scripted([Call("pay")], "three"), name="clerk", tools=till.tools())

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        results = await asyncio.gather(first(ctx, "a"), second(ctx, "b"))
        state.notes += [result.text for result in [*results, await third(ctx, "c")]]

    result = await go_on(flow_of(work), await stop(flow_of(work), till.reached))
    assert result.state.notes == ["one", "two", "three"]
    assert sorted(till.names) == ["charge", "charge", "pay", "pay"]
    assert len({key for _, key in till.effects}) == 3


async def test_an_agent_inside_a_part_that_has_a_result_does_not_shift_the_ones_after_it():
    till = Till("charge")
    first = Agent(scripted([Call("pay")], "one"), tools=till.tools())
    second = Agent(scripted([Call("charge")], "two"), tools=till.tools())

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        async def ask() -> str:
            return (await first(ctx, "a")).text

        state.notes.append(await ctx.once("first", ask))
        state.notes.append((await second(ctx, "b")).text)

    result = await go_on(flow_of(work), await stop(flow_of(work), till.reached))
    assert result.state.notes == ["one", "two"]
    assert till.names == ["pay", "charge", "charge"]


@pytest.mark.parametrize("how", [call, run])
async def test_an_agent_inside_a_part_goes_on_where_it_was(how: Asking):
    till = Till("charge")
    agent = till.agent([Call("pay")], [Call("charge")], "done")

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        async def ask() -> str:
            return (await how(agent, ctx, "a")).text

        state.notes.append(await ctx.once("first", ask))

    result = await go_on(flow_of(work), await stop(flow_of(work), till.reached))
    assert result.state.notes == ["done"]
    assert till.names == ["pay", "charge", "charge"]


@pytest.mark.parametrize("how", [call, run])
async def test_a_sub_agent_and_a_function_that_asks_an_agent_go_on_too(how: Asking):
    till = Till("charge")
    clerk = Agent(scripted([Call("pay")], [Call("charge")], "all paid"), name="clerk", tools=till.tools())

    @tool(effects="idempotent")
    async def manage(ctx: ToolContext) -> str:
        return (await clerk(ctx, "see to it")).text

    boss = Agent(scripted([Call("clerk", prompt="pay"), Call("manage")], "fine"), tools=[clerk, manage])
    result = await go_on(flow_of(asks(boss, how)), await stop(flow_of(asks(boss, how)), till.reached))
    assert result.state.notes[-1] == "fine"
    assert till.names.count("pay") == 2, "each of the two has paid once"
    assert len({key for name, key in till.effects if name == "pay"}) == 2
    assert len({key for name, key in till.effects if name == "charge"}) == 2


async def test_a_flow_that_is_a_tool_of_an_agent_in_a_node_goes_on_at_its_node():
    ran: list[str] = []
    reached = asyncio.Event()

    def node(name: str) -> Any:
        async def step(state: Desk) -> None:
            ran.append(name)
            if name == "b" and not reached.is_set():
                reached.set()
                await asyncio.get_running_loop().create_future()
            state.notes.append(name)

        return step

    inner: Flow[Desk, Any] = Flow("inner", start="a")
    for name, target in (("a", "b"), ("b", END)):
        inner.node(name, node(name))
        inner.route(name, target)
    agent = Agent(scripted([Call("inner", notes=["x"])], "done"), tools=[tool(inner)])
    result = await go_on(flow_of(asks(agent)), await stop(flow_of(asks(agent)), reached))
    assert result.state.notes == ['{"notes":["x","a","b"]}', "done"]
    assert ran == ["a", "b", "b"]


@pytest.mark.parametrize("kind", ["scatter", "flow in scatter", "parallel", "subflow"])
async def test_it_goes_on_in_every_kind_of_composite(kind: str):
    till = Till("charge")
    agent = till.agent([Call("pay")], [Call("charge")], "done")

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        state.notes.append((await agent(ctx, "go")).text)

    async def item(state: Desk, ctx: NodeContext[Any]) -> str:
        return (await agent(ctx, "go")).text

    flow: Flow[Desk, Any] = Flow("office", start="all", state=Desk)
    if kind == "parallel":
        flow.parallel("all", {"left": work, "right": flow_of(work)}, join=lambda state, branches: None)
    elif kind == "subflow":
        flow.subflow("all", flow_of(work))
    else:
        body: Any = item if kind == "scatter" else flow_of(work)
        flow.scatter("all", items=lambda state: [Desk(), Desk()], body=body, concurrency=2)
    flow.route("all", END)
    result = await go_on(flow, await stop(flow, till.reached))
    assert isinstance(result.outcome, Completed)
    runs = 1 if kind == "subflow" else 2
    assert till.names.count("pay") == runs
    assert len({key for name, key in till.effects if name == "charge"}) == runs


async def test_each_call_is_in_the_store_before_its_body_begins(tmp_path: Path):
    store = FolderCheckpoints(tmp_path)
    till = Till(store=store)
    agent = till.agent([Call("pay"), Call("mail")], [Call("charge"), Call("book")], "done")
    flow = flow_of(asks(agent))
    result = await flow.execute(Desk(), checkpoints=store, checkpoint_id="run")
    assert isinstance(result.outcome, Completed)
    assert till.recorded == [True] * 4


async def test_a_node_in_a_thread_with_a_loop_of_its_own_has_its_agents_recorded_too(tmp_path: Path):
    store = FolderCheckpoints(tmp_path)
    till = Till(store=store)
    agent = till.agent([Call("pay")], "done")
    flow: Flow[Desk, Any] = Flow("office", start="work", state=Desk)

    @flow.node
    def work(state: Desk, ctx: NodeContext[Any]) -> None:
        state.notes.append(asyncio.run(call(agent, ctx, "go")).text)
        state.notes.append(asyncio.run(run(agent, ctx, "go")).text)

    flow.route("work", END)
    result = await flow.execute(Desk(), checkpoints=store, checkpoint_id="run")
    assert result.outcome.unwrap().notes == ["done", "done"]
    assert till.recorded == [True, True]


async def test_if_the_store_fails_the_body_does_not_begin():
    till = Till()

    class FullStore:
        """A store that keeps what the first node needs, and no call."""

        async def save(self, key: str, text: str) -> None:
            if "pay" in text:
                raise OSError("the disk is full")

        async def load(self, key: str) -> str | None:
            return None

        def __getattr__(self, name: str) -> Any:
            return lambda key: nullcontext()

    store: Any = FullStore()
    flow = flow_of(asks(till.agent([Call("pay")], "done")))
    result = await flow.execute(Desk(), checkpoints=store, checkpoint_id="run")
    assert result.outcome.status == "failed"
    assert till.names == []


async def test_a_retry_goes_on_with_an_agent_that_has_called_tools_and_asks_another_one_again():
    till = Till()
    asked: list[str] = []

    def broken(request: Any) -> Any:
        asked.append("payer")
        return Error("the network is down") if len(asked) < 2 else "paid"

    payer = Agent(scripted([Call("pay")], broken), tools=till.tools(), retry=ONCE)
    talker = Agent(ScriptedModel("nonsense", "7"), name="talker")

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        state.notes = [(await payer(ctx, "pay")).text]
        state.notes.append(str(int((await talker(ctx, "a number")).text)))

    result = await flow_of(work, retry=Retry(attempts=4, delay=0)).execute(Desk())
    assert result.outcome.unwrap().notes == ["paid", "7"]
    assert till.names == ["pay"]


async def test_a_node_that_asks_something_else_is_refused_if_the_tools_of_its_agent_may_have_had_effects():
    till = Till("pay")
    agent = till.agent([Call("pay")], "done")
    result = await stop(flow_of(asks(agent, prompt="it is one o'clock")), till.reached)
    result = await go_on(flow_of(asks(agent, prompt="it is two o'clock")), result)
    assert result.outcome.status == "failed"
    error: Any = getattr(result.outcome, "error", None)
    assert isinstance(error, UsageError)
    assert "asked agent 'agent' something else" in str(error)
    assert till.names == ["pay"]


async def test_a_node_that_asks_something_else_begins_anew_if_nothing_can_have_happened():
    till = Till("look")
    agent = till.agent([Call("look")], "done")
    result = await stop(flow_of(asks(agent, prompt="it is one o'clock")), till.reached)
    result = await go_on(flow_of(asks(agent, prompt="it is two o'clock")), result)
    assert result.outcome.unwrap().notes == ["look done", "done"]


@pytest.mark.parametrize("how", [call, run])
async def test_an_agent_that_is_given_a_stopped_conversation_goes_on_with_that(how: Asking):
    till = Till("charge")
    reached = asyncio.Event()

    def stall(request: Any) -> Any:
        reached.set()
        return Stall()

    before = Agent(scripted([Call("look")], stall), tools=till.tools()).run("go")
    async with asyncio.timeout(10), before:
        await reached.wait()
        before.abort("enough")
        partial = (await before).partial
    assert partial is not None
    agent = till.agent("?", [Call("charge")], "done")

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        result = await agent(ctx, partial) if how is call else (await agent.run(resume=partial)).unwrap()
        state.notes.append(result.text)

    result = await go_on(flow_of(work), await stop(flow_of(work), till.reached))
    assert result.outcome.unwrap().notes == ["done"]
    assert till.names == ["look", "charge", "charge"]
    assert len({key for name, key in till.effects if name == "charge"}) == 1


async def test_what_a_node_has_recorded_is_dropped_when_it_has_ended():
    till, reached = Till(), asyncio.Event()

    async def wait(state: Desk) -> None:
        reached.set()
        await asyncio.get_running_loop().create_future()

    flow: Flow[Desk, Any] = Flow("office", start="work", state=Desk)
    flow.node("work", asks(till.agent([Call("pay")], "paid")))
    flow.node("wait", wait)
    flow.route("work", "wait")
    flow.route("wait", END)
    result = await stop(flow, reached)
    assert result.state.notes == ["pay done", "paid"]
    assert result.once == {}


async def test_each_round_of_a_cycle_asks_anew():
    till = Till()
    agent = till.agent([Call("pay")], "paid")

    async def work(state: Desk, ctx: NodeContext[Any]) -> str:
        state.notes.append((await agent(ctx, "go")).text)
        return "again" if len(state.notes) < 3 else "done"

    flow: Flow[Desk, Any] = Flow("office", start="work", state=Desk)
    flow.node("work", work, outputs=("again", "done"))
    flow.route("work", END, again="work")
    result = await flow.execute(Desk())
    assert result.outcome.unwrap().notes == ["paid"] * 3
    assert len(set(till.effects)) == 3


async def test_a_conversation_may_be_a_prompt():
    till = Till("charge")
    agent = till.agent([Call("pay")], [Call("charge")], "done")

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        state.notes.append((await agent(ctx, [UserMessage(text="go")])).text)

    result = await go_on(flow_of(work), await stop(flow_of(work), till.reached))
    assert result.outcome.unwrap().notes == ["done"]
    assert till.names == ["pay", "charge", "charge"]


async def test_a_conversation_that_was_stopped_in_one_node_is_continued_in_the_next_with_its_parts():
    reserved, keys = [], set()

    @tool(effects="idempotent")
    async def book(ctx: ToolContext) -> str:
        keys.add(ctx.idempotency_key)

        async def reserve() -> str:
            reserved.append("seat")
            return "4A"

        seat = await ctx.once("reserve", reserve)
        if len(kept) == 0:
            await asyncio.get_running_loop().create_future()
        return f"booked {seat}"

    kept: list[AgentResult] = []
    agent = Agent(scripted([Call("book")], "done"), tools=[book])

    async def begin(state: Desk) -> None:
        partial = (await agent.run("go", timeout=0.05)).partial
        assert partial is not None
        kept.append(partial)

    async def end(state: Desk) -> None:
        state.notes.append((await agent.run(resume=kept[0])).unwrap().text)

    flow: Flow[Desk, Any] = Flow("office", start="begin", state=Desk)
    flow.node("begin", begin)
    flow.node("end", end)
    flow.route("begin", "end")
    flow.route("end", END)
    result = await flow.execute(Desk())
    assert result.outcome.unwrap().notes == ["done"]
    assert (reserved, len(keys)) == (["seat"], 1)


async def test_an_agent_in_a_clean_up_is_asked_at_each_end():
    till = Till("look")
    agent = till.agent([Call("mail")], "told")
    flow = flow_of(asks(till.agent([Call("look")], "done")))

    @flow.cleanup
    async def tell(state: Desk, ctx: NodeContext[Any]) -> None:
        await agent(ctx, "it has ended")

    await go_on(flow, await stop(flow, till.reached))
    assert till.names == ["look", "mail", "look", "mail"]


async def test_a_session_that_a_node_opens_keeps_its_own_record():
    till = Till()
    agent = till.agent([Call("pay")], "paid")
    recorded: list[str] = []

    async def work(state: Desk, ctx: NodeContext[Any]) -> None:
        async with Session.open("s", agent=agent, store=MemoryStore()) as session:
            result = await session.send("go")
        recorded.extend(ctx.journal.results)
        state.notes.append(result.outcome.unwrap().text)

    result = await flow_of(work).execute(Desk())
    assert result.outcome.unwrap().notes == ["paid"]
    assert recorded == []
    assert "s:" in till.effects[0][1]
