"""Reading answers from the standard input: a stop withdraws the question, and every question gets a line of its own."""

import asyncio
import builtins
import fcntl
import io
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal
from safepoint.run import ask, read_line
from tests.kit.leaves import LeafRig

SRC = Path(__file__).parents[2] / "src"


class Stdin:
    """A standard input of the test: what is typed at its other end."""

    def __init__(self, read_end: int, write_end: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write_end: int | None = write_end
        self.file = open(read_end, encoding="utf-8")  # closed by `close`
        monkeypatch.setattr(sys, "stdin", self.file)

    def type(self, text: str) -> None:
        assert self.write_end is not None
        os.write(self.write_end, text.encode())

    def wait_for_echo(self, text: str) -> None:
        """Until a terminal has got it: it comes back then."""
        assert self.write_end is not None
        seen = ""
        while text not in seen:
            assert select.select([self.write_end], [], [], 10)[0]
            seen += os.read(self.write_end, 4096).decode()

    def hang_up(self) -> None:
        if self.write_end is not None:
            os.close(self.write_end)
            self.write_end = None

    def close(self) -> None:
        self.hang_up()
        with suppress(OSError):  # a test has closed it
            self.file.close()


def terminal() -> tuple[int, int]:
    write_end, read_end = pty.openpty()
    return read_end, write_end


ENDS: dict[str, Callable[[], tuple[int, int]]] = {"terminal": terminal, "pipe": os.pipe}


@pytest.fixture(params=ENDS)
def stdin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stdin]:
    made = Stdin(*ENDS[request.param](), monkeypatch)
    yield made
    made.close()


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stdin]:
    made = Stdin(*terminal(), monkeypatch)
    yield made
    made.close()


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stdin]:
    made = Stdin(*os.pipe(), monkeypatch)
    yield made
    made.close()


class Readers:
    """Questions in threads of their own."""

    def __init__(self, screen: pytest.CaptureFixture[str]) -> None:
        self._pool = ThreadPoolExecutor(4)
        self._screen, self.shown = screen, ""

    def ask(self, question: str) -> "tuple[Future[str], AbortController]":
        controller = AbortController()
        return self._pool.submit(read_line, question, signal=controller.signal), controller

    def wait_for(self, text: str) -> None:
        """Until it is on the screen."""
        end = time.monotonic() + 10
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} was not shown, only {self.shown!r}"
            time.sleep(0.001)  # real time: another thread writes it
            self.shown += self._screen.readouterr().out

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def readers(capsys: pytest.CaptureFixture[str]) -> Iterator[Readers]:
    made = Readers(capsys)
    yield made
    made.close()


async def shown(screen: pytest.CaptureFixture[str], text: str) -> None:
    seen = ""
    async with asyncio.timeout(10):
        while text not in seen:
            await asyncio.sleep(0.001)  # real time: another thread writes it
            seen += screen.readouterr().out


@pytest.mark.backends("asyncio", "uvloop")
async def test_after_a_stop_every_question_gets_a_line_of_its_own(stdin: Stdin, capsys: pytest.CaptureFixture[str]):
    stopped = LeafRig()
    withdrawn = asyncio.ensure_future(ask(stopped.ctx, "first?", builtins.input))
    await shown(capsys, "first?")
    stopped.controller.abort("stop")
    with pytest.raises(AbortError, match="stop"):
        await withdrawn
    assert stopped.fates() == ["stopped"]

    bench = LeafRig()
    second = asyncio.ensure_future(ask(bench.ctx, "second?", builtins.input))
    await shown(capsys, "second?")
    stdin.type("two\nthree\n")
    assert await second == "two"
    assert await ask(bench.ctx, "third?", builtins.input) == "three"


async def test_a_stop_is_over_before_the_thread_would_be_interrupted(
    keyboard: Stdin, capsys: pytest.CaptureFixture[str]
):
    taken = []
    for _ in range(5):
        bench = LeafRig()
        asking = asyncio.ensure_future(ask(bench.ctx, "well?", read_line))
        await shown(capsys, "well?")
        began = time.monotonic()
        bench.controller.abort()
        with pytest.raises(AbortError):
            await asking
        taken.append(time.monotonic() - began)
    assert min(taken) < 0.08, "interrupted after 100 ms, not withdrawn"


def test_lines_that_were_written_at_once_answer_one_question_each(pipe: Stdin):
    pipe.type("one\ntwo\r\n\nfö")
    assert [read_line() for _ in range(3)] == ["one", "two", ""]
    pipe.hang_up()
    assert read_line() == "fö"  # the last line has no end
    with pytest.raises(EOFError):
        read_line()


def test_what_follows_the_line_is_left_for_others(pipe: Stdin):
    pipe.type("mine\nyours\n")
    assert read_line() == "mine"
    assert input() == "yours"


def test_half_a_line_of_a_pipe_is_completed_for_the_next_question(pipe: Stdin, readers: Readers):
    pipe.type("hal")
    withdrawn, controller = readers.ask("first?")
    readers.wait_for("first?")
    while select.select([pipe.file], [], [], 0)[0]:  # until it has been read
        time.sleep(0.001)  # real time: by another thread
    controller.abort()
    with pytest.raises(AbortError):
        withdrawn.result(10)
    pipe.type("f\n")
    assert read_line() == "half"


