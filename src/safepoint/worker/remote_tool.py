"""A sub-agent on another machine: a tool that runs a turn of another session, and stops it when its call is aborted.

The ids of session and turn are derived from the call, so that a parent that is resumed finds its child instead of
starting a second one.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace

from ..abort import AbortController, AbortReason
from ..abort.ambient import shield
from ..abort.reason import AbortError, error_from
from ..abort.time_limit import limit_of
from ..agent.context import ToolContext
from ..agent.conversation import AgentResult
from ..agent.tool import AnyTool, tool
from ..errors import SafepointError, describe
from ..events import Event, SessionClosed, TurnEnded, TurnQueued
from ..outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.stop import StopAck
from ..session.host import NotFound, SessionAccess
from ..session.session_state import OWN_EVENTS
from .broker import BrokerError
from .remote_host import RemoteHost

__all__ = ["SubAgentWaits", "remote_tool"]

# How long to wait for the end of the child when the parent was stopped, and when the parent was told not to wait.
SETTLE_SECONDS = 10.0
ABANDON_SECONDS = 2.0
# How often a child that was stopped is told to continue while nobody answers, and the pause in between.
CONTINUE_ATTEMPTS = 3
CONTINUE_RETRY_SECONDS = 1.0


class SubAgentWaits:
    """The number of calls of one order that wait for a sub-agent. Belongs to the event loop of the work.

    A worker has a limited number of places. If turns that wait for sub-agents took all of them, and the sub-agents
    waited for a place, there would be a deadlock. So a turn that waits lends its place, which only sub-agents may take.
    """

    def __init__(self, on_change: Callable[[bool], object]) -> None:
        """Start at zero.

        Args:
            on_change: Called with True when the first call begins to wait, and with False after the last one.
        """
        self._on_change = on_change
        self._count = 0

    def observe(self) -> None:
        """Count the calls that are made in this context, and in the tasks that are started from it, from now on."""
        WAITS.set(self)

    def add(self, difference: int) -> None:
        """Change the number of waiting calls."""
        before, self._count = self._count, self._count + difference
        if bool(before) != bool(self._count):
            self._on_change(bool(self._count))


# The counter of the order to which the running code belongs; None outside of a worker.
WAITS: ContextVar[SubAgentWaits | None] = ContextVar("safepoint_waits", default=None)


@contextmanager
def waiting_for_a_sub_agent() -> Iterator[None]:
    """Count the running call as waiting for a sub-agent inside the block. Does nothing outside of a worker."""
    waits = WAITS.get()
    if waits is None:
        yield
        return
    waits.add(1)
    try:
        yield
    finally:
        waits.add(-1)


def remote_tool(host: SessionAccess, agent: str, *, name: str | None = None, description: str | None = None) -> AnyTool:
    """An agent of a host as a tool. Its events are forwarded, and a stop of the parent stops it too.

    The time limit of the parent applies to the child as well: it is sent as the seconds that remain.

    Args:
        host: Where the agent runs.
        agent: The name of the agent.
        name: The name of the tool; by default that of the agent.
        description: The description for the model.

    Raises:
        NotFound: When the tool is called, if no worker offers the agent.
    """

    # A sub-agent of a local host runs in this process and needs no place of a worker.
    while_waiting = waiting_for_a_sub_agent if isinstance(host, RemoteHost) else nullcontext

    async def stop_turn(session: str, turn: str) -> None:
        ack = await host.stop(
            session, turn, reason=AbortReason("parent", "the call that it works for is not continued")
        )
        if ack.status != "unknown" and ack.begun:
            await ack.settled()

    async def stop_remote(key: str) -> None:
        session, first = _ids(agent, key)
        with suppress(NotFound):  # it was never started
            await stop_turn(session, first)
            for later in (await host.session(session)).turns:  # a turn that continues the first one, or replaces it
                await stop_turn(session, later.id)

    async def call(prompt: str, ctx: ToolContext) -> str:
        child = _Child(host, agent, ctx)
        with while_waiting():
            try:
                outcome = await ctx.signal.run(child.outcome(prompt))
            except AbortError as error:
                raise await child.stopped(error) from error
        return child.text_of(outcome)

    text = description or f"Have the agent {agent} do something, on another machine."
    # On an abort the call first stops the child and waits for its partial result, so it is not interrupted from outside
    # ("cooperate"). Work that ignores the stop is abandoned by the child, on its machine.
    made = tool(call, name=name or agent, description=text, on_abort="cooperate")
    return replace(made, kind="child", stop_remote=stop_remote)


def _ids(agent: str, key: str) -> tuple[str, str]:
    """The ids of session and turn for a call with this idempotency key."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return f"{agent}-{digest}", digest


