"""Owns the proof that each house rule catches what it forbids, and lets pass what it does not."""

import textwrap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

from tests.architecture import calls, layers, names, patches, privacy, shape, triggers, vocabulary
from tests.architecture.source import Rule, Source, read


def source(path: str, text: str = "") -> Source:
    return Source(PurePosixPath(path), textwrap.dedent(text))


PUBLIC = {"safepoint": {"Agent", "tool"}, "safepoint.run": {"leaf"}}
MANY = "def f(a, b, c, *, d, e, f, g): ...\n"
SEVEN_METHODS = "".join(f"    def m{number}(self): ...\n" for number in range(7))
FOUR_METHODS = "".join(f"    def m{number}(self): ...\n" for number in range(4))
SUM_OF_PROTOCOLS = f"class P(Protocol):\n{FOUR_METHODS}class Q(P, Protocol):\n{FOUR_METHODS.replace('m', 'n')}"


def check_parameters(module: Source) -> Iterator[str]:
    return shape.many_parameters(module, {"abort/guard.py:allowed": "a reason"})


def check_protocols(module: Source) -> Iterator[str]:
    return shape.wide_protocols(module, {"abort/guard.py:Allowed": "a reason"})


def check_privates(module: Source) -> Iterator[str]:
    return privacy.foreign_privates(module, {"abort/guard.py:_allowed": "a reason"})


def check_patches(module: Source) -> Iterator[str]:
    return patches.patched_constants(module, {"test_b.py:LIMIT": "a reason", "clock.TICK": "a reason"})


def check_imports_of_tests(module: Source) -> Iterator[str]:
    return privacy.internal_imports(module, PUBLIC)


def long_function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


