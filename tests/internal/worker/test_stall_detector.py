"""The beat of an event loop: late only when the loop has stood still, and then whoever asked is told."""

import asyncio
import time

from safepoint.worker.stop_reader import BEAT_SECONDS, STALL_SECONDS, StallDetector
from tests.kit.waiting import eventually


async def test_a_pulse_that_has_not_begun_or_has_ended_is_never_late() -> None:
    pulse, began = StallDetector(), time.monotonic()
    assert (pulse.stalled_for, pulse.stalled_since(began)) == (0.0, False)
    pulse.start()
    pulse.stop()
    time.sleep(BEAT_SECONDS + 2 * STALL_SECONDS)  # real time: the loop stands still
    assert (pulse.stalled_for, pulse.stalled_since(began)) == (0.0, False)


async def test_a_loop_that_has_stood_still_is_late_before_and_after_its_next_beat_and_says_so_once() -> None:
    pulse, told = StallDetector(), list[float]()
    pulse.start()
    forget = pulse.on_stall(lambda: told.append(time.monotonic()))
    began = time.monotonic()
    assert not pulse.stalled_since(began)
    time.sleep(BEAT_SECONDS + 2 * STALL_SECONDS)  # real time: the loop stands still
    assert pulse.stalled_for > STALL_SECONDS
    assert pulse.stalled_since(began)

    async def heard() -> bool:
        return bool(told)

    await eventually(heard)
    assert pulse.stalled_for == 0.0
    assert pulse.stalled_since(began)
    await asyncio.sleep(0.01)  # real time: after the late beat
    assert not pulse.stalled_since(time.monotonic())
    assert len(told) == 1
    forget()
    pulse.stop()
