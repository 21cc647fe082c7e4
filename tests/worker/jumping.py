"""Owns the agent of `toiling` in a process whose clock jumps, forwards and backwards, by an hour each second."""

import time

from safepoint.abort import clock
from tests.worker.toiling import WALL, agent

__all__ = ["agent"]

HOUR = 3600.0


def jumping() -> float:
    return WALL() + HOUR * (int(time.monotonic() * 2) % 3 - 1)


time.time = jumping
clock.SystemClock.time = staticmethod(jumping)
