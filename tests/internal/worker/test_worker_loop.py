"""Owns the tests of where orders are worked on: asked from any thread, also while its event loop does not move."""

import asyncio
import threading
import time

from safepoint.worker import MemoryBroker
from safepoint.worker.protocol import Assignment, CloseCall, SendCall, StopCall, to_json
from safepoint.worker.worker_loop import WorkerLoop
from tests.kit.agents import talker
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, ends, linked, logged


async def test_work_that_is_begun_in_another_thread_runs_in_the_loop_of_the_workshop():
    broker, agent = MemoryBroker(), talker("one")
    worker_loop = WorkerLoop(broker, {agent.name: agent}, "w")
    await worker_loop.open()
    async with linked(broker) as connection:
        await connection.append("inbox", ("s",), to_json(SendCall("t", "hello")))
        told: list[str | None] = []

        def work() -> str:
            runner = worker_loop.create_runner(Assignment("s", agent.name, "w", idle_for=0.01), told.append)
            return worker_loop.run(runner).result(SECONDS)

        assert await asyncio.to_thread(work) == "idle"
        assert ends(await logged(connection, "s"))["t"].status == "completed"
        assert told == ["t", None]
    await worker_loop.close()


async def test_a_loop_that_moves_is_not_busy_and_one_that_is_blocked_is():
    worker_loop = WorkerLoop(MemoryBroker(), {}, "w")
    await worker_loop.open()
    assert worker_loop.blocked_for == 0.0
    seen: list[float] = []
    watching, enough = threading.Event(), threading.Event()

    def watch() -> None:
        watching.set()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not (seen and seen[-1] > 0.3):
            seen.append(worker_loop.blocked_for)
            time.sleep(0.01)  # real time: that is what is measured
        enough.set()

    thread = threading.Thread(target=watch)
    thread.start()
    watching.wait(SECONDS)
    assert enough.wait(SECONDS)  # this blocks the loop
    thread.join(SECONDS)
    assert seen[0] == 0.0
    assert seen[-1] > 0.3

    async def moves() -> bool:
        return worker_loop.blocked_for == 0.0

    await eventually(moves)
    await worker_loop.close()


async def test_a_stop_is_answered_while_the_loop_is_blocked_and_the_rest_when_it_moves():
    broker, agent = MemoryBroker(), talker()
    worker_loop = WorkerLoop(broker, {agent.name: agent}, "w")
    await worker_loop.open()
    runner = worker_loop.create_runner(Assignment("s", agent.name, "w"), print)
    stopped, answers = threading.Event(), list[str]()

    def ask() -> None:
        answers.append(runner.stop(StopCall("t")).status)
        stopped.set()
        answers.append(worker_loop.request(runner, CloseCall("enough")).result(SECONDS).error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert stopped.wait(SECONDS)  # this blocks the loop
    await asyncio.to_thread(thread.join, SECONDS)
    assert answers == ["unknown", "opening"]
    await worker_loop.close()


async def test_nobody_is_called_in_a_loop_that_is_closed():
    made: list[WorkerLoop] = []

    async def make() -> None:
        made.append(WorkerLoop(MemoryBroker(), {}, "w"))

    await asyncio.to_thread(asyncio.run, make())
    heard: list[str] = []
    made[0].post(heard.append, "nothing")
    assert heard == []
