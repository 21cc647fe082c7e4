"""Owns the tests of a worker's processes: one that ends before it is ready is the worker's failure, not its order's."""

import asyncio
import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from safepoint.process.child import ChildProcess, start_python
from safepoint.worker import NatsBroker, Worker, WorkerTimings
from safepoint.worker.executors import PAUSES, CannotStart, ProcessExecutor, ProcessPool
from tests.kit.nats import free_port
from tests.kit.waiting import eventually
from tests.kit.worker_process import ROOT
from tests.kit.workers import SECONDS, ends, hosting, linked, logged, nats, until_kind, working
from tests.worker.breaking import BROKEN, TARGET


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that breaks the agent while it exists. It does not exist yet: the worker can start."""
    path = tmp_path / "broken"
    monkeypatch.setenv(BROKEN, str(path))
    return path


def pauses(*seconds: float) -> WorkerTimings:
    return WorkerTimings(start_pauses=seconds)


async def test_a_worker_whose_agent_cannot_be_loaded_any_more_leaves_and_its_orders_are_not_counted(
    broken: Path, caplog: pytest.LogCaptureFixture
):
    broker = nats(lease=30.0)
    caplog.set_level(logging.INFO)
    async with hosting(broker) as host, linked(broker) as connection:
        worker = Worker(TARGET, broker, attempts=1, idle_for=0.05, timings=pauses(0.05))
        await worker.start()
        await host.create("s")
        broken.touch()
        await host.send("s", "hello", turn_id="t1")
        with pytest.raises(CannotStart, match=r"2 processes in a row .*half a deploy"):
            async with asyncio.timeout(SECONDS):
                await worker.wait()
        assert (worker.stats.failed_starts, worker.stats.dead) == (1, 0)
        assert "no orders for 0.05 s" in caplog.text
        assert "gives its orders back" in caplog.text
        assert await connection.pending_sessions() == {"s"}
        broken.unlink()
        async with working(TARGET, broker, attempts=1) as good:  # at the second attempt it would give up
            await until_kind(host, "s", "turn_ended", turn_id="t1")
            assert ends(await logged(connection, "s"))["t1"].status == "completed"
            assert (good.stats.dead, good.stats.redelivered) == (0, 0)


async def test_a_worker_whose_agent_is_whole_again_goes_on(broken: Path):
    broker, timings = nats(lease=30.0), pauses(0.05, 0.5, 30.0)
    async with hosting(broker) as host, working(TARGET, broker, attempts=1, timings=timings) as worker:
        await host.create("s")
        broken.touch()
        await host.send("s", "hello", turn_id="t1")

        async def noticed() -> bool:
            return worker.stats.failed_starts > 0

        await eventually(noticed)
        broken.unlink()
        ended = await until_kind(host, "s", "turn_ended", turn_id="t1")
        assert ended.event.outcome.status == "completed"  # type: ignore[union-attr]
        assert worker.stats.dead == 0


async def test_a_broken_worker_leaves_all_messages_to_one_that_can_work(broken: Path):
    broker = nats(lease=30.0)
    async with hosting(broker) as host, linked(broker) as connection:
        bad = Worker(TARGET, broker, attempts=2, concurrency=4, timings=pauses(0.05))
        await bad.start()
        broken.touch()
        for number in range(12):
            await host.create(f"s{number}")
            await host.send(f"s{number}", "hello", turn_id="t")
        with pytest.raises(CannotStart):
            await bad.wait()
        broken.unlink()
        async with working(TARGET, broker, attempts=2) as good:

            async def all_done() -> bool:
                return not await connection.pending_sessions()

            await eventually(all_done)
            for number in range(12):
                assert ends(await logged(connection, f"s{number}"))["t"].status == "completed"
            assert good.stats.dead == bad.stats.dead == 0


async def test_a_worker_that_is_told_to_go_while_it_cannot_start_processes_goes_at_once(broken: Path):
    broker = nats(lease=30.0)
    async with hosting(broker) as host, working(TARGET, broker, timings=pauses(60.0)) as worker:
        await host.create("s")
        broken.touch()
        await host.send("s", "hello")

        async def noticed() -> bool:
            return worker.stats.failed_starts > 0

        await eventually(noticed)
        async with asyncio.timeout(SECONDS):
            await worker.close()


async def test_a_process_that_is_ended_while_it_starts_says_nothing_about_the_worker():
    broker = nats(lease=30.0)
    async with asyncio.TaskGroup() as group:
        processes = ProcessPool("w", lambda: ProcessExecutor(broker, [TARGET], "w"))
        executor = processes.take(group)
        executor.kill()
        assert not await executor.wait_ready(SECONDS)
        processes.give_back(executor)
        assert processes.works


async def test_a_worker_that_cannot_work_is_a_2_on_the_command_line(broken: Path):
    broker = nats(lease=5.0)
    words = ["worker", TARGET, "--nats", str(broker.url), "--namespace", broker.namespace, "--lease", "5"]
    start = "import sys; from safepoint.cli.main import main;"
    async with hosting(broker) as host:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", f"{start} sys.exit(main({words!r}))"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(SECONDS):
                assert b"takes orders" in await process.stdout.readline()
            await host.create("s")
            broken.touch()
            await host.send("s", "hello")
            async with asyncio.timeout(sum(PAUSES) + 3 * SECONDS):  # the pauses, and a process after each
                _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
    assert process.returncode == 2
    told = errors.decode()
    assert f"cannot work: {len(PAUSES) + 1} processes in a row" in told
    assert "Traceback" not in told.split("cannot work")[-1]


async def test_a_process_that_does_not_reach_the_broker_is_tried_again_for_as_long_as_it_takes():
    port, tries = free_port(), 0
    good = nats()

    def start() -> ProcessExecutor:
        nonlocal tries
        tries += 1
        broker = NatsBroker(f"nats://127.0.0.1:{port}") if tries < 4 else good
        return ProcessExecutor(broker, [TARGET], "w")

    async with asyncio.TaskGroup() as group:
        processes = ProcessPool("w", start, pauses=(0.01,))
        executor = processes.take(group)
        assert not await executor.wait_ready(SECONDS)
        await executor.exited.wait()
        assert executor.broker_missing
        processes.give_back(executor)
        assert not processes.works
        await processes.recover(group, asyncio.Event())
        assert (processes.works, tries) == (True, 4)
        processes.close()


async def test_where_there_is_no_room_for_a_process_the_order_goes_back_and_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
):
    starts = 0

    def start(module: str) -> tuple[ChildProcess, socket.socket]:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise BlockingIOError("no more processes")
        return start_python(module)

    monkeypatch.setattr("safepoint.worker.executors.start_python", start)
    broker, timings = nats(lease=30.0), pauses(0.01, 0.01, 0.01)
    async with hosting(broker) as host, working(TARGET, broker, attempts=1, timings=timings) as worker:
        await host.create("s")
        await host.send("s", "hello", turn_id="t1")
        ended = await until_kind(host, "s", "turn_ended", turn_id="t1")
        assert ended.event.outcome.status == "completed"  # type: ignore[union-attr]
        assert (worker.stats.dead, starts) == (0, 3)
