"""A thread that is blocked in a connection is freed from it, and nobody else's connection is touched."""

import asyncio
import os
import select
import socket
import sqlite3
import ssl
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from safepoint.run import Context, Policy, detached
from tests.kit.certificates import self_signed
from tests.kit.leaves import Gate, stop
from tests.kit.programs import silent_server
from tests.kit.waiting import until

ENDLESS = "with recursive r(x) as (select 1 union all select x + 1 from r) select count(*) from r"


async def test_a_tool_that_reads_from_a_silent_server_ends_with_the_stop():
    with silent_server() as (url, taken):

        def tool(ctx: Context, value: object) -> bytes:
            data: bytes = urllib.request.urlopen(url).read()
            return data

        stopped = await stop(tool, lambda: taken)
    assert stopped.seconds < 1
    assert stopped.fate("tool") == "stopped"


async def test_a_tool_with_a_time_limit_on_its_socket_is_freed_too():
    with silent_server() as (url, taken):

        def tool(ctx: Context, value: object) -> bytes:
            data: bytes = urllib.request.urlopen(url, timeout=60).read()
            return data

        stopped = await stop(tool, lambda: taken)
    assert stopped.seconds < 1
    assert stopped.fate("tool") == "stopped"


async def test_half_an_answer_without_a_length_is_not_taken_for_the_whole():
    with silent_server() as (url, taken):
        written: list[bytes] = []

        def tool(ctx: Context, value: object) -> int:
            data = urllib.request.urlopen(url).read()
            written.append(data)
            return len(written)

        def answered() -> bool:
            if taken and not sent:
                taken[0].sendall(b"HTTP/1.0 200 OK\r\n\r\nhalf of it")
                sent.append(1)
            return bool(sent)

        sent: list[int] = []
        stopped = await stop(tool, answered)
    assert stopped.fate("tool") == "stopped"
    if sys.version_info >= (3, 12):  # on 3.11 the exception may come one line late; the value is dropped all the same
        assert written == []


async def test_a_tool_in_a_tls_handshake_is_freed():
    with silent_server() as (url, taken):
        port = int(url.rstrip("/").rpartition(":")[2])

        def tool(ctx: Context, value: object) -> None:
            context = ssl.create_default_context()
            with socket.create_connection(("127.0.0.1", port)) as plain:
                with context.wrap_socket(plain, server_hostname="localhost"):
                    pass

        stopped = await stop(tool, lambda: taken)
    assert stopped.seconds < 1
    assert stopped.fate("tool") == "stopped"


