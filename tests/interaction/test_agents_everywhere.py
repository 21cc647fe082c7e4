"""Whole runs of agents, aborted at every point: zero violations of the laws, and a resume ends as if nothing had been.

Three rounds with tools side by side, one of them in a thread, a sub-agent, a request that fails and is repeated, and a
question to a person.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import pytest

from safepoint import Aborted, AbortSignal, Completed
from safepoint.abort import current_clock, use_clock
from safepoint.agent import (
    Agent,
    AgentResult,
    AgentRun,
    AnswerEnded,
    CallDelta,
    Chunk,
    ModelError,
    ModelRequest,
    TextDelta,
    ToolContext,
    tool,
    validate,
)
from safepoint.messages import AssistantMessage, ToolResult
from safepoint.models.scripted import ScriptedModel
from safepoint.run import Outcome, Retry
from safepoint.testing import DEFAULT_LAWS, FakeClock, Law, Probe, RecordedRun, abort_everywhere, pairs
from tests.conftest import TORTURE
from tests.kit.agents import agents_kept

RETRY = Retry(3, delay=1, jitter=0, on=lambda error: isinstance(error, ModelError) and error.retryable)
PAIRED = pairs(
    {"started": ("ended", "finished"), "called": ("ended",), "asked": ("answered", "withdrawn")}, terminal="RunEnded"
)
LAWS = [law for law in DEFAULT_LAWS if law.__name__ != PAIRED.__name__] + [PAIRED]
Said = Sequence[str | tuple[str, str]]


class Reading:
    """A model whose answer depends on the conversation alone, so that a resumed run goes on where the other stopped.

    An answer is a list of texts and of (tool, argument); `fails`: the first attempt at this answer breaks off.
    """

    def __init__(self, name: str, answers: list[Said], fails: int | None = None) -> None:
        self.name = name
        self._answers = answers
        self._fails = fails

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        step = sum(isinstance(message, AssistantMessage) for message in request.messages)
        for number, piece in enumerate(self._answers[step]):
            await asyncio.sleep(0)
            if isinstance(piece, str):
                yield TextDelta(piece)
            else:
                call_id = f"{self.name}-{step}-{number}"
                yield CallDelta(index=number, call_id=call_id, name=piece[0], arguments='{"word": ')
                await asyncio.sleep(0)
                yield CallDelta(index=number, arguments=f'"{piece[1]}"}}')
            if step == self._fails:
                self._fails = None
                raise ModelError("the line broke", retryable=True)
        yield AnswerEnded()


class World:
    """One run and what really happened in it: the tools write down when they begin and end."""

    def __init__(self, probe: Probe | None, *, thread: bool) -> None:
        self._probe = probe
        self.began: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str]] = []
        self._thread = thread

    def agent(self) -> Agent:
        @tool(effects="idempotent")
        async def look(word: str, ctx: ToolContext) -> str:
            self._begin("look", ctx)
            await current_clock().sleep(1)
            ctx.progress("half")
            await asyncio.sleep(0)
            return self._end("look", ctx, f"saw {word}")

        @tool(effects="idempotent")
        async def quick(word: str, ctx: ToolContext) -> str:
            self._begin("quick", ctx)
            return self._end("quick", ctx, f"quick {word}")

        def work(word: str, ctx: ToolContext) -> str:
            self._begin("work", ctx)
            time.sleep(0.002)  # real time: a thread works
            ctx.signal.raise_if_aborted()
            return self._end("work", ctx, f"worked {word}")

        async def work_later(word: str, ctx: ToolContext) -> str:
            self._begin("work", ctx)
            await current_clock().sleep(2)
            return self._end("work", ctx, f"worked {word}")

        @tool(effects="read")
        async def ask(word: str, ctx: ToolContext) -> str:
            self._begin("ask", ctx)
            return self._end("ask", ctx, await ctx.ask_user(f"{word}?"))

        async def person(question: str) -> str:
            await current_clock().sleep(1)
            return f"yes to {question}"

        helper_model = Reading("low", [["deep ", ("quick", "deep"), ("look", "deeper")], ["found"]], fails=1)
        helper = Agent(helper_model, tools=[look, quick], name="helper", retry=RETRY)
        answers: list[Said] = [
            ["Well, ", ("look", "a"), ("quick", "b"), ("work", "c")],
            [("helper", "dig"), ("look", "d")],
            ["Now ", ("ask", "sure")],
            ["All ", "done"],
        ]
        way: Any = "cooperate" if self._thread else "interrupt"
        made = tool(work if self._thread else work_later, name="work", effects="idempotent", on_abort=way)
        delegating = helper_as_tool(helper)
        return Agent(
            Reading("top", answers, fails=2), tools=[look, quick, made, ask, delegating], ask_user=person, retry=RETRY
        )

    def _begin(self, name: str, ctx: ToolContext) -> None:
        # A thread that had passed the gate before the stop may come to its first line after it.
        if self._probe is not None and threading.current_thread() is threading.main_thread():
            self._probe.record(f"{name} began")
        self.began.append((name, ctx.call_id))

    def _end(self, name: str, ctx: ToolContext, value: str) -> str:
        self.ended.append((name, ctx.call_id))
        return value


def helper_as_tool(helper: Agent) -> Any:
    """The sub-agent, called with `word` as everything else here."""
    inner = helper.as_tool()

    @tool(name="helper", on_abort="cooperate", effects="idempotent")
    async def call(word: str, ctx: ToolContext) -> Any:
        return await inner.fn(prompt=word, ctx=ctx)

    return call


class Campaign:
    """The scenario, and the laws of agents over the run that it has just made."""

    def __init__(self, *, thread: bool) -> None:
        self._thread = thread
        self.world = World(None, thread=thread)
        self.run: AgentRun | None = None
        self.whole = self._uninterrupted()

    async def scenario(self, probe: Probe) -> Outcome[AgentResult]:
        self.world = World(probe, thread=self._thread)
        self.run = self.world.agent().run("go", signal=probe.signal)
        try:
            async for event in self.run:
                probe.event(event)
        finally:
            async for event in self.run:  # what came after whoever reads was told to go
                probe.event(event)
        return await self.run

    def _uninterrupted(self) -> AgentResult:
        async def run() -> AgentResult:
            return (await World(None, thread=self._thread).agent().run("go")).unwrap()

        whole: AgentResult = self._on_its_own_loop(run)
        return whole

    def _on_its_own_loop(self, work: Callable[[], Any]) -> Any:
        async def driven() -> Any:
            with use_clock(FakeClock()) as clock:
                task = asyncio.ensure_future(work())
                while not task.done():
                    await clock.elapse(0)
                    if not self._thread or not task.done():
                        await clock.elapse(1)
                    if self._thread:
                        await asyncio.sleep(0.001)  # real time: a thread works
                return await task

        return asyncio.run(driven())

    def outcome(self) -> Outcome[AgentResult]:
        assert self.run is not None
        assert self.run._task is not None
        return self.run._task.result()

    def laws(self) -> list[Law]:
        def the_conversation_is_valid(run: RecordedRun) -> Iterator[str]:
            outcome = self.outcome()
            if isinstance(outcome, Completed):
                return
            partial = outcome.partial
            if not isinstance(outcome, Aborted) or partial is None:
                yield f"it ended as {outcome}"
                return
            validate(partial.messages)
            for kept in agents_kept(partial):
                validate(kept.messages)

        def every_result_is_true(run: RecordedRun) -> Iterator[str]:
            outcome = self.outcome()
            if isinstance(outcome, Completed) or outcome.partial is None:
                return
            told = {call.call_id: call.status for call in self._results(outcome.partial)}
            began, ended = ({call_id for _, call_id in calls} for calls in (self.world.began, self.world.ended))
            for call_id, status in told.items():
                if "helper" in call_id or call_id == "top-1-0":
                    continue
                happened = "completed" if call_id in ended else "interrupted" if call_id in began else "not_started"
                if status != happened:
                    yield f"{call_id} is told as {status}, and was {happened}"
            # Those of a sub-agent that has ended are in its answer.
            yield from (f"{call_id} has no result" for call_id in began - told.keys() if call_id.startswith("top"))

        def the_receipt_is_true(run: RecordedRun) -> Iterator[str]:
            outcome = self.outcome()
            if isinstance(outcome, Completed):
                return
            receipt = outcome.receipt
            for name in ("look", "quick", "work", "ask"):
                fates = Counter(entry.fate for entry in receipt.entries if entry.name.endswith(f"/{name}"))
                began = sum(other == name for other, _ in self.world.began)
                ended = sum(other == name for other, _ in self.world.ended)
                if (fates["finished"], fates["stopped"]) != (ended, began - ended):
                    yield f"of {name} {began} began and {ended} ended, and the receipt says {dict(fates)}"
            yield from (f"{entry.name} is {entry.fate}" for entry in receipt.still_running)

        def the_next_turn_works(run: RecordedRun) -> Iterator[str]:
            outcome = self.outcome()
            if isinstance(outcome, Completed) or outcome.partial is None:
                return
            partial, model = outcome.partial, ScriptedModel("next")

            async def following() -> Outcome[AgentResult]:
                return await Agent(model).run("and now?", history=partial.messages)

            after = asyncio.run(following())
            if not isinstance(after, Completed) or model.requests[0].messages[:-1] != partial.messages:
                yield f"the next turn: {after}"

        def a_resume_ends_as_if_nothing_had_been(run: RecordedRun) -> Iterator[str]:
            outcome = self.outcome()
            if isinstance(outcome, Completed) or outcome.partial is None:
                return
            partial, world = outcome.partial, World(None, thread=self._thread)

            async def resumed() -> AgentResult:
                return (await world.agent().run(resume=partial)).unwrap()

            result = self._on_its_own_loop(resumed)
            if result.messages != self.whole.messages:
                yield f"resumed it ends with {result.messages}, not with {self.whole.messages}"
            twice = {call_id for _, call_id in self.world.ended} & {call_id for _, call_id in world.began}
            yield from (f"{call_id} had ended, and ran again" for call_id in twice)

        return [
            the_conversation_is_valid,
            every_result_is_true,
            the_receipt_is_true,
            the_next_turn_works,
            a_resume_ends_as_if_nothing_had_been,
        ]

    def _results(self, partial: AgentResult) -> Iterator[ToolResult]:
        yield from (message for message in partial.messages if isinstance(message, ToolResult))
        for kept in agents_kept(partial):
            yield from self._results(kept)


def test_a_whole_run_can_be_stopped_at_every_point():
    campaign = Campaign(thread=False)
    modes: Any = ("abort", "inside", "twice", "cancel") if TORTURE else ("abort", "inside", "cancel")
    report = abort_everywhere(campaign.scenario, clock=FakeClock, laws=[*LAWS, *campaign.laws()], modes=modes)
    assert len(report.points) > 80
    assert not report.not_reached
    assert report.stable


@pytest.mark.parametrize("mode", ["abort", "cancel"])
def test_a_whole_run_with_a_tool_in_a_thread_can_be_stopped_at_every_point(mode: Any):
    campaign = Campaign(thread=True)
    report = abort_everywhere(
        campaign.scenario, clock=FakeClock, laws=[*LAWS, *campaign.laws()], modes=(mode,), seconds=20
    )
    assert len(report.points) > 80
