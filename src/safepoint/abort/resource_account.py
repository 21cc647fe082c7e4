"""Owns how code that starts threads and programs tells the operation around it. Knows nothing of what that is.

The layer above sets `current_account` around each operation. What runs in a thread or leaves a process behind looks
there, so that the operation's receipt can name it.
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
    "report_survivors",
    "reset_account",
]

T = TypeVar("T")


class Account(Protocol):
    """What an operation wants to know of what it starts."""

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """A function is about to run in another thread: what to run instead, which says when it begins and ends."""
        ...

    def helper(self, fn: Callable[..., T], *, thread: threading.Thread | None = None) -> Callable[..., T]:
        """A function is about to run in a thread that the operation does not await: what to run there instead.

        Args:
            fn: The function.
            thread: The thread, if it is started for this function alone.
        """
        ...

    def survivors(self, pids: Iterable[int]) -> None:
        """These processes came out of a program that has ended, and still run."""
        ...


current_account: ContextVar[Account | None] = ContextVar("safepoint_account", default=None)
_detached: ContextVar[bool] = ContextVar("safepoint_detached", default=False)


@contextmanager
def detached() -> Iterator[None]:
    """What is started inside belongs to the application, not to the leaf: a browser, a pool, a shared client.

    A stop does not end it, and the receipt does not list it.
    """
    token = _detached.set(True)
    try:
        yield
    finally:
        _detached.reset(token)


def account_here() -> Account | None:
    """The account on which the running code starts things; None if there is none, or inside of `detached()`."""
    return None if _detached.get() else current_account.get()


def reset_account(token: "Token[Account | None]") -> None:
    """Undo `current_account.set()`."""
    try:
        current_account.reset(token)
    except ValueError:
        pass  # another context: a coroutine whose loop is gone, being collected


def accounted(fn: Callable[..., T]) -> Callable[..., T]:
    """The function as it is to be called in another thread: on the account of the operation that starts it."""
    account = account_here()
    return fn if account is None else account.thread(fn)


def report_survivors(pids: Iterable[int]) -> None:
    """Tell the operation around this code of processes that outlived the program they came from."""
    account = current_account.get()
    if account is not None:
        account.survivors(pids)
