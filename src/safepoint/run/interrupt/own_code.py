"""The decision whether code belongs to a tool, or to a library that the tool uses.

A tool's own code is its top-level package wherever that is installed, every file outside the standard library and the
folders of installed packages, and the packages given to `interruptible`. Safepoint itself never counts, except the one
file of a tool that Safepoint ships.
"""

import functools
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Protocol

__all__ = ["CodePosition", "OwnCode", "function_beneath"]


class CodePosition(Protocol):
    """A place in running code: a frame, or a copy of its position."""

    @property
    def f_code(self) -> CodeType: ...
    @property
    def f_lasti(self) -> int: ...
    @property
    def f_globals(self) -> dict[str, object]: ...


class OwnCode:
    """Tells a tool's own code from that of libraries.

    Args:
        fn: The tool's function, or its outermost wrapper.
        packages: The top-level packages that count as the tool's own although they are installed.
    """

    def __init__(self, fn: Callable[..., object], packages: tuple[str, ...] = ()) -> None:
        function = function_beneath(fn)
        self._packages = packages
        self._file: str | None = None
        if function is not None:
            package = str(function.__globals__.get("__name__") or "").partition(".")[0]
            if package == _SAFEPOINT:
                self._file = function.__code__.co_filename
            elif package not in sys.stdlib_module_names:
                self._packages = (package, *packages)

    def has(self, frame: CodePosition) -> bool:
        """Whether the frame's code is the tool's own."""
        file = frame.f_code.co_filename
        if _is_installed(file):
            package = str(frame.f_globals.get("__name__") or "").partition(".")[0]
            return file == self._file or (package in self._packages and package != _SAFEPOINT)
        return True


def function_beneath(fn: object) -> FunctionType | None:
    """Return the Python function inside all wrappers; None if there is none, such as for a function written in C."""
    for _ in range(100):  # limited, because an object may claim to wrap itself
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, MethodType):
            fn = fn.__func__
        elif isinstance(fn, FunctionType) and not hasattr(fn, "__wrapped__"):
            return fn
        else:
            fn = vars(fn).get("__init__") if isinstance(fn, type) else getattr(fn, "__wrapped__", type(fn).__call__)
    return None


_SAFEPOINT = __name__.partition(".")[0]
_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
        os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
    }
    if folder
)
_INSTALLED = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))


@functools.cache
def _is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library, an installed package, Safepoint, or is built into Python."""
    if file.startswith("<"):
        # Code created at run time, such as the methods of a dataclass, has no source. A cell of a notebook has one.
        return file.startswith("<frozen ") or not linecache.getlines(file)
    path = os.path.realpath(file)
    return path.startswith(_LIBRARIES) or any(part in path for part in _INSTALLED)
