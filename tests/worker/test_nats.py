"""Owns the tests of the way to a NATS server: where it is, who is let in, and what is said if nobody is."""

import pickle
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from nkeys import PREFIX_BYTE_USER, encode_seed, from_seed

from safepoint.errors import UsageError
from safepoint.worker import BrokerError, NatsBroker
from tests.kit.nats import free_port, nats_server, shared_url
from tests.kit.workers import linked, nats


async def test_a_broker_can_be_sent_to_another_process():
    broker = nats(token="secret")
    assert pickle.loads(pickle.dumps(broker)) == broker


def test_nothing_secret_is_shown():
    shown = repr(NatsBroker(password="pass-word", token="to-ken"))
    assert "pass-word" not in shown
    assert "to-ken" not in shown


@pytest.mark.parametrize("namespace", ["", "two words", "a.b", "*", "ä", "a-b"])
def test_a_namespace_is_one_plain_word(namespace: str):
    with pytest.raises(UsageError, match="namespace"):
        NatsBroker(namespace=namespace)


def test_a_lease_is_a_number_of_seconds():
    with pytest.raises(UsageError, match="lease"):
        NatsBroker(lease=-1)


async def test_a_server_that_is_not_there_is_named():
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=url):
        await NatsBroker(url).connect("test")


async def test_a_server_without_jetstream_is_told_apart(tmp_path: Path):
    from tests.kit.nats import server_binary

    port = free_port()
    process = subprocess.Popen([server_binary(), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while True:
            with pytest.raises(BrokerError) as told:
                await NatsBroker(f"nats://127.0.0.1:{port}").connect("test")
            if "cannot connect" not in str(told.value) or time.monotonic() > until:
                break
        assert "-js" in str(told.value)
    finally:
        process.kill()
        process.wait(20)


async def test_several_addresses_are_tried_until_one_answers():
    nobody = f"nats://127.0.0.1:{free_port()}"
    broker = NatsBroker([nobody, shared_url()], namespace="several")
    async with linked(broker) as connection:
        assert await connection.last("log", ("s",)) is None


async def test_two_namespaces_on_one_server_do_not_meet():
    async with linked(nats()) as one, linked(nats()) as two:
        await one.append("log", ("s",), b"mine")
        assert await two.last("log", ("s",)) is None
        assert await two.keys("log") == []


async def test_streams_that_an_operator_must_make_are_not_made_but_missed():
    broker = nats()
    strict = replace(broker, create=False)
    with pytest.raises(BrokerError, match=f"no stream {broker.namespace}-log"):
        await strict.connect("test")
    async with linked(broker), linked(strict) as connection:
        assert await connection.append("log", ("s",), b"kept")


async def test_user_and_password_open_the_door_and_wrong_ones_do_not():
    with nats_server(config='authorization { user: worker, password: "right" }') as server:
        async with linked(NatsBroker(server.url, user="worker", password="right")) as connection:
            assert await connection.keys("log") == []
        with pytest.raises(BrokerError, match=r"(?i)authorization|reset"):
            await NatsBroker(server.url, user="worker", password="wrong").connect("test")


async def test_a_token_opens_the_door():
    with nats_server(config='authorization { token: "sesame" }') as server:
        async with linked(NatsBroker(server.url, token="sesame")) as connection:
            assert await connection.keys("log") == []
        with pytest.raises(BrokerError):
            await NatsBroker(server.url).connect("test")


async def test_an_nkey_in_a_file_opens_the_door(tmp_path: Path):
    seed = encode_seed(bytes(range(32)), PREFIX_BYTE_USER)
    public = from_seed(seed)
    (tmp_path / "seed").write_bytes(bytes(seed))
    config = f"authorization {{ users: [ {{ nkey: {public.public_key.decode()} }} ] }}"
    with nats_server(config=config) as server:
        async with linked(NatsBroker(server.url, nkey=str(tmp_path / "seed"))) as connection:
            assert await connection.keys("log") == []


async def test_tls_is_spoken_with_the_authority_and_the_certificate_given(tmp_path: Path):
    made = _certificate(tmp_path)
    config = f'tls {{ cert_file: "{made}.crt", key_file: "{made}.key", ca_file: "{made}.crt", verify: true }}'
    with nats_server(config=config) as server:
        url = server.url.replace("nats://", "tls://").replace("127.0.0.1", "localhost")
        broker = NatsBroker(url, ca=f"{made}.crt", cert=f"{made}.crt", key=f"{made}.key")
        async with linked(broker) as connection:
            assert await connection.keys("log") == []
        with pytest.raises(BrokerError):
            await NatsBroker(url, ca=f"{made}.crt").connect("test")


def _certificate(folder: Path) -> Path:
    """A certificate that signs itself, for this machine."""
    made = folder / "tls"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", f"{made}.key", "-out", f"{made}.crt", "-days", "2"]
    subprocess.run([*new, *subject, *files], check=True, capture_output=True, timeout=60)
    return made
