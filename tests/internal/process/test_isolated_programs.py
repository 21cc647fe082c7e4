"""The inside of an isolated call: what the function finds there, and what happens when the parent is gone."""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal
from tests.internal.process import isolated_functions as functions
from tests.internal.process.isolated_functions import Folder, running

NEVER = AbortSignal.never()


ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path) as folder:
        yield folder


@pytest.mark.parametrize("fn", [functions.follow, functions.follow_async])
async def test_the_child_sees_the_abort_with_its_reason(fn, folder):
    controller = AbortController()
    async with running(fn, folder, signal=controller.signal, kill=NEVER) as task:
        await folder.ready()
        controller.abort(AbortReason("preempted", "a new prompt", "here:1", LookupError("why")))
        seen = await task
    reason = seen[0] if fn is functions.follow else seen
    assert reason == controller.signal.reason
    assert reason.origin == "here:1"
    assert str(reason.cause) == "LookupError: why"


async def test_what_it_has_printed_is_seen_also_when_it_is_killed(capfd, folder):
    controller = AbortController()
    async with running(functions.say_and_hold, folder, "said", signal=controller.signal) as task:
        await folder.ready()
        controller.abort()
        with pytest.raises(AbortError):
            await task
    assert capfd.readouterr().out == "said\n"


async def test_a_parent_that_ignores_or_blocks_term_does_not_hand_that_down(folder):
    source = """
        import asyncio, os, signal, sys, threading
        from pathlib import Path
        from safepoint.abort import AbortController, AbortError
        from tests.internal.process.isolated_functions import run_isolated
        from tests.internal.process.isolated_functions import Folder, hold

        async def main():
            folder, controller = Folder(Path(".")), AbortController()
            task = asyncio.create_task(run_isolated(hold, folder, signal=controller.signal, grace=60))
            await folder.ready()
            controller.abort()
            try:
                await task
            except AbortError as error:
                print(error.partial.returncode)

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert await asyncio.to_thread(run_program, program(source, folder), folder=folder) == "-15\n"


def program(source, folder, name="program.py"):
    """A program in a file of its own."""
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


def run_program(*command, folder):
    """What a program prints, all of it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder.path, env=environment, capture_output=True, timeout=30
    )
    return (ended.stdout + ended.stderr).decode()


SCRIPT = """
import asyncio, os
from dataclasses import dataclass
from safepoint.abort import AbortSignal
from tests.internal.process.isolated_functions import run_isolated
from tests.internal.process.isolated_functions import same
print("loaded as", __name__)

@dataclass
class Point:
    x: int

def moved(point):
    return Point(point.x + 1), os.getpid()

def run(fn, *args):
    return asyncio.run(run_isolated(fn, *args, signal=AbortSignal.never()))
"""


GUARDED = """
if __name__ == "__main__":
    point, pid = run(moved, Point(1))
    print(point, type(point) is Point, pid != os.getpid())
"""


MOVED = "loaded as __main__\nloaded as __mp_main__\nPoint(x=2) True True\n"


def test_a_function_and_a_class_of_the_program_itself_are_found(folder):
    assert run_program(program(SCRIPT + GUARDED, folder, "program"), folder=folder) == MOVED


def test_a_program_in_a_package_is_found_with_its_relative_imports(folder):
    program("name = 'neighbour'", folder, "package/neighbour.py")
    program(SCRIPT + "from .neighbour import name" + GUARDED, folder, "package/program.py")
    assert run_program("-m", "package.program", folder=folder) == MOVED


def test_the_program_is_not_loaded_again_where_nobody_needs_it(folder):
    source = SCRIPT + 'if __name__ == "__main__":\n    print(run(same, "the word __main__ is no name"))'
    printed = run_program(program(source, folder), folder=folder)
    assert printed == "loaded as __main__\nthe word __main__ is no name\n"


def test_an_argument_of_a_class_of_the_program_is_found(folder):
    source = SCRIPT + 'if __name__ == "__main__":\n    print(run(same, Point(3)) == Point(3))'
    printed = run_program(program(source, folder), folder=folder)
    assert printed == "loaded as __main__\nloaded as __mp_main__\nTrue\n"


def test_a_program_that_would_start_itself_again_and_again_is_told_what_to_do(folder):
    printed = run_program(program(SCRIPT + "run(moved, Point(1))", folder), folder=folder)
    assert printed.count("loaded as") == 2
    assert 'put the code that starts the program under `if __name__ == "__main__":`' in printed


@pytest.mark.parametrize("how", ["-c", "-m"])
def test_a_function_of_a_program_without_a_file_to_load_is_refused(how, folder):
    program("", folder, "package/__init__.py")
    program(SCRIPT + "run(moved, Point(1))", folder, "package/__main__.py")
    printed = run_program(
        *(["-c", SCRIPT + "run(moved, Point(1))"] if how == "-c" else ["-m", "package"]), folder=folder
    )
    assert "there is no file to import __main__ from. Put the function in a module" in printed
    assert printed.count("loaded as") == 1


def test_a_call_of_another_module_needs_no_file_of_the_program(folder):
    source = SCRIPT.partition("@away")[0] + "\n" + SCRIPT[SCRIPT.index("def run(") :] + "print(run(same, 5))"
    assert run_program("-c", source, folder=folder) == "loaded as __main__\n5\n"


def test_the_flags_of_the_interpreter_are_handed_down(folder):
    source = SCRIPT + 'import sys\nif __name__ == "__main__":\n    print(run(exec, "assert False"))'
    assert run_program("-O", program(source, folder), folder=folder) == "loaded as __main__\nNone\n"