class _Child:
    """The child of one call: a session of its own, with one turn and those that continue it.

    The process in which the parent ran before may stop the child late: when it is shut down, or has lost the parent to
    this process. Such a stop has a reason of the kind "parent". It is not meant for the parent that goes on, so the
    child is continued. If it came before the turn had begun, nothing can be continued, and the id is used up, because a
    turn that was stopped never begins: then the next id is used.
    """

    def __init__(self, host: SessionAccess, agent: str, ctx: ToolContext) -> None:
        self._host = host
        self._agent = agent
        self._ctx = ctx
        self._session, self._first = _ids(agent, ctx.idempotency_key)
        self._turn = self._first  # the turn that works, or has worked last
        self._after = 0  # the number of the last event that was read
        self._skip: float = 0  # how many events are not forwarded, because they were before

    async def outcome(self, prompt: str) -> Outcome[AgentResult]:
        """Run the turn, or follow the one that an earlier run of the parent has started. Returns how it ended."""
        host, session = self._host, self._session
        if isinstance(host, RemoteHost):
            await host.create(session, self._agent, sub_agent=True)
        else:
            await host.create(session, self._agent)
        number, ended = 1, await self._run_turn(prompt)
        while _kept_from_beginning(ended):
            number += 1
            self._turn = f"{self._first}-{number}"
            ended = await self._run_turn(prompt)
        return ended

    async def _run_turn(self, prompt: str) -> Outcome[AgentResult]:
        """Run one turn, or follow it if it is there already, with what continues it. Returns how it ended."""
        host, session = self._host, self._session
        continues = False
        try:
            await host.turn(session, self._turn)
        except NotFound:
            limit = limit_of(self._ctx.signal)
            seconds = None if limit is None else max(limit.remaining, 0.0)
            view = await host.send(session, prompt, turn_id=self._turn, timeout=seconds)
            ended = view.outcome or await self._follow()
        else:
            known = await self._catch_up()
            # It was stopped with this call, which now goes on.
            continues = self._ctx.kept is not None and isinstance(known, Aborted | TimedOut | Failed)
            ended = known if known is not None and (continues or not _lost(known)) else await self._follow(known)
        while (continues or _stopped_by_parent(ended)) and not _kept_from_beginning(ended):
            continues = False
            ended = await self._continue()
        return ended

    async def _continue(self) -> Outcome[AgentResult]:
        """Continue the turn, which was stopped, and follow it. Returns how it ended.

        A request without an answer may have been carried out all the same. The log of the session shows it: then the
        turn is followed, and else the request is sent again. Otherwise the call would fail while its child works.
        """
        stopped = self._turn
        for remaining in reversed(range(CONTINUE_ATTEMPTS)):
            try:
                self._turn = (await self._host.continue_turn(self._session, stopped)).id
            except SafepointError as error:
                ended = await self._catch_up()
                if self._turn != stopped:
                    return ended if ended is not None and not _lost(ended) else await self._follow(ended)
                if not remaining or not isinstance(error, BrokerError):
                    raise
                await self._ctx.signal.sleep(CONTINUE_RETRY_SECONDS)
            else:
                break
        return await self._follow()

    async def _catch_up(self) -> Outcome[AgentResult] | None:
        """Read the events so far, and forward those that were not forwarded yet. Returns how it ended, if it has."""
        last = (await self._host.session(self._session)).last_seq
        forwarded = self._ctx.journal.forwarded.get(self._ctx.idempotency_key)
        # Without a count, a child that was stopped had all its events forwarded until then.
        self._skip = forwarded if forwarded is not None else (math.inf if self._ctx.kept is not None else 0)
        ended: Outcome[AgentResult] | None = None
        if last:
            async with aclosing(self._host.events(self._session)) as events:
                async for recorded in events:
                    ended = self._on_event(recorded.event, ended)
                    self._after = recorded.seq
                    if recorded.seq >= last:
                        break
        self._skip = 0
        return ended

    async def _follow(self, ended: Outcome[AgentResult] | None = None) -> Outcome[AgentResult]:
        """Wait for its end. If the turn lost its worker, wait for the end of the turn that continues it."""
        async with aclosing(self._host.events(self._session, self._after)) as events:
            async for recorded in events:
                if isinstance(recorded.event, SessionClosed) and ended is not None:
                    return ended  # the next owner has closed the session without continuing the turn
                ended = self._on_event(recorded.event, ended)
                if ended is not None and not _lost(ended):
                    return ended
        raise NotFound(f"the host of {self._agent} was closed before the turn had ended")

    def _on_event(self, event: Event, ended: Outcome[AgentResult] | None) -> Outcome[AgentResult] | None:
        """Handle an event of the session. Returns how the turn, or the last one that continues it, has ended."""
        match event:
            case TurnEnded(turn_id=turn_id, outcome=outcome) if turn_id == self._turn:
                return outcome
            case TurnQueued(turn_id=turn_id, continues=continues) if continues == self._turn:
                self._turn = turn_id
                return None
            case _:
                self._forward(event)
        return ended

    def _forward(self, event: Event) -> None:
        if isinstance(event, OWN_EVENTS) or not self._ctx.has_listener:
            return
        if self._skip > 0:
            self._skip -= 1
            return
        key, counts = self._ctx.idempotency_key, self._ctx.journal.forwarded
        counts[key] = counts.get(key, 0) + 1
        path, calls = (*self._ctx.path, *event.path[1:]), (*self._ctx.calls, *event.calls)
        self._ctx.emit(replace(event, path=path, calls=calls))

    async def stopped(self, error: AbortError) -> AbortError:
        """Stop the child because the parent was stopped, and wait for its end. Returns the error to raise."""
        reason = self._ctx.signal.reason or error.reason
        partial: AgentResult | None = None
        with shield(2 * SETTLE_SECONDS):
            try:
                partial = await self._end(AbortReason("parent", reason.message))
            except NotFound:
                pass  # it was never started
            except (SafepointError, TimeoutError) as problem:
                warning = f"{self._agent} on another machine may go on: {describe(problem)}"
                self._ctx.receipt_builder.warn(warning)
        if partial is not None:
            self._ctx.usage += partial.usage
        return error_from(reason, partial)

    async def _end(self, reason: AbortReason) -> AgentResult | None:
        """Stop the child and wait for its end. Returns its partial result, if it has one."""
        ack = await self._host.stop(self._session, self._turn, reason=reason)
        if ack.status == "unknown" or not ack.begun:
            return None  # the record of the stop keeps it from beginning, so there is no end to wait for
        await self._settled(ack, reason)
        outcome = (await self._host.turn(self._session, self._turn)).outcome
        return None if outcome is None else _result_of(outcome)

    async def _settled(self, ack: StopAck, reason: AbortReason) -> None:
        """Wait for the end of the child. If the parent abandons what does not end, the child is told to do the same."""
        abandoned = AbortController()
        forget = self._ctx.stop.when_abandoned(lambda: abandoned.abort("it is not waited for any longer"))
        limit = SETTLE_SECONDS
        try:
            try:
                await abandoned.signal.run(ack.settled(limit))
            except AbortError:
                limit = ABANDON_SECONDS
                await self._host.stop(self._session, self._turn, abandon=0.0, reason=reason)
                await ack.settled(limit)
        except TimeoutError:
            raise TimeoutError(f"it has not ended within {limit:g} s: {ack.message}") from None
        finally:
            forget()

    def text_of(self, outcome: Outcome[AgentResult]) -> str:
        """The result of the call, for the model. Raises the error with which the child failed."""
        result = _result_of(outcome)
        if result is not None:
            self._ctx.usage += result.usage
        match outcome:
            case Completed(value):
                return value.text
            case Aborted(reason, _, _) | TimedOut(reason, _, _):
                raise RuntimeError(f"{self._agent} was stopped: {reason.kind}: {reason.message}")
            case Failed(error, _, _):
                raise error


def _stopped_by_parent(outcome: Outcome[AgentResult]) -> bool:
    """Whether a stop of the parent ended the turn. A turn whose parent goes on was stopped by its former process."""
    return isinstance(outcome, Aborted) and outcome.reason.kind == "parent"


def _kept_from_beginning(outcome: Outcome[AgentResult]) -> bool:
    """Whether such a stop came before the turn had begun, so that there is nothing to continue."""
    fates = [entry.fate for entry in outcome.receipt.entries]
    return _stopped_by_parent(outcome) and fates == ["not_started"]


def _lost(outcome: Outcome[AgentResult]) -> bool:
    """Whether the turn has lost its worker, so that another turn may continue it."""
    return isinstance(outcome, Aborted) and outcome.reason.kind == "lease_lost"


def _result_of(outcome: Outcome[AgentResult]) -> AgentResult | None:
    return outcome.value if isinstance(outcome, Completed) else outcome.partial