CAUGHT: list[tuple[Rule, str, str, str]] = [
    (layers.upward_imports, "abort/signal.py", "from safepoint.run import settle", "abort imports run"),
    (layers.upward_imports, "abort/signal.py", "import safepoint.run.settle", "abort imports run"),
    (layers.upward_imports, "abort/signal.py", "from safepoint import run", "abort imports run"),
    (layers.upward_imports, "abort/signal.py", "from ..run.settle import settle", "abort imports run"),
    (layers.upward_imports, "abort/signal.py", "from .. import run", "abort imports run"),
    (layers.upward_imports, "abort/__init__.py", "from ..run import settle", "abort imports run"),
    (layers.upward_imports, "abort/signal.py", "def f():\n    from ..cli import main", "abort imports cli"),
    (layers.upward_imports, "run/retry.py", "if TYPE_CHECKING:\n    from ..agent import Agent", "run imports agent"),
    (layers.upward_imports, "errors.py", "from .abort import AbortSignal", "errors imports abort"),
    (layers.upward_imports, "agent/agent.py", "from ..flow import Flow", "agent imports flow"),
    (layers.upward_imports, "flow/flow.py", "from ..agent import Agent", "flow imports agent"),
    (layers.upward_imports, "flow/flow.py", "from ..models import scripted", "flow imports models"),
    (layers.upward_imports, "agent/agent.py", "from ..models import scripted", "agent imports models"),
    (layers.upward_imports, "cli/main.py", "from ..testing import clock", "cli imports testing"),
    (layers.upward_imports, "testing/clock.py", "from ..cli import main", "testing imports cli"),
    (layers.upward_imports, "run/retry.py", "from safepoint import AbortSignal", "run imports the public face"),
    (layers.upward_imports, "run/retry.py", "import safepoint", "run imports the public face"),
    (layers.upward_imports, "extras/new.py", "", "extras has no layer"),
    (layers.foreign_imports, "abort/guard.py", "import anyio.abc", "imports anyio"),
    (layers.foreign_imports, "errors.py", "def f():\n    from pydantic import BaseModel", "imports pydantic"),
    (layers.foreign_imports, "events.py", "import pydantic", "imports pydantic"),
    (layers.upward_imports, "outcome.py", "from .events import Event", "outcome imports events"),
    (layers.upward_imports, "events.py", "from .run import Context", "events imports run"),
    (shape.oversized, "abort/guard.py", "x = 1\n" * 401, "the file has 401 lines of code"),
    (shape.oversized, "abort/guard.py", long_function(51), "f has 51 lines of code"),
    (shape.oversized, "abort/guard.py", "async " + long_function(51), "f has 51 lines of code"),
    (shape.nameless, "abort/utils.py", "", "utils does not say what is inside"),
    (shape.nameless, "common/guard.py", "", "common does not say what is inside"),
    (shape.undescribed, "abort/guard.py", "x = 1", "no module docstring"),
    (shape.undescribed, "abort/guard.py", '""" """', "no module docstring"),
    (check_parameters, "abort/guard.py", MANY, "f takes 7 parameters"),
    (check_parameters, "abort/guard.py", "class A:\n    " + MANY, "A.f takes 7 parameters"),
    (check_protocols, "abort/guard.py", "class P(Protocol):\n" + SEVEN_METHODS, "P has 7 methods"),
    (check_protocols, "abort/guard.py", "class P(Protocol[T]):\n" + SEVEN_METHODS, "P has 7 methods"),
    (check_protocols, "abort/guard.py", "class P(Q, Protocol):\n" + SEVEN_METHODS, "P has 7 methods"),
    (check_privates, "abort/guard.py", "def f(agent): return agent._tools", "agent._tools belongs to another module"),
    (check_privates, "abort/guard.py", "f().g._x = 1", "f().g._x belongs to another module"),
    (vocabulary.metaphors, "abort/guard.py", "def f(): heard = 1", "the name heard says heard"),
    (vocabulary.metaphors, "abort/guard.py", "class OrderLane: ...", "the name OrderLane says lane"),
    (vocabulary.metaphors, "worker/bell.py", "x = 1", "the name bell says bell"),
    (vocabulary.metaphors, "abort/guard.py", "def f(x): x.room_key = 1", "the name room_key says room"),
    (check_imports_of_tests, "agent/test_x.py", "import safepoint.agent.calls", "imports safepoint.agent.calls"),
    (check_imports_of_tests, "agent/lab.py", "from safepoint.run import LeafRun", "imports safepoint.run.LeafRun"),
    (check_patches, "test_a.py", 'm.setattr("safepoint.abort.clock.SWEEP", 1)', "safepoint.abort.clock.SWEEP"),
    (check_patches, "test_a.py", "from safepoint.abort import clock\nm.setattr(clock, 'SWEEP', 1)", "clock.SWEEP"),
    (check_patches, "test_a.py", "import safepoint\nsetattr(safepoint.abort, '_SWEEP', 1)", "safepoint.abort._SWEEP"),
    (check_patches, "test_a.py", "for module in modules:\n    m.setattr(module, 'PROC', '')", "module.PROC"),
    (check_patches, "test_a.py", "def f(clock):\n    m.setattr(\n        clock, 'SWEEP', 1)", "clock.SWEEP"),
    (check_patches, "test_a.py", "from safepoint.abort import clock\nclock.SWEEP = 1", "clock.SWEEP"),
    (
        check_patches,
        "test_a.py",
        "@patch('safepoint.abort.clock.SWEEP', 1)\ndef f(): ...",
        "safepoint.abort.clock.SWEEP",
    ),
    (check_patches, "test_a.py", "mock.patch.object(clock, 'SWEEP', 1)", "clock.SWEEP"),
    (shape.checkout_paths, "agent/test_x.py", 'assert "/safepoint/" in path', '"/safepoint/"'),
    (shape.unfinished, "abort/guard.py", "x = 1  # TODO: more", "TODO"),
    (shape.unfinished, "abort/guard.py", "raise NotImplementedError", "NotImplementedError"),
    (shape.private_paths, "docs/a.md", "see `/" + "root/notes.md`", "/" + "root/"),
    (shape.private_paths, "docs/a.md", "file:///" + "home/me/x", "/" + "home/"),
    (names.unresolved_exports, "abort/guard.py", '__all__ = ["guard"]', "__all__ names guard, which is not there"),
    (names.unresolved_exports, "a.py", "__all__: list[str] = [*b]", "__all__ names *b, which is not there"),
    (names.unresolved_exports, "a.py", "__all__ = b + c", "__all__ names b + c, which is not there"),
    (names.unresolved_exports, "a.py", '__all__ = ["x"]\ndef f():\n    x = 1', "__all__ names x, which is not there"),
    (names.uneven_exports, "run/__init__.py", "from .leaf import leaf", "leaf is public but not in __all__"),
    (names.uneven_exports, "run/__init__.py", '__all__ = ["leaf"]', "leaf is in __all__ but not imported"),
    (names.cancel_names, "run/retry.py", "def cancel(): ...", "the name cancel"),
    (names.cancel_names, "run/retry.py", "class Leaf:\n    async def cancel_all(self): ...", "the name cancel_all"),
    (names.cancel_names, "run/retry.py", "class Leaf:\n    cancelled: bool", "the name cancelled"),
    (names.cancel_names, "run/retry.py", "def run(*, on_cancel=None): ...", "the name on_cancel"),
    (names.cancel_names, "run/retry.py", "if True:\n    CANCEL = 1", "the name CANCEL"),
    (
        names.cancel_names,
        "abort/threads.py",
        "class G:\n    def _f(self):\n        self.cancelled = 1",
        "the name cancelled",
    ),
    (calls.cancel_calls, "abort/signal.py", "task.cancel()", "task.cancel"),
    (calls.cancel_calls, "run/guard.py", "asyncio.current_task().uncancel()", "asyncio.current_task().uncancel"),
    (calls.cancel_calls, "abort/signal.py", "if task.cancelling(): pass", "task.cancelling"),
    (calls.cancel_calls, "abort/signal.py", "loop.call_later(1, task.cancel)", "task.cancel"),
    (calls.lossy_waits, "abort/guard.py", "import asyncio\nasyncio.wait_for(x, 1)", "asyncio.wait_for"),
    (calls.lossy_waits, "abort/guard.py", "import asyncio as aio\naio.wait_for(x, 1)", "asyncio.wait_for"),
    (calls.lossy_waits, "abort/guard.py", "from asyncio import wait_for as w\nw(x, 1)", "asyncio.wait_for"),
    (calls.stray_tasks, "run/retry.py", "import asyncio\nasyncio.create_task(x)", "asyncio.create_task"),
    (calls.stray_tasks, "run/retry.py", "import asyncio\nasyncio.ensure_future(x)", "asyncio.ensure_future"),
    (calls.stray_tasks, "run/retry.py", "from asyncio import create_task\ncreate_task(x)", "create_task"),
    (calls.stray_tasks, "run/retry.py", "self.loop.create_task(x)", "self.loop.create_task"),
    (calls.prints, "run/retry.py", "print(1)", "print"),
    (calls.real_sleeps, "test_a.py", "import time\ntime.sleep(1)", "time.sleep(1)"),
    (calls.real_sleeps, "test_a.py", "import time as t\nt.sleep(1)", "t.sleep(1)"),
    (calls.real_sleeps, "test_a.py", "from asyncio import sleep\nawait sleep(x)", "await sleep(x)"),
    (
        calls.real_sleeps,
        "test_a.py",
        "import asyncio\nasyncio.sleep(0.01)  # real time:",
        "asyncio.sleep(0.01)  # real time:",
    ),
    (calls.real_sleeps, "test_a.py", "import time\nrun_in_thread(time.sleep, 5)", "run_in_thread(time.sleep, 5)"),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (layers.upward_imports, "abort/signal.py", "from . import reason\nfrom .reason import AbortReason"),
    (layers.upward_imports, "abort/signal.py", "import asyncio\nfrom ..errors import AbortError"),
    (layers.upward_imports, "models/openai.py", "from ..agent.model import Model"),
    (layers.upward_imports, "testing/clock.py", "from ..server import app\nfrom . import recorder"),
    (layers.upward_imports, "__init__.py", "from .cli import main\nfrom .testing import clock"),
    (layers.upward_imports, "__main__.py", "from .cli import main"),
    (layers.foreign_imports, "abort/guard.py", "import asyncio.events\nfrom safepoint import errors\nfrom . import x"),
    (layers.foreign_imports, "wire.py", "import pydantic"),
    (layers.upward_imports, "run/context.py", "from ..events import Event"),
    (layers.foreign_imports, "agent/tool.py", "import pydantic"),
    (shape.oversized, "abort/guard.py", "x = 1\n" * 350 + long_function(50)),
    (shape.nameless, "run/database.py", ""),
    (shape.undescribed, "abort/guard.py", '"""Owns the guard."""'),
    (shape.oversized, "abort/guard.py", "# why\n" * 401),
    (check_parameters, "abort/guard.py", "class A:\n    def f(self, a, b, c, d, e, f): ..."),
    (check_parameters, "abort/guard.py", "def allowed(a, b, c, d, e, f, g): ..."),
    (check_protocols, "abort/guard.py", "class Allowed(Protocol):\n" + SEVEN_METHODS),
    (check_protocols, "abort/guard.py", "class P:\n" + SEVEN_METHODS),
    (check_protocols, "abort/guard.py", SUM_OF_PROTOCOLS),
    (check_privates, "abort/guard.py", "class A:\n    def f(self, other): self._x = other._x"),
    (check_privates, "abort/guard.py", "class A:\n    def f(self): return self._inherited + super()._x"),
    (check_privates, "abort/guard.py", "import sys\nsys._current_frames()\nx._allowed"),
    (vocabulary.metaphors, "abort/guard.py", "class OrderLease:\n    def renew(self): ..."),
    (check_imports_of_tests, "agent/test_x.py", "from safepoint import Agent\nimport safepoint.run"),
    (check_imports_of_tests, "internal/agent/test_x.py", "from safepoint.agent.calls import Calls"),
    (check_patches, "test_a.py", "import os\nm.setattr(os, 'P_PID', 1)\nm.setattr('os.path.SEP', '')\nos.environ = {}"),
    (check_patches, "test_a.py", "from safepoint.abort import clock\nm.setattr(clock, 'SystemClock', x)\nclock.a = 1"),
    (check_patches, "test_b.py", "from safepoint.abort import clock\nm.setattr(clock, 'LIMIT', 1)"),
    (check_patches, "test_a.py", "from safepoint.abort import clock\nm.setattr(clock, 'TICK', 1)"),
    (check_patches, "test_a.py", "SWEEP = 1\nx = clock.SWEEP\nself.SWEEP = 2"),
    (shape.unfinished, "abort/guard.py", "TODOS = NotImplemented"),
    (shape.private_paths, "docs/a.md", "https://example.org/home/x, src/work/x.py, ./tmp/x, ~/work/x"),
    (
        names.unresolved_exports,
        "a.py",
        '__all__ = ("A", "b", "c")\nimport b\nclass A: ...\ntry:\n    c = 1\nfinally: ...',
    ),
    (names.uneven_exports, "run/__init__.py", '__all__ = ["leaf"]\nfrom .leaf import leaf\nimport x as _x'),
    (
        names.uneven_exports,
        "__init__.py",
        "from __future__ import annotations\n__version__ = '1'\n__all__ = ['__version__']",
    ),
    (names.uneven_exports, "run/retry.py", "import asyncio"),
    (names.cancel_names, "abort/guard.py", "def guard():\n    cancelled = task.cancel()\ndef _cancel(task): ..."),
    (names.cancel_names, "run/settle.py", "from asyncio import CancelledError"),
    (calls.cancel_calls, "abort/guard.py", "task.cancel()\ntask.uncancel()"),
    (calls.cancel_calls, "run/retry.py", "if task.cancelled(): raise asyncio.CancelledError"),
    (
        calls.lossy_waits,
        "abort/threads.py",
        "import threading\nthreading.Condition().wait_for(f)\ncondition.wait_for(f)",
    ),
    (calls.stray_tasks, "abort/guard.py", "import asyncio\nasyncio.create_task(x)"),
    (calls.stray_tasks, "run/retry.py", "async with asyncio.TaskGroup() as group:\n    group.create_task(x)"),
    (calls.stray_tasks, "run/retry.py", "def f(group: TaskGroup | None):\n    group.create_task(x)"),
    (calls.stray_tasks, "run/retry.py", "self._group = asyncio.TaskGroup()\nself._group.create_task(x)"),
    (calls.prints, "cli/main.py", "print(1)"),
    (calls.prints, "run/retry.py", "pprint(1)\nself.print(1)"),
    (calls.real_sleeps, "test_a.py", "import asyncio, time\nasyncio.sleep(0)\ntime.sleep(0.0)"),
    (calls.real_sleeps, "test_a.py", "import time\ntime.sleep(1)  # real time: a thread cannot see the fake clock"),
    (calls.real_sleeps, "test_a.py", "import time\ntime.sleep(\n    1\n)  # real time: a thread is blocked"),
    (calls.real_sleeps, "test_a.py", "signal.sleep(5)\nfrom safepoint.testing import sleep\nsleep(5)"),
]


