"""Owns the functions that tests run in processes of their own, and the folder in which these say where they are."""

import asyncio
import functools
import os
import signal as os_signals
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from safepoint.abort import AbortSignal, current_signal
from safepoint.process.isolate import IsolationOptions, call_isolated
from tests.kit.programs import alive
from tests.kit.waiting import wait_until

FOREVER = 60.0  # longer than any test


async def run_isolated(
    fn: Callable[..., Any],
    *args: object,
    signal: AbortSignal,
    kill: AbortSignal | None = None,
    grace: float = 2.0,
    on_start: Callable[[int], object] | None = None,
    **kwargs: object,
) -> Any:
    """Call the function in a process of its own."""
    options = IsolationOptions(signal=signal, kill=kill, grace=grace, on_start=on_start)
    return await call_isolated(fn, args, kwargs, options)


class Folder:
    """Where processes write down who they are, and what has happened to them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *error: object) -> None:
        """What still runs of the processes in it is killed."""
        for pid in self.alive():
            os.kill(pid, os_signals.SIGKILL)

    def write(self, name: str, text: object = "") -> None:
        (self.path / f"{name}.new").write_text(str(text))
        os.rename(self.path / f"{name}.new", self.path / name)

    def read(self, name: str) -> str:
        wait_until((self.path / name).exists)
        return (self.path / name).read_text()

    def note_pid(self, pid: int) -> None:
        with open(self.path / "pids", "a") as file:
            file.write(f"{pid}\n")

    def pids(self) -> list[int]:
        path = self.path / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if alive(pid)]

    async def ready(self, number: int = 1) -> list[int]:
        """Wait until so many processes have written their pid."""
        await asyncio.to_thread(wait_until, lambda: len(self.pids()) >= number)
        return self.pids()

    async def gone(self) -> None:
        await asyncio.to_thread(wait_until, lambda: not self.alive())


def running(*args: Any, **kwargs: Any) -> "AbstractAsyncContextManager[asyncio.Task[Any]]":
    """A call in a task, which has ended when the block is left."""
    return in_task(run_isolated(*args, **kwargs))


@asynccontextmanager
async def in_task(call: Coroutine[Any, Any, Any]) -> "AsyncIterator[asyncio.Task[Any]]":
    """The coroutine in a task, which has ended when the block is left."""
    task = asyncio.create_task(call)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def keywords(**given: object) -> dict[str, object]:
    return given


def add(a: int, b: int = 0) -> int:
    return a + b


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def same(value: Any) -> Any:
    return value


def identity() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "session": os.getsid(0),
        "parent": os.getppid(),
        "argv": sys.argv,
        "path": sys.path,
        "stdin": sys.stdin.read(),
        "thread": threading.current_thread() is threading.main_thread(),
    }


def say(text: str) -> None:
    print(text)
    print(text, file=sys.stderr)


def say_and_hold(folder: Folder, text: str) -> None:
    print(text)
    hold(folder)


def hold(folder: Folder) -> None:
    """Deaf to its signal."""
    folder.note_pid(os.getpid())
    threading.Event().wait(FOREVER)


def hang(folder: Folder) -> None:
    """Its listener never comes back."""
    with current_signal().add_listener(threading.Event().wait):
        hold(folder)


def follow(folder: Folder) -> Any:
    """What the signal says when it is aborted."""
    folder.note_pid(os.getpid())
    return current_signal().wait(FOREVER) and (current_signal().reason, current_signal().deadline is None)


async def follow_async(folder: Folder) -> Any:
    folder.note_pid(os.getpid())
    await current_signal().wait_async()
    return current_signal().reason


def obey(folder: Folder) -> None:
    folder.note_pid(os.getpid())
    current_signal().wait(FOREVER)
    folder.write("reason", current_signal().reason)
    current_signal().raise_if_aborted()


def obey_with(folder: Folder, partial: object) -> None:
    try:
        obey(folder)
    except Exception as error:
        error.partial = partial  # type: ignore[attr-defined]  # it is an AbortError
        raise


def awaited_reason() -> Any:
    return current_signal().wait(FOREVER) and current_signal().reason


def remaining() -> float:
    return current_signal().remaining()


def stubborn_tree(folder: Folder) -> None:
    """Three generations that ignore TERM."""
    os_signals.signal(os_signals.SIGTERM, os_signals.SIG_IGN)
    shell(folder, "sh -c 'echo $$ >>pids; exec sleep 60' & echo $$ >>pids; wait")
    hold(folder)


def leaving_tree(folder: Folder) -> None:
    """A child that leaves the group."""
    shell(folder, "exec setsid sh -c 'echo $$ >>pids; exec sleep 60'")
    hold(folder)


def leave_running(folder: Folder) -> str:
    process = shell(folder, "echo $$ >>pids; exec sleep 60")
    wait_until(folder.pids)
    process.returncode = 0  # nobody will wait for it, and that is meant so
    return "done"


def shell(folder: Folder, script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sh", "-c", script], cwd=folder.path)


def linger(folder: Folder) -> str:
    """Return, but leave a thread that Python waits for at its end."""

    def stay() -> None:
        threading.main_thread().join()
        hold(folder)

    threading.Thread(target=stay).start()
    return "done"


def return_at(folder: Folder, gate: str) -> str:
    folder.note_pid(os.getpid())
    wait_until(lambda: os.path.exists(gate))
    return "done"


def outlive_term(folder: Folder, ending: Any) -> Any:
    """On TERM return what was given, or raise it if it is an exception. Of a function: what it returns."""

    class Asked(BaseException):
        pass

    def ask(number: int, frame: object) -> None:
        raise Asked

    os_signals.signal(os_signals.SIGTERM, ask)
    try:
        folder.note_pid(os.getpid())
        while True:  # in pieces: a wait that begins in the moment of the signal would not notice it
            threading.Event().wait(0.01)
    except Asked:
        pass
    if isinstance(ending, BaseException):
        raise ending
    return ending() if callable(ending) else ending


def tear_the_line() -> str:
    os.closerange(3, 100)
    return "nobody hears it"


def leave(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(4)
        case "crash":
            os.kill(os.getpid(), os_signals.SIGSEGV)
        case "memory":
            os.kill(os.getpid(), os_signals.SIGKILL)
        case _:
            os.kill(os.getpid(), os_signals.SIGRTMIN + 1)
    threading.Event().wait(FOREVER)


def die(ctx: object, value: object) -> None:
    os._exit(3)


class Broken(Exception):
    """Can be pickled, but not made again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class OneWay:
    """A value that can be sent, but not made again."""

    def __reduce__(self) -> Any:
        return fail, ("LookupError", "on arrival")


