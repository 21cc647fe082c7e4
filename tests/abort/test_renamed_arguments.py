"""`deadline=` for a duration is accepted for one version, with a warning; arguments of other frameworks are refused."""

from typing import Any

import pytest

from safepoint import Agent, TimedOut, UsageError
from safepoint.events import TurnEnded
from safepoint.flow import END, Flow, NodeContext
from safepoint.models.scripted import Answer, Delay, ScriptedModel
from safepoint.run import Context
from safepoint.session import LocalHost, Session
from safepoint.turns import TurnPlan
from tests.kit.servers import serving
from tests.kit.workers import hosting, memory, until_kind, working

OLD: dict[str, Any] = {"deadline": 0.01}
BOTH: dict[str, Any] = {"deadline": 0.01, "timeout": 5.0}


def slow_agent(answers: int = 1) -> Agent:
    script: list[Answer] = [["one ", Delay(3600), "two"]] * answers
    return Agent(ScriptedModel(*script), name="slow")


async def test_an_agent_accepts_the_old_name_with_a_warning_at_the_callers_line() -> None:
    with pytest.warns(DeprecationWarning, match="timeout=seconds") as warned:
        run = slow_agent().run("go", **OLD)
    assert warned[0].filename == __file__
    outcome = await run
    assert isinstance(outcome, TimedOut)
    assert outcome.reason.kind == "deadline"
    assert outcome.reason.origin is not None
    assert outcome.reason.origin.startswith(__file__)


async def test_a_flow_accepts_the_old_name_with_a_warning_at_the_callers_line() -> None:
    flow: Flow[dict[str, str], None] = Flow("report", start="wait", state=dict[str, str])

    @flow.node
    async def wait(state: dict[str, str], ctx: NodeContext[None]) -> None:
        await ctx.signal.sleep(3600)

    flow.route("wait", done=END)

    with pytest.warns(DeprecationWarning, match="timeout=seconds") as warned:
        run = flow.start({}, **OLD)
    assert warned[0].filename == __file__
    assert isinstance((await run).outcome, TimedOut)


async def test_a_session_accepts_the_old_name() -> None:
    async with Session.open("s1", agent=slow_agent()) as session:
        with pytest.warns(DeprecationWarning, match="timeout=seconds"):
            turn = session.send("go", **OLD)
        assert (await turn).status == "timed_out"


@pytest.mark.parametrize("begin", ["save_messages", "stream", "continue_turn"])
async def test_every_way_to_begin_a_turn_accepts_the_old_name(begin: str) -> None:
    async with Session.open("s1", agent=slow_agent(2)) as session:
        if begin == "continue_turn":
            first = session.send("go")
            async for logged in session.events():
                if logged.event.kind == "text_streamed":
                    break
            first.stop()
            await first
        given = () if begin == "continue_turn" else ("go",)
        with pytest.warns(DeprecationWarning, match="timeout=seconds"):
            turn = getattr(session, begin)(*given, **OLD)
        if begin == "stream":
            statuses = [event.outcome.status async for event in turn if event.kind == "turn_ended"]
            assert statuses == ["timed_out"]
        else:
            assert (await turn).status == "timed_out"


async def test_a_remote_host_accepts_the_old_name() -> None:
    broker = memory()
    async with hosting(broker) as host, working(slow_agent(), broker):
        await host.create("s1")
        with pytest.warns(DeprecationWarning, match="timeout=seconds"):
            await host.send("s1", "go", turn_id="t1", **OLD)
        ended = (await until_kind(host, "s1", "turn_ended")).event
        assert isinstance(ended, TurnEnded)
        assert ended.outcome.status == "timed_out"


async def test_a_host_accepts_the_old_name() -> None:
    host = LocalHost(slow_agent())
    await host.create("s1")
    with pytest.warns(DeprecationWarning, match="timeout=seconds"):
        await host.send("s1", "go", turn_id="t1", **OLD)
    async for recorded in host.events("s1"):
        if recorded.event.kind == "turn_ended":
            assert recorded.event.outcome.status == "timed_out"
            break
    await host.close()


def test_a_context_and_a_plan_accept_the_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="timeout=seconds"):
        assert Context(**OLD).signal.remaining() <= 0.01
    with pytest.warns(DeprecationWarning, match="timeout=seconds"):
        assert TurnPlan(slow_agent(), "go", **OLD).timeout == 0.01


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="same limit"):
        slow_agent().run("go", **BOTH)


@pytest.mark.parametrize(
    ("wrong", "right"), [("system_prompt", "instructions"), ("system", "instructions"), ("functions", "tools")]
)
def test_an_agent_names_the_argument_that_other_frameworks_call_differently(wrong: str, right: str) -> None:
    given: dict[str, Any] = {wrong: ()}
    with pytest.raises(UsageError, match=rf"Agent\(\) has no argument '{wrong}': use {right}=… instead"):
        Agent(ScriptedModel(), **given)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("message_history", "history"), ("messages", "history"), ("user_prompt", "prompt"), ("input", "prompt")],
)
def test_a_run_names_the_argument_that_other_frameworks_call_differently(wrong: str, right: str) -> None:
    given: dict[str, Any] = {wrong: ()}
    with pytest.raises(UsageError, match=rf"Agent\.run\(\) has no argument '{wrong}': use {right}=… instead"):
        Agent(ScriptedModel()).run("go", **given)


async def test_http_accepts_both_names_and_marks_the_answer_to_the_old_one() -> None:
    async with serving(slow_agent(2)) as served:  # the second turn may begin, and ask, before its time is up
        session = await served.session()
        messages = f"/api/sessions/{session}/messages"
        old = await served.call("POST", messages, {"text": "go", "turn_id": "t1", "deadline": 0.01})
        assert (old.status_code, old.headers.get("deprecation")) == (202, "true")
        new = await served.call("POST", messages, {"text": "go", "turn_id": "t2", "timeout": 0.01})
        assert (new.status_code, new.headers.get("deprecation")) == (202, None)
        both = await served.call("POST", messages, {"text": "go", "deadline": 1, "timeout": 1})
        assert both.status_code == 422
        assert "give timeout alone" in both.text
        for turn in ("t1", "t2"):
            await served.until(session, "turn_ended", turn_id=turn)
            assert (await served.turn(session, turn))["status"] == "timed_out"


async def test_an_argument_that_never_had_a_meaning_is_a_type_error_as_in_any_function():
    unknown: dict[str, Any] = {"dedline": 1.0}
    async with Session.open("s", agent=slow_agent()) as session:
        with pytest.raises(TypeError, match=r"send\(\) got an unexpected keyword argument 'dedline'"):
            session.send("hello", **unknown)
