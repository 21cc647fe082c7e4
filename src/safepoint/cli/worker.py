"""The commands `safepoint worker` and `safepoint workers`, and the options for the address of NATS."""

import argparse
import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from functools import partial

from ..errors import MissingExtra, UsageError
from ..process.termination import graceful_shutdown
from ..worker import NatsBroker, RemoteHost, Worker, WorkerInfo
from ..worker.worker_loop import SWITCH_SECONDS
from .style import bold, table

__all__ = ["NATS_URL", "broker_of", "broker_options", "list_workers", "work"]

NATS_URL = "nats://127.0.0.1:4222"
# The time for returning unfinished orders, after that for safe points and the grace for turns that ignore a stop.
GIVE_BACK_SECONDS = 5.0


def broker_options(command: argparse.ArgumentParser, *, by_default: str | None) -> None:
    """Add the options to a command.

    Args:
        command: The command.
        by_default: The address if none is given. None if the command does not use NATS by default.
    """
    default = os.environ.get("NATS_URL", by_default) if by_default else None
    group = command.add_argument_group("NATS")
    where = f"default {NATS_URL}, or NATS_URL" if by_default else "run sessions on workers there; several with commas"
    group.add_argument("--nats", metavar="URL", default=default, help=where)
    group.add_argument("--namespace", default="safepoint", metavar="WORD", help="default safepoint")
    lease = "seconds until a silent worker counts as dead; the same for all workers of an agent; default 10"
    group.add_argument("--lease", type=float, default=10.0, metavar="S", help=lease)
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="copies in a cluster; default 1")
    group.add_argument("--creds", metavar="FILE", help="a credentials file")
    group.add_argument("--nkey", metavar="FILE", help="an NKey seed file")
    group.add_argument("--tls-ca", metavar="FILE", help="the authority of the server's certificate")
    group.add_argument("--tls-cert", metavar="FILE", help="the certificate of this client")
    group.add_argument("--tls-key", metavar="FILE", help="the key of that certificate")
    group.add_argument("--no-create", action="store_true", help="do not create missing streams")


def broker_of(options: argparse.Namespace) -> NatsBroker:
    """The broker that the options describe.

    User, password and token are part of the address, or come from NATS_USER, NATS_PASSWORD and NATS_TOKEN.
    """
    return NatsBroker(
        options.nats.split(","),
        namespace=options.namespace,
        lease=options.lease,
        replicas=options.replicas,
        credentials=options.creds,
        nkey=options.nkey,
        user=os.environ.get("NATS_USER"),
        password=os.environ.get("NATS_PASSWORD"),
        token=os.environ.get("NATS_TOKEN"),
        ca=options.tls_ca,
        cert=options.tls_cert,
        key=options.tls_key,
        create=not options.no_create,
    )


def work(options: argparse.Namespace) -> int:
    """Run turns until SIGTERM or SIGINT, then hand open turns over to other workers. Returns the exit code."""
    sys.setswitchinterval(SWITCH_SECONDS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    async def run() -> None:
        worker = Worker(
            options.agents,
            broker_of(options),
            name=options.name,
            concurrency=options.concurrency,
            isolation=options.isolation,
            grace=options.grace,
            attempts=options.attempts,
        )
        if options.metrics is not None:
            _serve_metrics(worker, options.metrics)
        leaving = asyncio.Event()
        on_signal = partial(asyncio.get_running_loop().call_soon_threadsafe, leaving.set)
        limit = options.within + options.grace + GIVE_BACK_SECONDS
        await worker.start()
        with graceful_shutdown(on_signal, limit, f"worker {worker.name}"):
            status = f"takes orders at {options.nats}"
            print(
                f"{bold('Safepoint')} worker {worker.name} {status}. Ctrl-C hands them over to other workers.",
                flush=True,
            )
            async with asyncio.TaskGroup() as group:
                failure = group.create_task(_until_ended(worker, leaving))
                await leaving.wait()
                with suppress(Exception):  # the other task reports the same error
                    await worker.close(within=options.within)
            if (error := failure.result()) is not None:
                raise error

    asyncio.run(run())
    print("stopped: open turns are left to other workers", flush=True)
    return 0


async def _until_ended(worker: Worker, leaving: asyncio.Event) -> Exception | None:
    """Wait until the worker has ended, by itself or because it was closed. Returns the error that ended it, if any."""
    try:
        await worker.wait()
    except Exception as error:
        return error
    finally:
        leaving.set()
    return None


def _serve_metrics(worker: Worker, port: int) -> None:
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily
    except ImportError as error:
        raise MissingExtra("--metrics", "server", error) from error

    class Counters:
        def collect(self) -> list[CounterMetricFamily]:
            stats = vars(worker.stats)
            return [
                CounterMetricFamily(f"safepoint_worker_{name}", METRIC_HELP[name], value)
                for name, value in stats.items()
            ]

    registry = CollectorRegistry()
    registry.register(Counters())
    try:
        start_http_server(port, "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--metrics: cannot listen on 127.0.0.1:{port}: {error}") from error


METRIC_HELP = {
    "taken": "Orders taken",
    "redelivered": "Orders that another worker had held before",
    "fenced": "Sessions lost to another owner",
    "killed": "Processes ended because a turn did not stop",
    "dead": "Orders given up",
    "failed_starts": "Processes that ended before they were ready to work",
}


def list_workers(options: argparse.Namespace) -> int:
    """List the live workers. Returns the exit code."""

    async def found() -> list[WorkerInfo]:
        host = RemoteHost(broker_of(options))
        try:
            return await host.workers()
        finally:
            await host.close()

    workers = asyncio.run(found())
    head = [
        "worker",
        "agents",
        "load",
        "version",
        "isolation",
        "machine",
        "up",
        "redelivered",
        "fenced",
        "killed",
        "dead",
        "failed starts",
    ]
    table(head, [_row(one) for one in workers])
    return 0


def _row(one: WorkerInfo) -> list[object]:
    load = f"{one.live}/{one.concurrency}" + (" (leaving)" if one.draining else "")
    up = f"{max(time.time() - one.since, 0) / 60:.0f} min"
    counts = [one.redelivered, one.fenced, one.killed, one.dead, one.failed_starts]
    return [one.name, ", ".join(one.agents), load, one.version, one.isolation, f"{one.machine}/{one.pid}", up, *counts]
