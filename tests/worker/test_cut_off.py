"""A tool call that a hand-over to another worker has cut off runs again, or not, as its tool says."""

import pytest

from tests.kit.workers import New, each_broker, hosting, working
from tests.session.cut_off import WORDS, CutOff


@each_broker
@pytest.mark.parametrize(("effects", "answer", "again"), WORDS)
async def test_a_call_that_a_hand_over_has_cut_off(
    new: New, effects: str | None, answer: str | None, again: bool
) -> None:
    broker, call = new(), CutOff(effects, answer)
    async with hosting(broker) as host:
        async with working(call.agent, broker):
            await host.create("s")
            await host.send("s", "go", turn_id="t")
            await call.begun.wait()
        async with working(call.agent, broker):
            await call.check(host, again)
