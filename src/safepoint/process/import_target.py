"""Owns how a child process finds a function: by its module and its qualified name. Both sides are here.

The parent checks that the function can be found (`ImportTarget.of`); the child imports it (`find`). The program's own
file is loaded a second time there, under another name than `__main__`, so that it does not start again.
"""

import functools
import importlib
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from ..errors import UsageError, describe

__all__ = ["ImportTarget", "find", "load_main", "loading_main", "loads", "main_source"]

# The program's own module, and its name when it is loaded a second time. It is the name that multiprocessing uses, so
# that a process pool started by the function finds the module's functions as well.
MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """How a child process finds a function.

    Attributes:
        callable: The function, without wrappers that are no functions.
        name: The name of its module and its qualified name.
        wrappers: How many wrappers are around the function under that name.
    """

    callable: Callable[..., object]
    name: str
    wrappers: int

    @staticmethod
    def of(fn: Callable[..., object]) -> "ImportTarget":
        """Find out how a child process can import this function. Raises UsageError if it cannot."""
        if (path := loading_main()) is not None:
            raise UsageError(
                f"{path} starts a call in a child process while that process loads the file to find its function; put"
                ' the code that starts the program under `if __name__ == "__main__":`'
            )
        plain: Callable[..., object] = next(
            (layer for layer in _wrapper_layers(fn) if inspect.isroutine(layer) or inspect.isclass(layer)), fn
        )
        function: object = plain.__func__ if inspect.ismethod(plain) else plain
        module, name = _import_name(function)
        if not module or not name:
            raise _refusal(fn, "it is no function with a name of its own", "Use a function that was made with `def`")
        if name.endswith("<lambda>"):
            raise _refusal(function, "a lambda has no name to import it by", "Use `def` at the top level of a module")
        if "<locals>" in name:
            raise _refusal(function, "it is defined inside a function", "Move it to the top level of its module")
        if module in MAIN and main_source() is None:
            raise _refusal(function, "there is no file to import __main__ from", "Put the function in a module")
        if function is not plain:
            _check_owner(plain)
        wrappers = _count_wrappers(function, module, name)
        return ImportTarget(plain, f"{MAIN[0] if module in MAIN else module}:{name}", wrappers)

    @property
    def owner(self) -> tuple[object, ...]:
        """The object to which a method is bound; it is sent as the first argument."""
        return (self.callable.__self__,) if inspect.ismethod(self.callable) else ()


def _count_wrappers(function: object, module: str, name: str) -> int:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    for wrappers, layer in enumerate(_wrapper_layers(found)):
        if layer is function:
            return wrappers
    what = "does not exist" if found is None else f"is {found!r}, which does not lead to it by `__wrapped__`"
    advice = "Make that name refer to it; a decorator does so with `functools.wraps`"
    raise _refusal(function, f"{module}:{name}, by which a process would import it, {what}", advice)


def _wrapper_layers(fn: object) -> Iterator[Any]:
    """The callable, what it wraps, and so on."""
    yield fn
    for _ in range(50):  # limited, because some objects claim to wrap something at every level
        try:
            fn = inner(fn)
        except AttributeError:
            return
        yield fn


def _import_name(fn: object) -> tuple[str | None, str | None]:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)


def _check_owner(method: Callable[..., object]) -> None:
    owner = getattr(method, "__self__", None)
    try:
        pickle.dumps(owner)
    except Exception as error:
        what = f"it is a method of a {type(owner).__qualname__}, which cannot be pickled ({describe(error)})"
        raise _refusal(method, what, "Use a function, and pass it what it needs as arguments") from error


def _refusal(fn: object, what: str, advice: str) -> UsageError:
    code = getattr(fn, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return UsageError(f"{name}{where} cannot run in a child process: {what}. {advice}, or run it in a thread.")


def find(target: str, steps: int, find_main: Callable[[], None]) -> Callable[..., Any]:
    """Import a function.

    Args:
        target: Its module and qualified name.
        steps: How many wrappers to remove.
        find_main: Loads the program's own module, if the function is in it.

    Raises:
        Exception: What the import of the module raised.
    """
    module, _, name = target.partition(":")
    if module in MAIN:
        find_main()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    for _ in range(steps):
        found = inner(found)
    return cast(Callable[..., Any], found)


def inner(wrapper: Any) -> object:
    """Return what a wrapper wraps.

    Raises:
        AttributeError: It is no wrapper.
    """
    found: object = wrapper.__func__ if inspect.ismethod(wrapper) else wrapper.__wrapped__
    return found


def main_source() -> tuple[str, str | None] | None:
    """Return the file and the package of the program's own module, if it may be loaded again.

    A `__main__.py` may not: loading it would start the program.
    """
    module = sys.modules["__main__"]
    path = getattr(module, "__file__", None)
    name = getattr(getattr(module, "__spec__", None), "name", "")
    if path is None or not os.path.isfile(path) or name.rpartition(".")[2] == "__main__":
        return None
    return os.path.abspath(path), module.__package__


_loading: list[str] = []


def loading_main() -> str | None:
    """Return the path of the program's file while it is being loaded a second time, or None."""
    return _loading[0] if _loading else None


@functools.cache
def load_main(source: tuple[str, str | None] | None) -> None:
    """Load the program's own file under another name than `__main__`, and make it the module `__main__`."""
    if source is None:
        return
    path, package = source
    module = ModuleType(MAIN[1])
    module.__file__, module.__package__ = path, package
    for name in MAIN:
        sys.modules[name] = module
    _loading.append(path)
    try:
        with io.open_code(path) as file:
            exec(compile(file.read(), path, "exec"), vars(module))
    finally:
        _loading.pop()


class _Unpickler(pickle.Unpickler):
    """Treats both names of the program's own module as one."""

    def __init__(self, data: bytes, find_main: Callable[[], None]) -> None:
        super().__init__(io.BytesIO(data))
        self._find_main = find_main

    def find_class(self, module: str, name: str) -> Any:
        if module in MAIN:
            self._find_main()
            module = MAIN[0]
        return super().find_class(module, name)


def loads(data: bytes, find_main: Callable[[], None] = lambda: None) -> Any:
    """Unpickle the data; `find_main` is called before a name of the program's own module is looked up."""
    return _Unpickler(data, find_main).load()
