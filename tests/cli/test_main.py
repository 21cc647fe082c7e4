"""Owns the tests of the `safepoint` command against servers that really run: each command, and every exit code."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from safepoint import __version__
from safepoint.cli import main as package_main
from safepoint.cli.main import main
from tests.kit.server_process import ROOT, ServerProcess

COMMANDS = ["serve", "sessions", "turns", "stop", "receipt", "completion", "worker", "workers"]


@pytest.fixture(scope="module")
def child() -> Iterator[ServerProcess]:
    with ServerProcess("--token", "secret") as child:
        child.client.headers["authorization"] = "Bearer secret"
        yield child


def run(child: ServerProcess, *arguments: str) -> int:
    return main([*arguments, "--url", child.url, "--token", "secret"])


def test_a_turn_is_found_stopped_and_accounted_for(child: ServerProcess, capsys: pytest.CaptureFixture[str]):
    child.session("cli")
    child.send("slow", "t1", "cli")
    child.until("progress_made", "cli")
    assert run(child, "sessions") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["session", "agent", "events", "open", "turns"]
    assert [row.split()[:2] for row in rows] == [["cli", "helper"]]
    assert run(child, "turns", "cli") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["t1", "running"]
    assert run(child, "receipt", "cli", "t1") == 1
    assert "no receipt yet" in capsys.readouterr().err
    assert run(child, "stop", "cli", "--at", "AFTER_TOOLS", "--within", "0.05", "--reason", "enough of it") == 0
    assert capsys.readouterr().out == "accepted: turn t1: stops at AFTER_TOOLS\n"
    child.until("turn_ended", "cli")
    assert run(child, "receipt", "cli", "t1") == 0
    assert "enough of it" in capsys.readouterr().out
    assert run(child, "receipt", "cli", "t1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reason"]["message"] == "enough of it"
    assert run(child, "stop", "cli") == 0
    assert capsys.readouterr().out == "no turn is open in this session\n"
    assert run(child, "stop", "cli", "t1") == 0
    assert capsys.readouterr().out.startswith("already_finished")


def test_a_stop_may_say_for_how_long_to_wait(child: ServerProcess, capsys: pytest.CaptureFixture[str]):
    child.session("hard")
    child.send("stall", "t1", "hard")
    child.until("text_streamed", "hard")
    assert run(child, "stop", "hard", "--abandon", "0") == 0
    told = "accepted: turn t1: stops at NOW; what has not ended by then is left behind\n"
    assert capsys.readouterr().out == told
    child.until("turn_ended", "hard")
    assert run(child, "stop", "hard", "t1", "--abandon", "2.5") == 0


def test_stop_takes_the_turn_that_runs_and_not_one_that_waits(child: ServerProcess, capsys: pytest.CaptureFixture[str]):
    child.session("urgent")
    child.send("stall", "first", "urgent")
    child.until("text_streamed", "urgent")
    child.send("stall", "waits", "urgent")
    body = {"text": "stall", "turn_id": "runs", "when_busy": "interrupt"}
    child.call("POST", "/api/sessions/urgent/messages", body)
    child.until("text_streamed", "urgent", run_id="runs")
    assert run(child, "stop", "urgent") == 0
    assert "turn runs:" in capsys.readouterr().out
    assert run(child, "stop", "urgent", "waits") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["turns", "never-was"], 1, "there is no session 'never-was'"),
        (["stop", "never-was"], 1, "the server refused"),
        (["receipt", "never-was", "t"], 1, "the server refused"),
    ],
)
def test_what_the_server_refuses_is_a_1(
    child: ServerProcess, arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
):
    assert run(child, *arguments) == code
    assert told in capsys.readouterr().err


def test_a_wrong_token_is_a_1(child: ServerProcess, capsys: pytest.CaptureFixture[str]):
    assert main(["sessions", "--url", child.url, "--token", "wrong"]) == 1
    assert "a token is needed" in capsys.readouterr().err


def test_the_environment_says_where_and_who(
    child: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SAFEPOINT_URL", child.url)
    monkeypatch.setenv("SAFEPOINT_TOKEN", "secret")
    assert main(["sessions"]) == 0
    assert capsys.readouterr().out.startswith("session")


def test_no_server_is_a_3(capsys: pytest.CaptureFixture[str]):
    assert main(["sessions", "--url", "http://127.0.0.1:9"]) == 3
    assert "start one with `safepoint serve`" in capsys.readouterr().err


def test_an_address_that_is_none_is_a_2(capsys: pytest.CaptureFixture[str]):
    assert main(["sessions", "--url", "nonsense"]) == 2
    assert "not the address of a server" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["turns"],
        ["stop", "s", "--at", "LATER"],
        ["stop", "s", "--within", "-1"],
        ["stop", "s", "--within", "nan"],
        ["stop", "s", "--abandon", "-1"],
        ["stop", "s", "--abandon", "nan"],
        ["stop", "s", "--abandon", "soon"],
        ["serve", "--port", "x"],
        ["serve", "--within", "0"],
        ["serve", "--on-disconnect", "soon"],
        ["serve", "--on-disconnect", "-3"],
        ["serve", "--abandon-after", "inf"],
        ["completion", "tcsh"],
    ],
)
def test_a_wrong_call_is_a_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: safepoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no_such_module:agent"], "there is no module 'no_such_module'"),
        (["tests.server.agents"], "is not module:agent"),
        (["tests.server.agents:nobody"], "has no 'nobody'"),
        (["tests.server.agents:no_agent"], "not an Agent"),
        (["--host", "0.0.0.0"], "give a token"),
        (["--port", "99999"], "cannot listen on 127.0.0.1:99999"),
    ],
)
def test_what_cannot_be_served_is_a_2_at_once(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SAFEPOINT_TOKEN", raising=False)
    assert main(["serve", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_file_that_is_no_database_is_said_before_anybody_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "letter.txt").write_text("Dear reader, this is no database. " * 100)
    assert main(["serve", "--port", "0", "--db", str(tmp_path / "letter.txt")]) == 2
    assert "letter.txt" in capsys.readouterr().err


def test_the_version_can_be_asked_for(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"safepoint {__version__}\n"


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert "safepoint serve my_agents:helper --db chat.db" in told
    assert "exit codes: 0 done, 1 refused by the server, 2 wrong call, 3 no server answers, 130 interrupted" in told
    assert all(name in told for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    told = capsys.readouterr().out
    assert left.value.code == 0
    assert f"usage: safepoint {command}" in told
    assert f"example:\n  safepoint {command}" in told


def test_the_greeting_says_where_it_is_and_what_to_try():
    with ServerProcess(agent=None) as child:
        assert child.process.stdout is not None
        lines = [child.process.stdout.readline() for _ in range(13)]
        assert any("tell me a story" in line for line in lines)
        assert "Sessions are kept in memory" in lines[-1]


def test_the_greeting_brings_the_token_along(child: ServerProcess):
    assert child.address.endswith("/#token=secret")


@pytest.mark.parametrize(("no_color", "bold"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_bold_unless_it_wants_none(child: ServerProcess, no_color: dict[str, str], bold: bool):
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | no_color
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "safepoint", "sessions", "--url", child.url, "--token", "secret"]
    subprocess.run(command, stdout=slave, env=environment, cwd=ROOT, timeout=30, check=True)
    os.close(slave)
    assert (b"\x1b[1m" in os.read(master, 10_000)) is bold
    os.close(master)


def test_a_reader_that_leaves_is_no_error(child: ServerProcess):
    command = f"{sys.executable} -m safepoint sessions --url {child.url} --token secret | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, timeout=30, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "safepoint", "completion", "bash"]
    assert (
        "complete -F _safepoint safepoint"
        in subprocess.run(command, cwd=ROOT, timeout=30, capture_output=True, text=True, check=True).stdout
    )
    assert package_main is main


def test_ctrl_c_before_the_server_runs_is_a_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "slow_agents.py").write_text("raise KeyboardInterrupt")
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "slow_agents:agent"]) == 130