def test_half_an_answer_that_was_typed_at_a_terminal_goes_with_its_question(keyboard: Stdin, readers: Readers):
    withdrawn, controller = readers.ask("Delete everything? ")
    readers.wait_for("Delete everything? ")
    keyboard.type("ye")
    keyboard.wait_for_echo("ye")
    controller.abort()
    with pytest.raises(AbortError):
        withdrawn.result(10)
    readers.wait_for("? \n")  # the next question has a line of its own
    asked, _ = readers.ask("Save? ")
    readers.wait_for("Save? ")
    keyboard.type("no\n")
    assert asked.result(10) == "no"


def test_questions_at_the_same_time_take_turns(stdin: Stdin, readers: Readers):
    first, _ = readers.ask("first?")
    readers.wait_for("first?")
    second, _ = readers.ask("second?")
    stdin.type("one\n")
    assert first.result(10) == "one"
    readers.wait_for("second?")
    stdin.type("two\n")
    assert second.result(10) == "two"


def test_a_withdrawn_question_makes_room_for_the_next_and_one_that_waits_can_be_withdrawn_too(
    stdin: Stdin, readers: Readers
):
    first, stop_first = readers.ask("first?")
    readers.wait_for("first?")
    second, stop_second = readers.ask("second?")
    third, _ = readers.ask("third?")
    stop_second.abort()
    with pytest.raises(AbortError):
        second.result(10)
    assert not first.done()
    stop_first.abort()
    with pytest.raises(AbortError):
        first.result(10)
    readers.wait_for("third?")
    assert "second?" not in readers.shown
    stdin.type("three\n")
    assert third.result(10) == "three"


def test_an_aborted_signal_shows_and_reads_nothing(pipe: Stdin, capsys: pytest.CaptureFixture[str]):
    pipe.type("kept\n")
    with pytest.raises(AbortError):
        read_line("well?", signal=AbortSignal.already("no"))
    assert capsys.readouterr().out == ""
    assert read_line() == "kept"


def test_the_signal_of_the_code_around_counts_if_none_is_given(pipe: Stdin):
    controller = AbortController()
    threading.Timer(0.05, controller.abort).start()

    async def around() -> None:
        with controller.signal.guard():
            read_line()

    with pytest.raises(AbortError):
        asyncio.run(around())


def test_a_file_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "answers").write_text("yes\nno\n", encoding="utf-8")
    with open(tmp_path / "answers", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert [read_line(), read_line()] == ["yes", "no"]
        with pytest.raises(EOFError):
            read_line()


def test_a_closed_input_is_at_its_end(pipe: Stdin, monkeypatch: pytest.MonkeyPatch):
    os.close(pipe.file.fileno())
    with pytest.raises(EOFError):
        read_line()
    with suppress(OSError):
        pipe.file.close()
    with pytest.raises(EOFError):
        read_line()
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EOFError):
        read_line()


def test_a_terminal_that_goes_away_ends_the_question(keyboard: Stdin, readers: Readers):
    asked, _ = readers.ask("well?")
    readers.wait_for("well?")
    keyboard.hang_up()
    with pytest.raises(EOFError):
        asked.result(10)


def test_the_end_of_input_at_a_terminal_is_not_for_ever(keyboard: Stdin):
    keyboard.type("\x04")  # Ctrl-D
    with pytest.raises(EOFError):
        read_line()
    keyboard.type("here\n")
    assert read_line() == "here"


def test_descriptors_may_have_any_number(pipe: Stdin, monkeypatch: pytest.MonkeyPatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000 <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    with open(fcntl.fcntl(pipe.file, fcntl.F_DUPFD, 1500), encoding="utf-8") as high:
        monkeypatch.setattr(sys, "stdin", high)
        pipe.type("far away\n")
        assert read_line() == "far away"


def test_what_is_no_file_is_read_as_input_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from memory\n"))
    assert read_line("well?") == "from memory"
    assert capsys.readouterr().out == "well?"


PROGRAM = """
import asyncio, fcntl, signal, termios
from safepoint import Agent, ToolContext
from safepoint.models.scripted import Call, ScriptedModel

fcntl.ioctl(0, termios.TIOCSCTTY, 0)

async def main():
    model = ScriptedModel(*[[Call("ask_user", question=f"Q{n}?")] for n in (1, 2)], "done")
    agent = Agent(model, ask_user=input)
    run = agent.run("go")
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, run.stop)
    print("outcome", (await run).status)
    outcome = await agent.run("again")
    print("answer", [message.content for message in outcome.value.messages if message.kind == "tool_result"])

asyncio.run(main())
"""


def test_a_whole_program_at_a_terminal_asks_is_stopped_and_asks_again():
    read_end, write_end = terminal()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=read_end,
        stdout=read_end,
        stderr=read_end,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    os.close(read_end)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([write_end], [], [], 20)[0], f"{text!r} was not shown, only {seen!r}"
            seen += os.read(write_end, 4096).decode()

    try:
        wait_for("Q1?")
        os.write(write_end, b"half an ans")
        wait_for("half an ans")  # the terminal's echo: it has arrived
        program.send_signal(signal.SIGUSR1)
        wait_for("outcome aborted")
        wait_for("Q2?")
        os.write(write_end, b"two\nthree\n")
        wait_for("answer ['two']")
        assert program.wait(20) == 0
    finally:
        program.kill()
        program.wait(20)
        os.close(write_end)
