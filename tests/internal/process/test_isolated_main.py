"""Owns the tests that look inside, beside those of `tests/internal/process/test_isolated_programs.py`.

The inside of an isolated call: what the function finds there, and what happens when the parent is gone.
"""

import math
import os
import pickle
import socket
import subprocess
import sys

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal
from safepoint.process import import_target, isolated_main
from safepoint.process.frames import HEADER, FrameSocket
from safepoint.process.isolated_main import CallRaised, CallReturned, ChildCall, ParentConnection, dumps
from tests.internal.process import isolated_functions as functions
from tests.internal.process.isolated_functions import Folder, run_isolated
from tests.internal.process.test_isolated_programs import NEVER, ROOT, program
from tests.kit.programs import alive
from tests.kit.waiting import wait_until


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path) as folder:
        yield folder


HERE = "tests.internal.process.isolated_functions"


async def test_a_deadline_travels_as_the_time_that_remains():
    assert await run_isolated(functions.remaining, signal=NEVER) == math.inf
    soon, late = AbortSignal.timeout(40), AbortSignal.timeout(4000)
    assert 0 < await run_isolated(functions.remaining, signal=AbortSignal.any([late, soon])) < 40


async def test_a_deadline_comes_in_the_child_with_the_same_reason(clock, folder):
    signal = AbortSignal.timeout(1)  # passes there, in real time; here it does not
    try:
        reason, unlimited = await run_isolated(functions.follow, folder, signal=signal, kill=NEVER)
        assert not unlimited
    except AbortError as error:  # on a busy machine it has passed before the function could begin
        reason = error.reason
    assert not signal.aborted
    clock.advance(1)
    assert signal.reason is not None
    assert (reason, reason.origin) == (signal.reason, signal.reason.origin)


async def test_it_runs_in_the_main_thread_of_a_session_of_its_own_with_our_path_and_arguments_and_no_input():
    started: list[int] = []
    told = await run_isolated(functions.identity, signal=NEVER, on_start=started.append)
    assert started == [told["pid"]]
    assert told["pid"] == told["group"] == told["session"] != os.getpid()
    assert told["parent"] == os.getpid()
    assert told["path"] == sys.path
    assert told["argv"] == sys.argv
    assert told["stdin"] == ""
    assert told["thread"]
    assert not alive(told["pid"])


async def test_what_it_prints_goes_where_we_print(capfd):
    await run_isolated(functions.say, "said", signal=NEVER)
    assert capfd.readouterr() == ("said\n", "said\n")


PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from safepoint.abort import AbortSignal
from tests.internal.process.isolated_functions import run_isolated
from tests.internal.process import isolated_functions as functions

async def main():
    folder = functions.Folder(Path(sys.argv[1]))
    fn = getattr(functions, sys.argv[2])
    call = asyncio.create_task(run_isolated(fn, folder, signal=AbortSignal.never()))
    await folder.ready(int(sys.argv[3]))
    if sys.argv[4:] == ["fork"]:
        other = os.fork()
        if not other:
            signal.pause()
        folder.write("other", other)
    folder.write("ready")
    await call

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("fn", "pids", "how"),
    [("obey", 1, []), ("hang", 1, []), ("stubborn_tree", 3, []), ("hold", 1, ["fork"])],
    ids=["obeying", "hanging listener", "stubborn tree", "line held open by a fork"],
)
def test_a_parent_that_is_killed_leaves_nothing_running(fn, pids, how, folder):
    command = [sys.executable, "-W", "ignore", "-c", PARENT, str(folder.path), fn, str(pids), *how]
    parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        folder.read("ready")
        assert len(folder.alive()) == pids
    finally:
        parent.kill()
        parent.wait(10)
    if how:
        folder.note_pid(other := int(folder.read("other")))
        wait_until(lambda: folder.alive() == [other])
    else:
        wait_until(lambda: folder.alive() == [])
    if fn == "obey":
        assert folder.read("reason").startswith("disconnected: the process that asked for this call is gone")


def test_a_child_whose_parent_is_gone_before_it_spoke_just_ends():
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", f"from {isolated_main.__name__} import main; main()", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.sendall(HEADER.pack(100) + b"not all of it")
        ours.close()
        assert process.wait(30) == 0


