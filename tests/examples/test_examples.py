"""Every example runs, prints what it promises, and stays short enough to read."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from safepoint.process import group as process_group

EXAMPLES = Path(__file__).parents[2] / "examples"

# The lines that each example prints, in order.
PROMISES = {
    "01_signal.py": [
        "An await, a thread and a process tree",
        "Stop!",
        "await          stopped after",
        "thread         stopped after",
        "process tree   stopped after",
        "its output: b'three processes that ignore TERM\\n'; still running: none",
        "Why: user: the user pressed Stop",
    ],
    "02_receipt.py": [
        "Eight tools are running. Press Ctrl-C.",
        "Stopped: user: SIGINT",
        "run/build            await     stopped        after",
        "run/stuck            thread    still running  at",
        "02_receipt.py:25 in stuck (in",
    ],
    "03_archivist.py": [
        "A patient visitor:",
        "completed: A Map of Fog, Night Atlas, Simples, Strigiformes",
        "timed out: 1 s passed. It was at scouts/1.",
        "aborted: the visitor closed the page. It was at scouts/",
        "Stopped: user: the visitor closed the page (",
        "the-archivist/scouts/3  await     stopped        after",
        "resume: scouts/",
        "Another process continues at scouts/",
        "completed: A Map of Fog, Night Atlas, Simples, Strigiformes",
        "it asked only: herbs",
    ],
    "04_agent.py": [
        "read: page 2 of 3. Stop!",
        "answered at once: accepted",
        "Stopped: user: the visitor is in a hurry (",
        "agent/search     await     finished",
        "agent/read       await     stopped        after",
        "agent/dig        thread    stopped        after",
        "The conversation is valid. Each call has one result:",
        "search  completed",
        "read    interrupted",
        "dig     interrupted",
        "Resumed, with only read and dig run again: They see in the dark.",
    ],
    "05_subagents.py": [
        "After the tools of the chief: children finish first: aborted, after dig 1, dig 2",
        "chief/foreman                finished",
        "The whole tree, each at its own safe point: aborted, after dig 1",
        "chief/foreman/digger/dig     finished",
        "chief/foreman                stopped",
        "Now: aborted, after dig 1",
        "chief/foreman/digger/dig     stopped",
    ],
    "06_turn_loop.py": [
        "> Only old ones.   [AFTER_TOOLS]",
        "search: completed",
        "turn aborted, 3 messages",
        "> No: doves!   [NOW]",
        "search: interrupted",
        "> No: fog!   [NOW]",
        "agent: 'Doves ', turn aborted",
        "agent: 'Fog!', turn completed",
        "> Bye.",
        "search: completed",
        "Stopped (closing time): 2 handled, preempted: ['Find books on owls.', 'Only old ones.', 'No: doves!']",
        "interrupted: ['How many are there?'], unhandled: ['Bye.']; checkpoint saved",
        "Another loop continues:",
        "agent: 'There are 3.', turn completed",
        "agent: 'Goodbye.', turn completed",
        "Stopped: 2 handled, preempted: [], interrupted: [], unhandled: []; checkpoint deleted",
    ],
    "07_session.py": [
        "running and queued. Stop!",
        "accepted, then aborted: user: the reader fell asleep",
        "the queued turn is not affected: completed",
        "assistant Once upon a time …",
        "helper says: it",
        "parent: aborted; turns left at the helper: 0",
        "6 messages were kept; the next turn: completed",
        "3 ends: one for each turn",
    ],
    "08_server.py": [
        "Safepoint is at http://127.0.0.1:",
        "Stop! The answer comes at once: accepted, stops at NOW",
        "Later the turn ends: aborted. The receipt:",
        "Stopped: user: that is enough",
        "keeper/count_ships  await     stopped        after",
        "The server has ended.",
    ],
    "09_workers.py": [
        "Sent on one server, stopped on the other: accepted, delivered",
        "Stopped: user: that is enough",
        "keeper/count_ships  await     stopped        after",
        "The worker is shut down in the middle of a turn",
        "which ends as aborted, and another worker continues it:",
        "There are 19 ships.",
    ],
}
# The longest an example may be, where it needs more than 60 lines.
MOST_LINES = {
    "02_receipt.py": 80,
    "03_archivist.py": 125,
    "04_agent.py": 70,
    "05_subagents.py": 65,
    "06_turn_loop.py": 100,
    "07_session.py": 100,
    "09_workers.py": 70,
}
# Examples that run faster with these arguments.
ARGUMENTS = {"03_archivist.py": ["--scale", "0.2"]}
# Examples that wait for Ctrl-C, and the line after which it is pressed.
PRESSED = {"02_receipt.py": "Press Ctrl-C"}


def test_every_example_has_its_promise():
    assert sorted(PROMISES) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PROMISES)
def test_the_example_does_what_it_says(name: str):
    path = EXAMPLES / name
    assert len(path.read_text().splitlines()) <= MOST_LINES.get(name, 60)
    command = [sys.executable, str(path), *ARGUMENTS.get(name, [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        printed = ""
        if name in PRESSED:
            printed = program.stdout.readline()
            assert PRESSED[name] in printed
            time.sleep(0.5)  # real time: its tools have to be in the middle of their work
            program.send_signal(signal.SIGINT)
        rest, errors = program.communicate(timeout=50)
    printed += rest
    assert (errors, program.returncode) == ("", 0)
    rest = printed
    for line in PROMISES[name]:
        assert line in rest, f"{line!r} is missing, or not in its place, in:\n{printed}"
        rest = rest.partition(line)[2]


def test_the_archivist_can_be_resumed_by_hand(tmp_path: Path):
    saved = tmp_path / "archive.json"

    def printed(*arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / "03_archivist.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout

    assert all(flag in printed("--help") for flag in ("--save FILE", "--resume FILE", "--scale"))
    by_itself = printed("--scale", "0.1", "--save", str(saved)).partition("Another process")[2]
    assert printed("--scale", "0.1", "--resume", str(saved)).partition("Another process")[2] == by_itself


NAIVE = ("run/naive", "run/convert", "run/convert/sleep", "run/download", "run/transcode", "run/transcode/sleep")


def pressed_ctrl_c() -> dict[str, str]:
    """The lines of the receipt by name, after Ctrl-C in the middle of the tools' work."""
    command = [sys.executable, str(EXAMPLES / "02_receipt.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        time.sleep(0.7)  # real time: its tools have to be in the middle of their work
        os.kill(program.pid, signal.SIGINT)
        printed, _ = program.communicate(timeout=50)
    assert process_group.members(program.pid) == []
    return {line.split()[0]: line for line in printed.splitlines()[1:]}


def milliseconds(line: str) -> float:
    found = re.search(r"after ([\d.]+) (ms|s)\b", line)
    assert found is not None, line
    return float(found[1]) * (1 if found[2] == "ms" else 1000)


def test_the_naive_tools_of_the_receipt_end_at_once_and_leave_no_program():
    """Only the tool that is stuck in a library still runs, and every program that a tool started has ended."""
    slowest = []
    for _ in range(3):  # the best counts: the machine may be busy with other tests
        lines = pressed_ctrl_c()
        still = [name for name, line in lines.items() if "still running" in line or "unknown" in line]
        assert still == ["run/stuck"]
        for name in NAIVE:
            assert "stopped" in lines[name], lines
        slowest.append(max(milliseconds(lines[name]) for name in NAIVE))
        if slowest[-1] < 300:
            break
    assert min(slowest) < 300
