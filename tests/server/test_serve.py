"""Owns the tests of serving: the address, the token, and an end in order, in processes that are really ended."""

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from safepoint.agent import Agent
from safepoint.errors import UsageError
from safepoint.server import Server
from safepoint.session import LocalHost
from tests.kit.server_process import ServerProcess
from tests.kit.servers import ControlledModel

# Beyond the time that was given: what the machine may need to start and end a process.
SLACK = 10.0


@pytest.mark.parametrize("token", [None, ""])
async def test_outside_of_loopback_a_token_is_needed(token: str | None):
    host = LocalHost(Agent(ControlledModel()))
    with pytest.raises(UsageError, match="give a token"):
        Server(host, address="0.0.0.0", token=token)
    Server(host, address="0.0.0.0", token="secret")
    Server(host, address="127.0.0.1", token=token)


@pytest.mark.parametrize("token", ["ü", "two words", "line\nbreak"])
async def test_a_token_that_fits_in_no_header_is_refused(token: str):
    with pytest.raises(UsageError, match="ASCII"):
        Server(LocalHost(Agent(ControlledModel())), token=token)


async def test_a_port_that_is_taken_or_none_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1"):
            await Server(LocalHost(Agent(ControlledModel())), port=taken.getsockname()[1]).run()
    with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1:99999"):
        await Server(LocalHost(Agent(ControlledModel())), port=99_999).run()


async def test_answers_are_not_held_back():
    with Server(LocalHost(Agent(ControlledModel())), port=0)._bind() as listening:
        assert listening.proto == socket.IPPROTO_TCP  # by this asyncio knows that it may send small packets at once


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_does_nothing_ends_at_once(number: signal.Signals):
    with ServerProcess("--within", "20") as child:
        child.session()
        code, took, told, errors = child.end(number)
    assert (code, errors) == (0, "")
    assert told.endswith("stopped: everything is written\n")
    assert took < SLACK


async def test_who_listens_to_other_signals_hears_them_while_it_serves_and_afterwards():
    loop, started, seen = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGUSR1, seen.set)
    try:
        host = LocalHost(Agent(ControlledModel()))
        serving = asyncio.create_task(Server(host, port=0, started=lambda url: started.set()).run())
        await started.wait()
        os.kill(os.getpid(), signal.SIGUSR1)
        await seen.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        assert signal.getsignal(signal.SIGTERM) is before
        seen.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        await seen.wait()
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def test_at_the_end_a_turn_stops_at_its_safe_point_and_what_waits_waits_on(tmp_path: Path):
    db = str(tmp_path / "chat.db")
    with ServerProcess("--db", db, "--within", "20") as child:
        child.session()
        child.send("steps", "t1")
        child.until("progress_made")
        child.send("hello", "t2")
        code, took, _, errors = child.end()
        assert (code, errors) == (0, "")
        assert took < SLACK
    with ServerProcess("--db", db) as child:
        outcome = child.turn("t1")["outcome"]
        assert (outcome["status"], outcome["reason"]["kind"]) == ("aborted", "shutdown")
        events = child.until("turn_ended", turn_id="t2")
        assert events[0]["kind"] == "session_opened"
        ends = [(event["turn_id"], event["outcome"]["status"]) for event in events if event["kind"] == "turn_ended"]
        assert ends == [("t1", "aborted"), ("t2", "completed")]


def test_with_resume_the_turn_that_a_sigterm_has_interrupted_goes_on_before_what_waits(tmp_path: Path):
    db = str(tmp_path / "chat.db")
    with ServerProcess("--db", db, "--within", "20", "--resume") as child:
        child.session()
        child.send("steps", "t1")
        child.until("progress_made")
        child.send("hello", "t2")
        code, took, _, errors = child.end()
        assert (code, errors) == (0, "")
        assert took < SLACK
    with ServerProcess("--db", db, "--resume") as child:
        events = child.until("turn_ended", turn_id="t2")
        begun = [event["turn_id"] for event in events if event["kind"] == "turn_started"]
        goes_on = next(event["turn_id"] for event in events if event.get("continues") == "t1")
        assert begun == ["t1", goes_on, "t2"]
        first = child.turn("t1")
        assert (first["status"], first["continued_by"]) == ("completed", goes_on)


