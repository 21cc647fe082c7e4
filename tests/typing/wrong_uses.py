"""Owns uses that type checkers must refuse.

Each mistake is marked for mypy and for pyright, and both report a mark that marks no mistake any more.
"""

from safepoint import Agent, Flow, LocalHost, Session, StopAt, tool
from safepoint.events import Event
from safepoint.models import ScriptedModel
from safepoint.run import Context, leaf


@tool
def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


async def work(ctx: Context, value: int) -> str:
    return str(value)


def a_tool_is_called_as_it_is_declared() -> None:
    add("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add(1, q=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    text: str = add(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(text)


def an_agent_takes_a_model_and_tools() -> None:
    Agent("gpt-5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(ScriptedModel("hi"), tools=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent(ScriptedModel("hi"), tools=["search"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def a_leaf_takes_what_its_work_takes(ctx: Context) -> None:
    await leaf(ctx, work, "1")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    number: int = await leaf(ctx, work, 1)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(number)


def a_stop_takes_a_point(agent: Agent) -> None:
    agent.run("go").stop("why")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.run("go").stop(StopAt.NOW, "tree")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_flow_leads_from_nodes_to_nodes_and_ends(flow: Flow[list[str], None]) -> None:
    flow.route("search", found=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    flow.node(timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    flow.start({"no": "list"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_policy_has_its_words() -> None:
    tool(on_abort="sometimes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def a_session_takes_a_store(agent: Agent) -> None:
    Session.open("s", agent=agent, store="chat.db")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LocalHost(agent, "chat.db")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def an_event_has_the_fields_of_its_kind(event: Event) -> str:
    if event.kind == "text_streamed":
        return event.call_id  # type: ignore[attr-defined, no-any-return]  # pyright: ignore[reportAttributeAccessIssue]
    return event.text  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
