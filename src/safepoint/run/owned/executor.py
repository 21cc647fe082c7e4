"""Owns functions that a leaf hands to other threads through the standard library: each is put on the leaf's account.

- `loop.run_in_executor`, and so `asyncio.to_thread`, with any `ThreadPoolExecutor`. asyncio ends the *wait* for such a
  call at once; the thread goes on, and nobody would know. Here the function is interrupted like a synchronous leaf.
- `ThreadPoolExecutor.submit` and, where Python has no audit event for it, `Thread.start`. The function is a helper: it
  is not interrupted, for it may serve others by now; but what it starts is the leaf's.

Whoever is no leaf pays for one look at a context variable.
"""

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from ...abort.resource_account import account_here, current_account

__all__ = ["install_executor", "install_helpers", "is_helper"]

T = TypeVar("T")
# Threads that serve many callers one after the other: what they do is written down elsewhere.
_SERVING = ("concurrent.futures", "safepoint", "anyio", "asyncio")


def install_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Have what is given to `loop.run_in_executor` put on the account of the leaf that gives it."""
    present = loop.run_in_executor
    if isinstance(present, _RunInExecutor):
        return
    try:
        loop.run_in_executor = _RunInExecutor(present)  # type: ignore[method-assign, assignment]
    except AttributeError:
        pass  # a loop that takes no attributes: what is left behind there is found by what its caller waited for


class _RunInExecutor:
    """`loop.run_in_executor` of one loop."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self._before = before

    def __call__(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        account = account_here()
        if account is None or not (executor is None or isinstance(executor, ThreadPoolExecutor)):
            return self._before(executor, func, *args)
        call = functools.partial(copy_context().run, account.thread(func))
        token = current_account.set(None)  # it is on the account already: `submit` need not see to it
        try:
            return self._before(executor, call, *args)
        finally:
            current_account.reset(token)


def install_helpers() -> None:
    """Have functions that leaves give to pools put on their account. To be called once per process."""
    ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]
    if sys.version_info < (3, 12):
        threading.Thread.start = _starting(threading.Thread.start)  # type: ignore[method-assign, assignment]


def _submitting(submit: Callable[..., "Future[T]"]) -> Callable[..., "Future[T]"]:
    @functools.wraps(submit)
    def accounted_submit(self: ThreadPoolExecutor, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        account = account_here()
        return submit(self, fn if account is None else account.helper(fn), *args, **kwargs)

    return accounted_submit


def _starting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def accounted_start(self: threading.Thread) -> None:
        account = account_here()
        if account is not None and is_helper(self):
            self.run = account.helper(self.run, thread=self)  # type: ignore[method-assign]
        start(self)

    return accounted_start


def is_helper(thread: threading.Thread) -> bool:
    """Whether a thread that a leaf starts works for this leaf, and not for whoever comes next."""
    target: Any = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return not any(module.startswith(_SERVING) for module in modules)