@pytest.mark.parametrize(("rule", "path", "text", "offence"), CAUGHT)
def test_a_planted_violation_is_caught(rule: Rule, path: str, text: str, offence: str) -> None:
    (found,) = rule(source(path, text))
    assert found.startswith(f"{path}:")
    assert found.endswith(f": {offence}")


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED)
def test_what_is_allowed_passes(rule: Rule, path: str, text: str) -> None:
    assert list(rule(source(path, text))) == []


def test_an_offender_is_named_by_its_line_and_once() -> None:
    module = source("abort/signal.py", "import asyncio\n\nfrom ..run import leaf, settle\nfrom ..cli import main")
    assert [*layers.upward_imports(module)] == [
        "abort/signal.py:3: abort imports run",
        "abort/signal.py:4: abort imports cli",
    ]


def test_a_file_with_a_reason_may_own_a_task() -> None:
    module = source("agent/run.py", "import asyncio\nasyncio.create_task(x)")
    assert list(calls.stray_tasks(module, {"agent/run.py": "a run has a task of its own"})) == []


def face(**members: object) -> ModuleType:
    module = ModuleType("face")
    vars(module).update(members)
    return module


def test_a_good_face_passes() -> None:
    good = face(__all__=["END", "Path", "dedent"], END=object(), Path=Path, dedent=textwrap.dedent)
    assert list(names.faulty_face(good, "`END`, `Path[T]`, `dedent(text)`")) == []