async def test_a_tool_that_is_freed_from_a_read_over_tls_never_reads_what_is_not_decrypted(tmp_path: Path):
    ciphers: list[object] = []
    open_end, ended = Gate(), threading.Event()
    server = self_signed(tmp_path)

    def serve() -> None:
        with server.wrap_socket(listener.accept()[0], server_side=True) as connection:
            connection.sendall(b"x")
            ended.wait(30)

    def tool(ctx: Context, value: object) -> None:
        trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        with (
            socket.create_connection(listener.getsockname()) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.recv(1)
            try:
                open_end.open()
                connection.recv(1)
            finally:
                ciphers.append(connection.cipher())  # None: from now on it hands out the bytes as they come

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            stopped = await stop(tool, open_end._event.is_set)
        finally:
            ended.set()
            thread.join(30)
    assert stopped.seconds < 2
    assert stopped.fate("tool") == "stopped"
    assert None not in ciphers
    assert len(ciphers) == 1


async def test_a_query_that_runs_for_ever_is_interrupted():
    gate = Gate()

    def tool(ctx: Context, value: object) -> None:
        with sqlite3.connect(":memory:") as database:
            gate.open()
            database.execute(ENDLESS).fetchall()

    stopped = await stop(tool, gate._event.is_set)
    assert stopped.seconds < 2
    assert stopped.fate("tool") == "stopped"


async def test_no_connection_is_begun_after_the_stop_until_the_tool_knows_of_it():
    with silent_server() as (url, taken):
        begun: list[int] = []

        def tool(ctx: Context, value: object) -> None:
            while True:
                begun.append(len(begun))
                try:
                    urllib.request.urlopen(url, timeout=60).read()
                except OSError:
                    pass  # a tool that tries again, whatever went wrong

        stopped = await stop(tool, lambda: taken)
        assert stopped.fate("tool") == "stopped"
        assert len(taken) == 1


async def test_a_policy_can_leave_connections_alone():
    with silent_server() as (url, taken):

        def tool(ctx: Context, value: object) -> None:
            urllib.request.urlopen(url).read()

        policy = Policy(connections="leave", abandon_after=0.3)
        stopped = await stop(tool, lambda: taken, policy)
        [entry] = stopped.entries("tool")
        assert entry.fate == "still_running"
        assert entry.where is not None
        assert __file__ in entry.where
        taken[0].close()


@pytest.mark.parametrize("wrapped", [False, True], ids=["as connected", "in another socket object, as by TLS"])
async def test_a_connection_of_the_application_is_left_alone(wrapped: bool):
    kept: list[socket.socket] = []
    with silent_server() as (url, taken):
        host, _, port = url.removeprefix("http://").strip("/").partition(":")

        def tool(ctx: Context, value: object) -> None:
            with detached():
                connection = socket.create_connection((host, int(port)))
            kept.append(socket.socket(fileno=connection.detach()) if wrapped else connection)
            kept[0].recv(1)

        stopped = await stop(tool, lambda: taken, Policy(abandon_after=0.3))
        assert stopped.fate("tool") == "still_running"
        taken[0].sendall(b"an answer, and more")
        await until(lambda: select.select(kept, [], [], 0)[0])  # the tool has taken the first byte
        assert kept[0].recv(100).endswith(b" answer, and more")
        kept[0].close()


async def test_a_query_of_a_neighbour_on_a_shared_connection_goes_on():
    database = sqlite3.connect(":memory:", check_same_thread=False)
    shared.append(database)
    gate, results = Gate(), []

    def neighbour() -> None:
        limited = ENDLESS.replace("from r)", "from r where x < 3000000)")
        results.append(shared[0].execute(limited).fetchone())

    def tool(ctx: Context, value: object) -> None:
        mine = shared[0]
        gate.open()
        while mine is shared[0]:
            time.sleep(0.01)  # real time: it has the connection, and does not use it

    other = threading.Thread(target=neighbour)
    other.start()
    stopped = await stop(tool, gate._event.is_set)
    other.join(60)
    assert stopped.fate("tool") == "stopped"
    assert results == [(3000000,)]
    shared.clear()
    database.close()


shared: list[sqlite3.Connection] = []


class Client:
    """Holds a socket beside a pipe for which it waits."""

    def __init__(self) -> None:
        self.sock, self.peer = socket.socketpair()
        self.reader, self.writer = os.pipe()

    def wait(self, gate: Gate) -> None:
        gate.open()
        select.select([self.reader], [], [], 30)


async def test_a_socket_beside_what_the_thread_waits_for_is_not_touched():
    client, gate = Client(), Gate()

    def tool(ctx: Context, value: object) -> None:
        client.wait(gate)

    await stop(tool, gate._event.is_set, Policy(abandon_after=0.3))
    client.peer.sendall(b"open")
    assert client.sock.recv(4) == b"open"
    os.write(client.writer, b"!")
    client.sock.close()
    client.peer.close()


@pytest.mark.parametrize("what", ["connection", "query", "loop"])
async def test_clean_up_that_the_interruption_has_reached_is_not_cut(what):
    cleaned, begun = [], Gate()
    with silent_server() as (url, _):

        def clean_up() -> None:
            if what == "connection":
                with pytest.raises(TimeoutError):
                    urllib.request.urlopen(url, timeout=0.5).read()
            elif what == "query":
                limited = ENDLESS.replace("from r)", "from r where x < 3000000)")
                with sqlite3.connect(":memory:") as database:
                    database.execute(limited).fetchall()
            else:
                asyncio.run(asyncio.sleep(0.5))  # real time: a clean-up that takes its time

        def tool(ctx: Context, value: object) -> None:
            begun.open()
            try:
                while True:
                    time.sleep(0.005)  # real time: a tool that has to be interrupted
            finally:
                clean_up()
                cleaned.append(1)

        stopped = await stop(tool, begun._event.is_set)
    assert cleaned == [1]
    assert stopped.fate("tool") == "stopped"


async def test_a_tool_that_waits_for_nothing_is_only_interrupted():
    gate = Gate()

    def tool(ctx: Context, value: object) -> None:
        gate.open()
        while True:
            time.sleep(0.01)  # real time: a tool that has to be interrupted

    stopped = await stop(tool, gate._event.is_set)
    await until(lambda: True)
    assert stopped.fate("tool") == "stopped"
