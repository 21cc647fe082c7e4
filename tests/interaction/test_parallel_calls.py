"""Two calls of one sub-agent, each with two calls of one tool: every event says to which of them it belongs."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from safepoint import AbortSignal, Completed, Retry
from safepoint.abort import use_clock
from safepoint.agent import Agent, AnswerEnded, CallDelta, Chunk, ModelError, ModelRequest, TextDelta, ToolContext, tool
from safepoint.events import (
    AnswerFinished,
    AnswerRestarted,
    AnswerStarted,
    CallRecorded,
    Event,
    LoopIdle,
    LoopStopping,
    ProgressMade,
    RecordDelayed,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionOpened,
    StopRequested,
    TextStreamed,
    ToolCalled,
    ToolEnded,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnPlanned,
    TurnPreempted,
    TurnQueued,
    TurnStarted,
    UnknownEvent,
)
from safepoint.flow import END, Flow, NodeContext
from safepoint.messages import UserMessage
from safepoint.run import Context
from safepoint.session import LocalHost, Session
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.worker import remote_tool
from tests.kit.servers import serving
from tests.kit.stores import GatedStore
from tests.kit.workers import New, each_broker, hosting, until_kind, working

SUB_AGENTS = {("a",), ("b",)}
CALLS = {("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")}

# What a run, a turn or a session reports of itself as a whole.
OF_THE_WHOLE = {
    RunStarted,
    RunEnded,
    TurnPlanned,
    TurnStarted,
    TurnPreempted,
    TurnEnded,
    TurnQueued,
    TurnEdited,
    TurnForgotten,
    StopRequested,
    SessionOpened,
    SessionClosed,
    LoopIdle,
    LoopStopping,
}
OF_A_MODEL = {AnswerStarted, AnswerRestarted, AnswerFinished, TextStreamed}
OF_A_CALL = {ToolCalled, CallRecorded, ToolEnded}


class Caller:
    """A model that says its prompt, calls a tool under these ids, and then says that it is done with the prompt.

    `unsteady`: the first answer to each prompt breaks off and is asked for again.
    """

    name = "caller"

    def __init__(self, name: str, calls: dict[str, str], unsteady: bool = False) -> None:
        self._tool, self._calls, self._unsteady = name, calls, unsteady
        self._broken: set[str] = set()

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        prompt = next(message.text for message in request.messages if isinstance(message, UserMessage))
        for word in ("says", prompt):
            yield TextDelta(f"{word} ")
            await asyncio.sleep(0)  # the answers of parallel requests come in turns
        if self._unsteady and prompt not in self._broken:
            self._broken.add(prompt)
            raise ModelError("broken off", retryable=True)
        if not isinstance(request.messages[-1], UserMessage):
            yield AnswerEnded("stop")
            return
        for index, (call_id, arguments) in enumerate(self._calls.items()):
            yield CallDelta(index=index, call_id=call_id, name=self._tool, arguments=arguments)
        yield AnswerEnded("tool_calls")


def boss(*tools: Any, unsteady: bool = False, **options: Any) -> Agent:
    """An agent that calls a sub-agent twice, as `a` and `b`, which both call the tool twice, as `x` and `y`."""
    again = Retry(attempts=2, delay=0.0)
    inner = Agent(Caller("work", {"x": "{}", "y": "{}"}, unsteady), tools=tools, name="researcher", retry=again)
    return over(inner.as_tool(), **options)


def over(researcher: Any, **options: Any) -> Agent:
    calls = {"a": '{"prompt": "alpha"}', "b": '{"prompt": "beta"}'}
    return Agent(Caller("researcher", calls), tools=[researcher], name="boss", **options)


def of(cls: type[Event], events: Iterable[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, cls)]


@dataclass
class Note:
    """The state of the flow that a tool runs."""

    text: str = ""


def a_flow() -> Flow[Note, None]:
    flow: Flow[Note, None] = Flow("noting", start="note")

    @flow.node
    async def note(state: Note, ctx: NodeContext[None]) -> None:
        state.text = "noted"

    flow.route("note", END)
    return flow


@tool(requires_approval=True)
async def work(ctx: ToolContext) -> str:
    """Report everything that a call can report without a stop."""
    tries: list[int] = []

    async def second_time() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("once more")

    def cleanup() -> None:
        raise OSError("not cleaned up")

    ctx.on_exit(cleanup)
    ctx.progress(f"at {'/'.join(ctx.calls)}")
    ctx.emit(UnknownEvent(**ctx.stamp(), name="newer", document="{}"))
    await Retry(attempts=2, delay=0.0).run(second_time, ctx=ctx)
    await ctx.once("part", lambda: 1)
    await ctx.ask_user("Which colour?")
    await a_flow()(ctx, Note())
    return "worked"


async def finished() -> list[Event]:
    async def allow(question: str) -> str:
        return "allow"

    run = boss(work, unsteady=True, ask_user=allow).run("go")
    events = [event async for event in run]
    assert isinstance(await run, Completed)
    return events


async def stopped() -> list[Event]:
    """A stop that withdraws questions, warns of tools that go on, and leaves them behind."""
    with use_clock(FakeClock()) as clock:
        reached, released = list[int](), asyncio.Event()

        @tool(name="work", warn_after=1.0, abandon_after=2.0)
        async def stubborn(ctx: ToolContext) -> str:
            """Ask, and go on."""
            asking = asyncio.ensure_future(ctx.ask_user("Which colour?"))
            reached.append(1)
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    pass
            await asyncio.gather(asking, return_exceptions=True)
            return "late"

        events: list[Event] = []
        async with boss(stubborn, ask_user=True).run("go") as run:
            async for event in run:
                events.append(event)
                if event.kind == "question_asked" and len(of(type(event), events)) == 4:
                    run.stop()
                    for _ in range(3):
                        await drain_ready_tasks()
                        clock.advance(1.0)
            await run
        released.set()
        await drain_ready_tasks()
    return events


async def delayed() -> list[Event]:
    """A session whose store stands still while the calls wait for it."""
    with use_clock(FakeClock()) as clock:
        released = list[int]()

        class Held(GatedStore):
            async def append(self, session: str, records: Any, *, durable: bool) -> frozenset[str]:
                if not released and any(
                    "call_recorded" in record.text and '"work"' in record.text for record in records
                ):
                    self.shut()
                return await super().append(session, records, durable=durable)

        @tool(name="work")
        async def quick() -> str:
            """Work."""
            return "worked"

        store, events = Held(), list[Event]()
        async with Session.open("s", agent=boss(quick), store=store) as session:
            turn = session.send("go")
            await store.writing.wait()
            await drain_ready_tasks()
            clock.advance(1.0)
            async with asyncio.timeout(20):
                async for recorded in session.events():
                    events.append(recorded.event)
                    if len([event for event in of(RecordDelayed, events) if len(event.calls) == 2]) == 4:
                        break
            released.append(1)
            store.gate.set()
            await turn
    return events


WAYS: dict[str, Callable[[], Awaitable[list[Event]]]] = {
    "RecordDelayed": delayed,
    "AbortIgnored": stopped,
    "LeafAbandoned": stopped,
    "QuestionWithdrawn": stopped,
}


@pytest.mark.parametrize("cls", [cls for cls in get_args(Event) if cls not in OF_THE_WHOLE], ids=lambda c: c.__name__)
async def test_an_event_of_a_call_says_of_which_call_it_is(cls: type[Event]):
    events = of(cls, await WAYS.get(cls.__name__, finished)())
    if cls in OF_A_CALL:
        assert {(*event.calls, event.call_id) for event in events} == SUB_AGENTS | CALLS
    elif cls in OF_A_MODEL:
        assert {event.calls for event in events} - {()} == SUB_AGENTS
    else:
        assert {event.calls for event in events} - {()} - SUB_AGENTS == CALLS
    for event in events:
        assert event.path[: len(event.calls) + 1] == ("boss", "researcher", "work")[: len(event.calls) + 1]


@pytest.mark.parametrize("way", [finished, stopped, delayed])
async def test_an_event_of_the_whole_run_is_inside_no_call(way: Callable[[], Awaitable[list[Event]]]):
    whole = [event for event in await way() if type(event) in OF_THE_WHOLE]
    assert whole
    assert {event.calls for event in whole} == {()}


def words(events: Iterable[Event]) -> dict[tuple[str, ...], str]:
    """What each agent has said, by the calls around it."""
    found: defaultdict[tuple[str, ...], str] = defaultdict(str)
    for event in of(TextStreamed, events):
        found[event.calls] += event.text
    return dict(found)


def progress(events: Iterable[Event]) -> dict[tuple[str, ...], str]:
    return {event.calls: event.message for event in of(ProgressMade, events)}


SAID = {(): "says go says go ", ("a",): "says alpha says alpha ", ("b",): "says beta says beta "}
REPORTED = {calls: f"at {'/'.join(calls)}" for calls in CALLS}


@tool(name="work")
async def reporting(ctx: ToolContext) -> str:
    """Report."""
    ctx.progress(f"at {'/'.join(ctx.calls)}")
    return "worked"


@tool(name="work")
def in_a_thread(ctx: ToolContext) -> str:
    """Report from a thread."""
    ctx.progress(f"at {'/'.join(ctx.calls)}")
    return "worked"


@tool(name="work", isolation="process")
def in_a_process(ctx: ToolContext) -> str:
    """Say where the call is, from a process of its own."""
    return "/".join(ctx.calls)


@pytest.mark.parametrize("each", [reporting, in_a_thread])
async def test_a_reader_of_a_run_takes_parallel_calls_apart(each: Any):
    events = [event async for event in boss(each).run("go")]
    assert words(events) == SAID
    assert progress(events) == REPORTED


async def test_a_tool_in_a_process_of_its_own_knows_its_calls_and_has_its_own_events():
    events = [event async for event in boss(in_a_process).run("go")]
    ended = {(*event.calls, event.call_id): event.content for event in of(ToolEnded, events)}
    assert {calls: content for calls, content in ended.items() if len(calls) == 2} == {
        calls: "/".join(calls) for calls in CALLS
    }
    assert {event.calls for event in events if event.kind == "leaf_ended" and event.leaf == "process"} == CALLS


async def test_a_reader_of_the_http_stream_takes_parallel_calls_apart():
    async with serving(boss(reporting)) as served:
        session = await served.session()
        await served.send(session, "go")
        await served.until(session, "turn_ended")
        written = [event for _, event in await served.all_events(session)]
    said: defaultdict[tuple[str, ...], str] = defaultdict(str)
    for event in written:
        if event["kind"] == "text_streamed":
            said[tuple(event["calls"])] += event["text"]
    assert dict(said) == SAID
    assert {tuple(e["calls"]): e["message"] for e in written if e["kind"] == "progress_made"} == REPORTED


@each_broker
async def test_a_reader_of_a_session_on_a_worker_takes_parallel_calls_apart(new: New):
    broker = new()
    async with working(boss(reporting), broker), hosting(broker) as host:
        await host.create("s", "boss")
        await host.send("s", "go", turn_id="t")
        last = await until_kind(host, "s", "turn_ended")
        events = [recorded.event async for recorded in _up_to(host, last.seq)]
    assert words(events) == SAID
    assert progress(events) == REPORTED


async def _up_to(host: Any, last: int) -> AsyncGenerator[Any, None]:
    async for recorded in host.events("s"):
        yield recorded
        if recorded.seq >= last:
            return


async def test_parallel_calls_of_one_agent_on_another_machine_are_apart():
    inner = Agent(Caller("work", {"x": "{}", "y": "{}"}), tools=[reporting], name="researcher")
    host = LocalHost(inner)
    events = [event async for event in over(remote_tool(host, "researcher")).run("go")]
    await host.close()
    assert words(events) == SAID
    # The tool itself runs in a session of the sub-agent, and knows only the calls in there.
    assert progress(events) == {calls: f"at {calls[-1]}" for calls in CALLS}


async def test_an_agent_that_a_tool_runs_twice_at_once_has_two_names_and_two_kinds_of_keys():
    keys: list[str] = []

    @tool(name="work")
    async def paying(ctx: ToolContext) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    helper = Agent(Caller("work", {"x": "{}"}), tools=[paying], name="helper")

    @tool(name="researcher")
    async def both(prompt: str, ctx: ToolContext) -> str:
        """Have two helpers at once."""
        async with asyncio.TaskGroup() as group:
            for side in ("left", "right"):
                group.create_task(helper(ctx, side))
        return "both"

    events = [event async for event in over(both).run("go")]
    said: defaultdict[tuple[Any, ...], str] = defaultdict(str)
    for event in of(TextStreamed, events):
        said[event.calls, event.path[2:]] += event.text
    assert said[("a",), ("helper",)] == said[("b",), ("helper",)] == "says left says left "
    assert said[("a",), ("helper#2",)] == said[("b",), ("helper#2",)] == "says right says right "
    assert len(keys) == len(set(keys)) == 4


async def test_the_second_run_of_an_agent_in_plain_work_has_a_key_of_its_own_too():
    helper = Agent(Caller("work", {"x": "{}"}), tools=[reporting], name="helper")
    events: list[Event] = []
    outer = Context("run", emit=events.append).child("twice")
    async with asyncio.TaskGroup() as group:
        for side in ("left", "right"):
            group.create_task(helper(outer, side))
    keys = {event.path: event.idempotency_key for event in of(ToolCalled, events)}
    assert set(keys) == {("run", "twice", "helper"), ("run", "twice", "helper#2")}
    assert len(set(keys.values())) == 2
