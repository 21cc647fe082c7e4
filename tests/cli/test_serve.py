"""Owns the tests of `safepoint serve` over workers: what it serves, what it refuses, and what outlives it."""

import asyncio
import signal
import uuid

import pytest

from safepoint.cli.main import main
from tests.kit.nats import free_port, shared_url
from tests.kit.server_process import ServerProcess
from tests.kit.worker_process import worker_process
from tests.kit.workers import SECONDS, hosting, until_kind
from tests.worker.cast import TARGET


def test_agents_and_files_belong_to_the_workers(capsys: pytest.CaptureFixture[str]):
    for more in (["some:agent"], ["--db", "chat.db"]):
        assert main(["serve", "--nats", shared_url(), "--port", "0", *more]) == 2
        assert "leave out AGENT and --db" in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_a_3_before_anybody_comes(capsys: pytest.CaptureFixture[str]):
    url = f"nats://127.0.0.1:{free_port()}"
    assert main(["serve", "--nats", url, "--port", "0"]) == 3
    told = capsys.readouterr().err
    assert url in told
    assert "is a server running there?" in told


async def test_a_turn_runs_on_a_worker_and_goes_on_when_its_server_ends():
    from safepoint.worker import NatsBroker

    namespace = f"t{uuid.uuid4().hex[:10]}"
    broker = NatsBroker(shared_url(), namespace=namespace, lease=2.0)
    options = ("--lease", "2", "--grace", "1", "--within", "0.1")
    async with worker_process(shared_url(), namespace, *options, agent=TARGET), hosting(broker) as host:

        def served() -> str:
            over = ("--nats", shared_url(), "--namespace", namespace, "--lease", "2")
            with ServerProcess(*over, agent=None) as child:
                child.session("s")
                child.send("talk", "t", "s")
                child.until("text_streamed", "s")
                child.process.send_signal(signal.SIGTERM)
                child.process.wait(SECONDS)
                assert child.process.stdout is not None
                return child.process.stdout.read()

        told = await asyncio.to_thread(served)
        assert "Sessions run on the workers at" in told
        assert "stopped: everything is written" in told
        assert (await host.turn("s", "t")).status == "running"
        ack = await host.stop("s", "t")
        assert (ack.status, ack.level) == ("accepted", "delivered")
        await until_kind(host, "s", "turn_ended")
