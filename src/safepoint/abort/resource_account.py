"""Owns how code that starts threads and programs reports them to the operation around it.

The layer above sets `current_account` around each operation. Code that uses a thread or leaves a process behind
reports it there, so that the receipt of the operation can name it. Knows nothing of what an operation is.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Protocol, TypeVar

__all__ = [
    "Account",
    "account_here",
    "accounted",
    "current_account",
    "detached",
    "is_detached",
    "report_survivors",
    "reset_account",
]

T = TypeVar("T")


class Account(Protocol):
    """The operation's side: what it must be told about the threads and processes that it starts."""

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function that is about to run in another thread, so that its begin and end are recorded."""
        ...

    def helper(self, fn: Callable[..., T], *, thread: threading.Thread | None = None) -> Callable[..., T]:
        """Wrap a function that is about to run in a thread for which the operation does not wait.

        Args:
            fn: The function.
            thread: The thread, if it was started for this function alone.
        """
        ...

    def survivors(self, pids: Iterable[int]) -> None:
        """Record processes that were started by a program which has ended, and that still run."""
        ...


current_account: ContextVar[Account | None] = ContextVar("safepoint_account", default=None)
_detached: ContextVar[bool] = ContextVar("safepoint_detached", default=False)


@contextmanager
def detached() -> Iterator[None]:
    """Start things that belong to the application and not to the current operation: a browser, a pool, a client.

    A stop of the operation does not end what is started inside the block, and its receipt does not list it.
    """
    token = _detached.set(True)
    try:
        yield
    finally:
        _detached.reset(token)


def account_here() -> Account | None:
    """The account of the running code; None if it has none, or runs inside `detached()`."""
    return None if _detached.get() else current_account.get()


def is_detached() -> bool:
    """Whether the running code is inside `detached()`."""
    return _detached.get()


def reset_account(token: "Token[Account | None]") -> None:
    """Undo `current_account.set()`."""
    try:
        current_account.reset(token)
    except ValueError:
        pass  # reset in another context: the coroutine is being garbage-collected after its loop was closed


def accounted(fn: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function that will run in another thread, for the current account if there is one."""
    account = account_here()
    return fn if account is None else account.thread(fn)


def report_survivors(pids: Iterable[int]) -> None:
    """Report processes that outlived the program which started them to the current account."""
    account = current_account.get()
    if account is not None:
        account.survivors(pids)