def test_while_it_ends_it_takes_no_new_work_and_readers_see_the_end(tmp_path: Path):
    with ServerProcess("--db", str(tmp_path / "chat.db"), "--within", "6") as child:
        child.session()
        child.send("slow", "t1")
        child.until("progress_made")
        read: list[Any] = []
        reads = threading.Event()
        reader = threading.Thread(target=lambda: read.extend(child.until("session_closed", reads=reads)))
        reader.start()
        assert reads.wait(20)
        child.process.send_signal(signal.SIGTERM)
        child.until_draining()
        assert child.call("POST", "/api/sessions/s/messages", {"text": "more"}).status_code == 503
        assert child.call("POST", "/api/sessions", {}).status_code == 503
        stop = child.call("POST", "/api/sessions/s/turns/t1/stop", {"at": "NOW"})
        assert (stop.status_code, stop.json()["status"]) == (202, "already_stopping")
        code, took, told, _ = child.end()
        reader.join(20)
        assert (code, "everything is written" in told) == (0, True)
        assert took < 6 + SLACK
        assert [event["kind"] for event in read][-2:] == ["turn_ended", "session_closed"]


def test_a_tool_stuck_in_c_is_left_behind_in_time_and_named(tmp_path: Path):
    db = str(tmp_path / "chat.db")
    with ServerProcess("--db", db, "--within", "7") as child:
        child.session()
        child.send("stuck", "t1")
        child.until("progress_made")
        code, took, told, _ = child.end()
        assert (code, "everything is written" in told) == (0, True)
        assert took < 7 + SLACK
    with ServerProcess("--db", db) as child:
        receipt = child.turn("t1")["outcome"]["receipt"]
        (left,) = [entry for entry in receipt["entries"] if entry["name"].endswith("/stuck")]
        assert left["fate"] == "still_running"
        assert "agents.py" in left["where"]


@pytest.mark.parametrize("blocked", ["after the signal", "before the signal"])
def test_even_a_blocked_event_loop_ends_in_time_and_the_turn_is_sealed_later(blocked: str, tmp_path: Path):
    db = str(tmp_path / "chat.db")
    with ServerProcess("--db", db, "--within", "2") as child:
        child.session()
        child.send("blocking", "t1")
        child.until("progress_made")
        if blocked == "before the signal":
            child.until_blocked()
        code, took, _, errors = child.end()
        assert took < 2 + SLACK
        assert (code, "what still runs is cut off" in errors) == (1, True)
    with ServerProcess("--db", db) as child:
        child.session()
        assert child.turn("t1")["status"] == "aborted"


def test_what_was_killed_is_sealed_and_what_had_not_begun_runs(tmp_path: Path):
    db = str(tmp_path / "chat.db")
    with ServerProcess("--db", db) as child:
        child.session()
        child.send("stall", "t1")
        child.send("hello", "t2")
        child.until("text_streamed")
        child.process.kill()
        child.process.wait(10)
    with ServerProcess("--db", db) as child:
        events = child.until("turn_ended", turn_id="t2")
        first = child.turn("t1")["outcome"]
        assert (first["status"], first["reason"]["kind"]) == ("aborted", "lease_lost")
        assert child.turn("t2")["outcome"]["value"]["text"] == "I begin."
        assert [event["turn_id"] for event in events if event["kind"] == "turn_ended"] == ["t1", "t2"]


def test_a_stop_that_was_acknowledged_holds_after_a_kill(tmp_path: Path):
    db = str(tmp_path / "chat.db")
    with ServerProcess("--db", db, "--resume") as child:
        child.session()
        child.send("slow", "t1")
        child.until("progress_made")
        assert child.call("POST", "/api/sessions/s/turns/t1/stop", {"reason": "enough"}).json()["status"] == "accepted"
        child.until("stop_requested")
        child.process.kill()
        child.process.wait(10)
    with ServerProcess("--db", db, "--resume") as child:
        child.session()
        outcome = child.turn("t1")["outcome"]
        assert (outcome["status"], outcome["reason"]["message"]) == ("aborted", "enough")
        assert child.call("GET", "/api/sessions/s").json()["turns"] == []