def test_a_face_without_names_is_caught() -> None:
    assert list(names.faulty_face(face(), "")) == ["__all__ is missing or empty"]


def test_too_many_public_names_are_caught() -> None:
    many = [f"n{i}" for i in range(41)]
    pages = " ".join(f"`{name}`" for name in many)
    assert list(names.faulty_face(face(__all__=many, **dict.fromkeys(many, 1)), pages)) == ["__all__ has 41 names"]


def test_each_fault_of_a_public_name_is_caught() -> None:
    faulty = face(__all__=["a", "a", "gone", "bare", "shy"], a=1, bare=lambda: None, shy=1)
    assert list(names.faulty_face(faulty, "`a`, `gone`, `bare`, shy, `shyness`")) == [
        "a is listed 2 times",
        "gone does not resolve",
        "bare has no docstring",
        "shy stands on no page in docs/",
    ]


def test_the_signature_of_a_dataclass_is_no_docstring() -> None:
    class Value:
        pass

    Value.__doc__ = "Value(a: int)"
    assert not names.described(Value)
    Value.__doc__ = "What was measured."
    assert names.described(Value)


TRIGGERING = source(
    "abort/controller.py",
    """
    class Controller:
        def abort(self):
            self._signal.announce()

        def on_signals(self):
            def handle():
                self.abort("ctrl-c")
            loop.call_soon(self.abort)

    late = lambda: controller.abort()
    """,
)
TABLE = """
Text | with a bar.

| Where | Who asks | Can it hit running work? |
|---|:--|---|
| `abort/controller.py:<module>` | nobody | no |
| `abort/controller.py:Controller.on_signals` | the user \\| the system | yes |
| `abort/controller.py:Controller.on_signals.handle` | the user | yes |

| word | means |
|---|---|
| `other.py:table` | nothing |
"""


