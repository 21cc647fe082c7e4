"""Owns the tests that look inside, beside those of `tests/run/owned/test_threads.py`.

Functions in threads: looked after together, less and less often, and ended with the leaf they belong to.
"""

import threading
from typing import Any

from safepoint.run.interrupt import InterruptibleCall
from safepoint.run.owned.threads import FIRST_SECONDS, LAST_SECONDS, Sampler, ThreadWork
from tests.kit.waiting import wait_until


class Nobody:
    """An owner with nothing to end."""

    ends_connections = True
    has_programs = False

    def end_programs(self) -> None:
        pass


def test_a_function_that_does_not_react_is_looked_at_less_and_less_often():
    let_go, looks = threading.Event(), []
    work = ThreadWork(InterruptibleCall(lambda: let_go.wait(30)), Nobody())
    sampler = Sampler()

    class Counted(ThreadWork[object]):
        def check(self, frames: Any) -> bool:
            looks.append(self.pause)
            return super().check(frames) and len(looks) < 12

    counted = Counted(work.call, Nobody())
    thread = threading.Thread(target=counted.run)
    thread.start()
    sampler.add(counted)
    wait_until(lambda: len(looks) >= 12)
    let_go.set()
    thread.join(30)
    assert looks[0] == FIRST_SECONDS
    assert looks == sorted(looks)
    assert looks[-1] == LAST_SECONDS
    wait_until(lambda: not sampler._running)


def test_looking_goes_on_when_a_look_fails(caplog):
    looks: list[int] = []

    class Broken(ThreadWork[object]):
        def check(self, frames: Any) -> bool:
            looks.append(1)
            if len(looks) == 1:
                raise ValueError("broken")
            return False

    sampler = Sampler()
    sampler.add(Broken(InterruptibleCall(int), Nobody()))
    wait_until(lambda: len(looks) == 2)
    assert "it will be checked again" in caplog.text
