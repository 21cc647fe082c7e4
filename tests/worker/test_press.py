"""The second press, over workers: it reaches the turn, is kept with the stop, and follows a sub-agent elsewhere."""

import asyncio
import threading
from typing import Any

from safepoint import AbortReason
from safepoint.agent import tool
from safepoint.models.scripted import Call
from tests.kit.agents import talker
from tests.kit.workers import SECONDS, New, each_broker, hosting, until_kind, working
from tests.worker.test_remote_tool import parent_of, the_session


class Deaf:
    """A tool that is inside a library, in a thread of the worker, until it is let go."""

    def __init__(self) -> None:
        self.inside, self.let_go = threading.Event(), threading.Event()

        @tool(warn_after=1000)
        def deaf() -> str:
            self.inside.set()
            self.let_go.wait(SECONDS)
            return "too late"

        self.tool = deaf

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, SECONDS)


@each_broker
async def test_a_sub_agent_on_another_machine_leaves_what_the_parent_does_not_wait_for(new: New):
    deaf, broker = Deaf(), new()
    child = talker(["half ", Call("deaf")], "never", name="child", tools=[deaf.tool])
    async with working(child, broker, grace=60), hosting(broker) as host:
        run = parent_of(host).run("go")
        async with run:
            await deaf.begun()
            session = await the_session(host)
            run.stop(reason=AbortReason("user", "enough"))
            await until_kind(host, session, "stop_requested")
            assert not run.finished
            run.stop(abandon=0)
            async with asyncio.timeout(SECONDS):
                outcome: Any = await run
        ended = await until_kind(host, session, "turn_ended")
        left = ended.event.outcome.receipt.still_running  # type: ignore[union-attr]
        assert [entry.name for entry in left] == ["child/deaf"]
        (kept,) = outcome.partial.kept.values()
        assert "half" in "".join(getattr(message, "text", "") for message in kept.messages), "what it had is kept"
        assert outcome.receipt.warnings == ()
        deaf.let_go.set()