def test_a_complete_table_of_triggers_passes() -> None:
    assert list(triggers.unlisted_triggers([TRIGGERING], TABLE)) == []


def test_a_trigger_that_is_not_listed_is_caught_with_the_line_to_add() -> None:
    page = TABLE.replace("| `abort/controller.py:Controller.on_signals` | the user \\| the system | yes |\n", "")
    assert list(triggers.unlisted_triggers([TRIGGERING], page)) == [
        "add the line: | `abort/controller.py:Controller.on_signals` | <who asks> | <yes or no, and why> |"
    ]


def test_a_listed_trigger_that_is_gone_is_caught() -> None:
    page = TABLE.replace("| nobody | no |\n", "| nobody | no |\n| `run/leaf.py:run` | the loop | yes |\n")
    assert list(triggers.unlisted_triggers([TRIGGERING], page)) == [
        "remove the line of `run/leaf.py:run`: nothing aborts there"
    ]


def test_a_trigger_listed_twice_or_without_an_answer_is_caught() -> None:
    page = TABLE.replace("| nobody | no |\n", "| nobody | no |\n| `abort/controller.py:<module>` | nobody | |\n")
    assert list(triggers.unlisted_triggers([TRIGGERING], page)) == [
        "`abort/controller.py:<module>` is listed 2 times",
        "`abort/controller.py:<module>`: fill in every column",
    ]


def test_files_are_read_with_their_paths(tmp_path: Path) -> None:
    (tmp_path / "abort").mkdir()
    (tmp_path / "abort" / "guard.py").write_text("x = 1")
    (tmp_path / "notes.md").write_text("no")
    assert [source("abort/guard.py", "x = 1")] == read(tmp_path)