@pytest.fixture
def line():
    """The parent's end of a line, and the child's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield FrameSocket(ours), FrameSocket(theirs), ours


def call_of(name, *args, steps=0):
    return ChildCall(f"{HERE}:{name}", steps, pickle.dumps((args, {})), None, [], None)


def test_an_answer_is_a_value_or_an_error_with_its_traceback(line):
    parent = ParentConnection(line[1], AbortController())
    assert isolated_main.answer_to(call_of("add", 1, 2), parent) == CallReturned(
        pickle.dumps(3, pickle.HIGHEST_PROTOCOL)
    )
    assert isolated_main.answer_to(call_of("double", 2), parent) == CallReturned(
        pickle.dumps(4, pickle.HIGHEST_PROTOCOL)
    )
    answer = isolated_main.answer_to(call_of("missing"), parent)
    assert isinstance(answer, CallRaised)
    assert (answer.type_name, answer.message) == ("AttributeError", f"module {HERE!r} has no attribute 'missing'")
    assert "Traceback" in answer.traceback
    assert isinstance(isolated_main.revived(answer), AttributeError)


def refused(answer):
    """The reason for which a function did not begin."""
    assert isinstance(answer, CallRaised)
    error = isolated_main.revived(answer)
    assert isinstance(error, AbortError)
    return error.reason


def test_a_function_under_an_aborted_signal_does_not_begin(line):
    parent = ParentConnection(line[1], AbortController(AbortSignal.already("before")))
    assert refused(isolated_main.answer_to(call_of("leave", "sys.exit"), parent)) == AbortReason("user", "before")


def test_a_function_does_not_begin_after_an_abort_that_has_come_and_that_no_thread_has_heard_yet(line):
    outside, end, _ = line
    outside.send(dumps(AbortReason("user", "early").to_dict()))
    parent = ParentConnection(end, AbortController())
    assert refused(isolated_main.answer_to(call_of("leave", "sys.exit"), parent)) == AbortReason("user", "early")


def test_a_function_does_not_begin_after_an_abort_that_its_thread_has_heard_and_not_obeyed_yet(line):
    outside, end, _ = line
    parent = ParentConnection(end, AbortController())
    outside.send(dumps(AbortReason("user", "early").to_dict()))
    assert parent._receive_next(10)
    assert not parent.signal.aborted
    assert refused(isolated_main.answer_to(call_of("leave", "sys.exit"), parent)) == AbortReason("user", "early")


def test_a_function_does_not_begin_when_its_parent_is_gone(line):
    _, end, outside = line
    outside.close()
    assert (
        refused(isolated_main.answer_to(call_of("leave", "sys.exit"), ParentConnection(end, AbortController())))
        == isolated_main.GONE
    )


def test_an_exit_is_no_answer(line):
    with pytest.raises(SystemExit):
        isolated_main.answer_to(call_of("leave", "sys.exit"), ParentConnection(line[1], AbortController()))


def test_the_function_is_taken_out_of_as_many_wrappers_as_one_says():
    def no_main():
        raise AssertionError("nobody asked for it")

    assert import_target.find(f"{HERE}:bare_tool", 0, no_main) is functions.bare_tool
    assert import_target.find(f"{HERE}:bare_tool", 1, no_main) is functions.bare_tool.__wrapped__
    assert import_target.find(f"{HERE}:Counter.stepped", 1, no_main)(functions.BigCounter) == 10


def test_while_the_program_is_loaded_it_may_start_nothing(folder, monkeypatch):
    for name in import_target.MAIN:
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    source = f"""
        from {import_target.__name__} import loading_main
        during = loading_main()
        def fn(): ...
    """
    path = str(program(source, folder))
    import_target.load_main((path, None))
    assert sys.modules["__main__"] is sys.modules["__mp_main__"]
    assert sys.modules["__main__"].during == path
    assert import_target.loading_main() is None
    assert import_target.main_source() == (path, None)
    assert import_target.loads(pickle.dumps(sys.modules["__main__"].fn)) is sys.modules["__main__"].fn
    broken = str(program("1 / 0", folder, "broken.py"))
    with pytest.raises(ZeroDivisionError):
        import_target.load_main((broken, None))
    assert import_target.loading_main() is None
