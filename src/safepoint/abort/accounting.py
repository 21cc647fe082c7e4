"""Owns how code that starts threads and programs tells the operation around it. Knows nothing of what that is.

The layer above sets `current_account` around each operation. What runs in a thread or leaves a process behind looks
there, so that the operation's receipt can name it.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from typing import Protocol, TypeVar

__all__ = ["Account", "accounted", "current_account", "report_survivors", "reset_account"]

T = TypeVar("T")


class Account(Protocol):
    """What an operation wants to know of what it starts."""

    def thread(self, fn: Callable[..., T]) -> Callable[..., T]:
        """A function is about to run in another thread: what to run instead, which says when it begins and ends."""
        ...

    def survivors(self, pids: Iterable[int]) -> None:
        """These processes came out of a program that has ended, and still run."""
        ...


current_account: ContextVar[Account | None] = ContextVar("safepoint_account", default=None)


def reset_account(token: "Token[Account | None]") -> None:
    """Undo `current_account.set()`."""
    try:
        current_account.reset(token)
    except ValueError:
        pass  # another context: a coroutine whose loop is gone, being collected


def accounted(fn: Callable[..., T]) -> Callable[..., T]:
    """The function as it is to be called in another thread: on the account of the operation that starts it."""
    account = current_account.get()
    return fn if account is None else account.thread(fn)


def report_survivors(pids: Iterable[int]) -> None:
    """Tell the operation around this code of processes that outlived the program they came from."""
    account = current_account.get()
    if account is not None:
        account.survivors(pids)
