"""Whose code a frame is: the tool's own, or a library's."""

import functools
import json
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import pytest

from safepoint.run.interrupt.own_code import OwnCode, function_beneath

SOURCE = "import sys\n\ndef frame():\n    return sys._getframe()\n"


def load(path, name):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SOURCE)
    module = ModuleType(name)
    SourceFileLoader(name, str(path)).exec_module(module)
    return module


@pytest.fixture
def other(tmp_path):
    """A file of the same project."""
    return load(tmp_path / "project" / "other.py", "other")


@pytest.fixture
def installed(tmp_path):
    return load(tmp_path / "lib" / "site-packages" / "package" / "part.py", "package.part")


def tool():
    return sys._getframe()


def test_files_outside_of_what_is_installed_are_its_own(other):
    assert OwnCode(tool).has(tool())
    assert OwnCode(tool).has(other.frame())


def test_installed_packages_are_not_its_own_unless_they_are_named(installed):
    assert not OwnCode(tool).has(installed.frame())
    assert OwnCode(tool, ("package",)).has(installed.frame())
    assert not OwnCode(tool, ("pack",)).has(installed.frame())


def test_a_tool_that_is_installed_owns_its_package(installed, tmp_path):
    neighbour = load(tmp_path / "lib" / "site-packages" / "package" / "more.py", "package.more")
    stranger = load(tmp_path / "lib" / "site-packages" / "stranger.py", "stranger")
    own = OwnCode(functools.partial(installed.frame))
    assert own.has(installed.frame())
    assert own.has(neighbour.frame())
    assert not own.has(stranger.frame())


def frame_in_json():
    frames = []
    json.loads("{}", object_hook=lambda _: frames.append(sys._getframe(1)))
    return frames[0]


def test_the_standard_library_is_never_its_own_except_by_name():
    frame = frame_in_json()
    assert "json" in frame.f_code.co_filename
    assert not OwnCode(tool).has(frame)
    assert not OwnCode(json.loads).has(frame)
    assert OwnCode(tool, ("json",)).has(frame)


def test_safepoint_is_not_a_tools_own_but_a_tool_that_it_ships_owns_its_file():
    globals_: dict[str, Any] = {"__name__": "safepoint.cli.demo", "sys": sys}
    import safepoint.cli
    import safepoint.run

    demo = os.path.join(os.path.dirname(safepoint.cli.__file__), "demo.py")
    exec(compile(SOURCE, demo, "exec"), globals_)
    shipped = globals_["frame"]
    assert not OwnCode(tool, ("safepoint",)).has(shipped())
    assert OwnCode(shipped).has(shipped())
    exec(compile(SOURCE, safepoint.run.__file__, "exec"), globals_)
    assert not OwnCode(shipped).has(globals_["frame"]())


def test_code_that_was_made_at_run_time_is_nobodys_own():
    made: dict[str, Any] = {"sys": sys}
    exec("def frame(): return sys._getframe()", made)
    assert not OwnCode(tool).has(made["frame"]())


class Tools:
    def method(self):
        pass

    def __call__(self):
        pass

    @staticmethod
    def static():
        pass


class Made:
    def __init__(self):
        pass


def takes(argument):
    pass


cached = functools.lru_cache(tool)


@pytest.mark.parametrize(
    ("fn", "beneath"),
    [
        (tool, tool),
        (functools.partial(functools.partial(tool)), tool),
        (Tools().method, Tools.method),
        (Tools(), Tools.__call__),
        (Tools.static, Tools.static),
        (Made, Made.__init__),
        (cached, tool),
        (functools.singledispatch(takes), takes),
        (os.getpid, None),
        (int, None),
        (type("Empty", (int,), {}), None),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_function_is_found_beneath_what_it_is_wrapped_in(fn, beneath):
    assert function_beneath(fn) is beneath


def test_a_function_that_wraps_itself_is_not_searched_for_ever():
    def fn():
        pass

    fn.__wrapped__ = fn  # type: ignore[attr-defined]
    assert function_beneath(fn) is None
    assert OwnCode(fn).has(tool())
