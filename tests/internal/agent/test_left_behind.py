"""What unfinished calls have left on other machines: found at every depth, stopped, or told as a warning."""

from dataclasses import replace

from safepoint.agent import Agent, AgentResult, AnyTool, tool
from safepoint.agent.tool import ToolLike
from safepoint.messages import AssistantMessage, CallStatus, Message, ToolCall, ToolResult, UserMessage
from safepoint.models.scripted import ScriptedModel


def elsewhere(stopped: list[str], name: str = "far", error: Exception | None = None) -> AnyTool:
    @tool(name=name)
    async def call(prompt: str) -> str:
        return prompt

    async def stop_remote(key: str) -> None:
        stopped.append(key)
        if error is not None:
            raise error

    return replace(call, kind="child", stop_remote=stop_remote)


def conversation(*calls: tuple[str, str, CallStatus]) -> tuple[Message, ...]:
    asked = tuple(ToolCall(call_id=call_id, name=name, arguments="{}") for call_id, name, _ in calls)
    results = [ToolResult(call_id=call_id, name=name, content="", status=status) for call_id, name, status in calls]
    return (UserMessage(text="go"), AssistantMessage(text="", calls=asked), *results)


def agent(*tools: ToolLike, name: str = "chief") -> Agent:
    return Agent(ScriptedModel("done"), name=name, tools=tools)


async def test_the_unfinished_calls_of_the_last_round_are_stopped_by_their_keys() -> None:
    stopped: list[str] = []
    over: list[tuple[str, str, CallStatus]] = [("c2", "far", "completed"), ("c4", "no such tool", "unknown")]
    said = conversation(("c1", "far", "unknown"), ("c3", "far", "not_started"), *over)
    assert await agent(elsewhere(stopped)).stop_left_behind(AgentResult("", said, id="t:chief")) == ()
    assert sorted(stopped) == ["t:chief:c1", "t:chief:c3"]
    done = AgentResult("bye", (*conversation(("c1", "far", "unknown")), AssistantMessage(text="bye")), id="t")
    assert await agent(elsewhere(stopped)).stop_left_behind(done) == ()
    assert len(stopped) == 2, "that round is over: nothing in it runs again"


async def test_what_a_sub_agent_has_left_is_found_too() -> None:
    stopped: list[str] = []
    clerk = agent(elsewhere(stopped), name="clerk")
    inner = AgentResult("", conversation(("c1", "far", "unknown")))
    left = AgentResult("", conversation(("c7", "clerk", "interrupted")), kept={"c7": inner}, id="t:chief")
    assert await agent(clerk).stop_left_behind(left) == ()
    assert stopped == ["t:chief:c7:c1"]


async def test_what_cannot_be_stopped_is_a_warning_and_holds_up_nobody_else() -> None:
    stopped: list[str] = []
    tools = elsewhere(stopped, "gone", OSError("no route")), elsewhere(stopped)
    said = conversation(("c1", "gone", "unknown"), ("c2", "far", "unknown"))
    (warning,) = await agent(*tools).stop_left_behind(AgentResult("", said, id="t"))
    assert "gone on another machine may go on" in warning
    assert "no route" in warning
    assert sorted(stopped) == ["t:c1", "t:c2"]
