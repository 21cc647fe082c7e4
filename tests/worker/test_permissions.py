"""Servers and workers get along with the rights that docs/workers.md gives them, over TLS, with NKeys."""

import os
import shutil
import subprocess
from pathlib import Path

import nkeys
import pytest

from safepoint.events import TextStreamed
from safepoint.worker import BrokerError, NatsBroker, RemoteHost, Worker
from tests.kit.nats import nats_server, new_namespace
from tests.worker.agents import helper

STREAMS = ("log", "inbox", "stops", "sessions", "workers", "dead", "orders")
READS = [
    *(f"$JS.API.STREAM.{ask}.{{ns}}-{stream}" for ask in ("INFO", "MSG.GET") for stream in STREAMS),
    *("$JS.API.DIRECT.GET.{ns}-log", "{ns}.nobody"),
]
SERVER = [
    *("{ns}.inbox.>", "{ns}.stops.>", "{ns}.sessions.>", "{ns}.orders.>", "{ns}.say.>", "{ns}.call.>", "_INBOX.>"),
    *READS,
]
WORKER = [
    *("{ns}.log.>", "{ns}.inbox.>", "{ns}.workers.>", "{ns}.dead.>", "{ns}.orders.>", "{ns}.say.>", "_INBOX.>"),
    *READS,
    *(f"$JS.API.CONSUMER.{ask}.{{ns}}-orders.>" for ask in ("DURABLE.CREATE", "CREATE", "INFO")),
    *("$JS.API.CONSUMER.MSG.NEXT.{ns}-orders.>", "$JS.ACK.{ns}-orders.>"),
    *("$JS.API.STREAM.PURGE.{ns}-inbox", "$JS.API.STREAM.PURGE.{ns}-workers"),
]
HEARS_SERVER = ["{ns}.say.news.>", "{ns}.call.readers.>", "_INBOX.>"]
HEARS_WORKER = ["{ns}.say.>", "{ns}.call.ctl.>", "_INBOX.>"]


def seed(folder: Path, name: str) -> tuple[str, str]:
    """A new NKey: the file of its seed, and its public half."""
    pair = nkeys.from_seed(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    path = folder / f"{name}.nk"
    path.write_bytes(pair.seed)
    return str(path), pair.public_key.decode()


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for loopback that signs itself."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    about = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-days", "2"]
    subprocess.run([*command, *about], check=True, capture_output=True, timeout=30)
    return str(cert), str(key)


def listed(subjects: list[str], namespace: str) -> str:
    return "[" + ", ".join(f'"{subject.format(ns=namespace)}"' for subject in subjects) + "]"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
async def test_servers_and_workers_need_no_more_rights_than_the_page_gives_them(tmp_path: Path) -> None:
    namespace = new_namespace()
    (operator, operator_key), (server, server_key), (worker, worker_key) = (
        seed(tmp_path, name) for name in ("operator", "server", "worker")
    )
    cert, key = certificate(tmp_path)

    def user(public: str, publish: list[str], subscribe: list[str]) -> str:
        rights = f"publish: {listed(publish, namespace)}, subscribe: {listed(subscribe, namespace)}"
        return f"{{ nkey: {public}, permissions: {{ {rights}, allow_responses: true }} }}"

    users = [f"{{ nkey: {operator_key} }}"]
    users += [user(server_key, SERVER, HEARS_SERVER), user(worker_key, WORKER, HEARS_WORKER)]
    config = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\nauthorization {{ users: [{", ".join(users)}] }}'
    with nats_server(config) as nats:
        url = f"tls://127.0.0.1:{nats.port}"
        with pytest.raises(BrokerError, match="cannot connect"):
            await NatsBroker(url, namespace, ca=cert).connect("a stranger")
        await (await NatsBroker(url, namespace, lease=2.0, ca=cert, nkey=operator).connect("operator")).close()
        ours = NatsBroker(url, namespace, lease=2.0, ca=cert, nkey=server, create=False)
        theirs = NatsBroker(url, namespace, lease=2.0, ca=cert, nkey=worker, create=False)
        host = RemoteHost(ours)
        async with Worker(helper, theirs, idle_for=0.05):
            await host.create("s")
            turn = await host.send("s", "talk")
            async for recorded in host.events("s"):
                if isinstance(recorded.event, TextStreamed):
                    break
            ack = await host.stop("s", turn.id)
            assert (ack.status, ack.level) == ("accepted", "delivered")
            await ack.settled(10)
            assert (await host.turn("s", turn.id)).status == "aborted"
            assert [one.agents for one in await host.workers()] == [("helper",)]
        await host.close()
