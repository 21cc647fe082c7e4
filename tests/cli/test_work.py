"""Owns the tests of `safepoint worker` and `safepoint workers`, in processes that are started and ended as usual."""

import asyncio
import signal
import socket
import subprocess
import sys
import urllib.request
import uuid

import pytest

from safepoint.cli.main import main
from safepoint.worker import NatsBroker
from tests.kit.nats import free_port, shared_url
from tests.kit.worker_process import ROOT, worker_process
from tests.kit.workers import SECONDS, ends, hosting, linked, logged, until_kind
from tests.worker.cast import TARGET

QUICK = ("--lease", "2", "--grace", "0.5", "--within", "0.2")


@pytest.fixture
def broker() -> NatsBroker:
    return NatsBroker(shared_url(), namespace=f"t{uuid.uuid4().hex[:10]}", lease=2.0)


async def test_workers_are_listed_with_load_agents_and_version(broker: NatsBroker, capsys: pytest.CaptureFixture[str]):
    where = ["--nats", shared_url(), "--namespace", broker.namespace]
    assert await asyncio.to_thread(main, ["workers", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    async with worker_process(shared_url(), broker.namespace, *QUICK, "--concurrency", "3", agent=TARGET) as worker:
        assert await asyncio.to_thread(main, ["workers", *where]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["worker", "agents", "load", "version"]
        assert row.split()[:3] == [worker.name, "actor", "0/3"]
        assert "process" in row
        assert await worker.drain() == 0
    assert await asyncio.to_thread(main, ["workers", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


async def test_a_worker_that_is_told_to_go_gives_its_turn_back(broker: NatsBroker):
    async with hosting(broker) as host, linked(broker) as link:
        async with worker_process(shared_url(), broker.namespace, *QUICK, agent=TARGET) as worker:
            await host.create("s")
            await host.send("s", "talk", turn_id="t")
            await until_kind(host, "s", "text_streamed")
            assert await worker.drain() == 0
        assert ends(await logged(link, "s"))["t"].reason.kind == "lease_lost"
        assert await link.pending_sessions() == {"s"}


async def test_a_worker_whose_only_event_loop_is_blocked_ends_all_the_same(broker: NatsBroker):
    options = ("--isolation", "task", *QUICK)
    async with hosting(broker) as host:
        async with worker_process(shared_url(), broker.namespace, *options, agent=TARGET) as worker:
            await host.create("s")
            await host.send("s", "block", turn_id="t")
            await until_kind(host, "s", "progress_made")
            await asyncio.sleep(0.3)  # real time: from then on its loop is blocked
            worker._process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(SECONDS):
                assert await worker._process.wait() == 1


async def test_what_a_worker_counts_can_be_scraped(broker: NatsBroker):
    port = free_port()
    options = (*QUICK, "--metrics", str(port))
    async with hosting(broker) as host, worker_process(shared_url(), broker.namespace, *options, agent=TARGET):
        await host.create("s")
        await host.send("s", "hello", turn_id="t")
        await until_kind(host, "s", "turn_ended")

        def scrape() -> str:
            open_plainly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
            with open_plainly(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        told = await asyncio.to_thread(scrape)
        assert "safepoint_worker_taken_total 1.0" in told
        assert "# HELP safepoint_worker_killed_total Processes ended because a turn did not stop" in told


def test_a_port_that_is_taken_is_a_2(capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = ["--nats", shared_url(), "--metrics", str(taken.getsockname()[1])]
        assert main(["worker", TARGET, *arguments]) == 2
    assert "metrics" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["no_such_module:agent"], 2, "there is no module 'no_such_module'"),
        ([TARGET, "--concurrency", "0"], 2, "at least 1"),
        ([TARGET, "--attempts", "0"], 2, "at least 1"),
        ([TARGET, "--nats", "nats://127.0.0.1:9"], 3, "cannot connect to NATS at nats://127.0.0.1:9"),
    ],
)
def test_what_makes_no_worker_is_said_at_once(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["worker", *arguments]) == code
    assert told in capsys.readouterr().err


def test_a_broker_that_is_not_there_has_no_workers(capsys: pytest.CaptureFixture[str]):
    assert main(["workers", "--nats", "nats://127.0.0.1:9"]) == 3
    assert "cannot connect" in capsys.readouterr().err


async def test_a_worker_with_another_lease_than_the_one_in_force_is_a_3(
    broker: NatsBroker,
):
    async with worker_process(shared_url(), broker.namespace, *QUICK, agent=TARGET) as worker:
        arguments = ["--nats", shared_url(), "--namespace", broker.namespace, "--lease", "5"]
        command = [sys.executable, "-m", "safepoint", "worker", TARGET, *arguments]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=subprocess.PIPE)
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
    assert process.returncode == 3
    told = errors.decode()
    assert "the lease in force for agent 'actor' is 2 s, and this worker was started with 5 s" in told
    assert worker.name in told
    assert "Traceback" not in told