ERRORS: dict[str, Callable[[str], BaseException]] = {
    "Broken": lambda text: Broken(1, text),
    "Locked": Locked,
    "LookupError": LookupError,
    "StopIteration": StopIteration,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
}


def fail(name: str, text: str) -> None:
    raise ERRORS[name](text)


def give_lock() -> Any:
    return threading.Lock()


def give_one_way() -> OneWay:
    return OneWay()


class Tool:
    """What a decorator makes of a function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.__wrapped__ = fn

    def __call__(self) -> None:
        raise AssertionError("it is the function that runs, not what is around it")


def exclaiming(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> str:
        return f"{fn(*args)}!"

    return wrapper


def opaque(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: fn(*args)


@Tool
def bare_tool(text: str) -> str:
    return text


@Tool
@exclaiming
def loud_tool(text: str) -> str:
    return text


@exclaiming
@Tool
def tool_inside(text: str) -> str:
    return text


@opaque
def hidden(text: str) -> str:
    return text


def replaced() -> str:
    return "first"


first_replaced = replaced


def replaced() -> str:  # type: ignore[no-redef]  # two functions of one name, which is the point
    return "second"


class Counter:
    """Something with methods."""

    step = 1

    def __init__(self, count: int) -> None:
        self.count = count

    def plus(self, number: int) -> int:
        return self.count + number

    @classmethod
    def stepped(cls) -> int:
        return cls.step

    @staticmethod
    def fixed() -> str:
        return "fixed"


class BigCounter(Counter):
    """Inherits a class method, which must still see this class."""

    step = 10


class Unsendable:
    """Cannot be pickled, so neither can its methods run elsewhere."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self) -> None: ...


async def nest(depth: int) -> list[int]:
    """The pids of a chain of isolated calls."""
    deeper = await run_isolated(nest, depth - 1, signal=AbortSignal.never()) if depth else []
    return [os.getpid(), *deeper]
