"""Owns the tests of a preempt and its answer."""

import asyncio
import math
import threading

import pytest

from safepoint.run import StopAt
from safepoint.turns import Preempt, PreemptAck, Pushed
from tests.conftest import counts


@pytest.mark.parametrize(
    "options",
    [
        {"at": "now"},
        {"at": StopAt.TURN_END},
        {"at": StopAt.NOW, "within": 0},
        {"at": StopAt.NOW, "within": -1},
        {"at": StopAt.NOW, "within": math.nan},
        {"at": StopAt.NOW, "delay": -1},
        {"at": StopAt.NOW, "delay": math.nan},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_when_it_is_written(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Preempt(**options)  # type: ignore[arg-type]


def test_every_other_point_can_be_asked_for() -> None:
    for at in set(StopAt) - {StopAt.TURN_END}:
        assert Preempt(at, within=1.0, delay=0.5).at is at


async def test_the_answer_comes_to_all_who_wait_and_to_those_who_come_later() -> None:
    ack = PreemptAck()

    async def wait() -> str:
        return await ack

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert (ack.status, repr(ack)) == (None, "PreemptAck(not decided yet)")
        ack.decide("submitted")
    assert [task.result() for task in waiting] == ["submitted"] * 3
    assert (await ack, ack.status, repr(ack)) == ("submitted", "submitted", "PreemptAck(submitted)")


async def test_whoever_stops_waiting_takes_the_answer_from_nobody() -> None:
    ack = PreemptAck()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await ack
    ack.decide("turn_over")
    assert await ack == "turn_over"


async def test_the_first_word_counts() -> None:
    ack = PreemptAck()
    ack.decide("turn_over")
    ack.decide("submitted")
    assert await ack == "turn_over"


def test_two_threads_that_decide_at_once_do_not_break_each_other() -> None:
    broken: list[BaseException] = []

    def decide(ack: PreemptAck, start: threading.Barrier) -> None:
        start.wait()
        try:
            ack.decide("turn_over")
        except BaseException as error:
            broken.append(error)

    for _ in range(counts(300, 20_000)):
        ack, start = PreemptAck(), threading.Barrier(2)
        threads = [threading.Thread(target=decide, args=(ack, start)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ack.status == "turn_over"
    assert broken == []


def test_a_push_reads_as_its_acceptance() -> None:
    assert Pushed(True)
    assert not Pushed(False, why="too late")
