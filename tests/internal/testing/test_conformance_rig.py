"""The agents of the conformance suite do what they are told."""

import pytest

from safepoint.session import Session
from safepoint.testing.conformance.rig import Cast
from tests.kit.sessions import said, until


@pytest.mark.parametrize(
    ("text", "kind"),
    [("talk", "text_streamed"), ("wait", "answer_started"), ("tool", "tool_called"), ("ask", "question_asked")],
)
async def test_the_child_gets_where_it_is_told_to_and_stays_there(text: str, kind: str) -> None:
    async with Session.open("s", agent=Cast().agents["child"]) as session:
        turn = session.send(text)
        await until(session, lambda event: event.kind == kind)
        assert turn.status == "running"
        turn.stop()
        assert (await turn).status == "aborted"
        assert (await session.send("quick")).status == "completed"


async def test_the_parent_does_what_the_case_says() -> None:
    cast, driven = Cast(), list[str]()

    async def drive(ctx: object) -> None:
        driven.append("yes")

    cast.drive = drive
    async with Session.open("s", agent=cast.agents["parent"]) as session:
        assert (await session.send("go")).status == "completed"
        assert driven == ["yes"]
        assert said(session.messages)[-1] == "done"
