"""Owns functions that a leaf passes to other threads through the standard library: each is put on the leaf's account.

- `loop.run_in_executor`, and so `asyncio.to_thread`, with any `ThreadPoolExecutor`. A cancellation ends only the *wait*
  for such a call; its thread continues. On the account, the function is interrupted like a synchronous leaf.
- `ThreadPoolExecutor.submit` and, if Python has no audit event for it, `Thread.start`. The function is a helper: it is
  not interrupted, because it may work for others, but programs that it starts belong to the leaf.

Code outside of leaves pays for reading one context variable.
"""

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Protocol, TypeVar

from ...abort.resource_account import account_here, current_account

__all__ = ["install_executor", "install_helpers", "is_helper"]

T = TypeVar("T")
# Modules whose threads serve many callers, one after the other. Their functions are accounted for individually.
_SERVING = ("concurrent.futures", "safepoint", "anyio", "asyncio")


def install_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Put functions that are passed to `loop.run_in_executor` on the account of the leaf that passes them."""
    present = loop.run_in_executor
    if isinstance(present, _RunInExecutor):
        return
    try:
        loop.run_in_executor = _RunInExecutor(present)  # type: ignore[method-assign]
    except AttributeError:
        pass  # the loop does not accept attributes: calls that remain are found by `executor_call_behind`


class _Original(Protocol):
    """`loop.run_in_executor` as the loop defines it."""

    def __call__(self, executor: Executor | None, func: Callable[..., T], *args: object) -> "asyncio.Future[T]": ...


class _RunInExecutor:
    """The replacement for `run_in_executor` of one loop."""

    def __init__(self, original: _Original) -> None:
        self._original = original

    def __call__(self, executor: Executor | None, func: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        account = account_here()
        if account is None or not (executor is None or isinstance(executor, ThreadPoolExecutor)):
            return self._original(executor, func, *args)
        call: Callable[..., T] = functools.partial(copy_context().run, account.thread(func))
        token = current_account.set(None)  # the function is on the account, so `submit` must not add it again
        try:
            return self._original(executor, call, *args)
        finally:
            current_account.reset(token)


def install_helpers() -> None:
    """Put functions that leaves pass to pools on their accounts. Must be called once per process."""
    ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]
    if sys.version_info < (3, 12):
        threading.Thread.start = _starting(threading.Thread.start)  # type: ignore[method-assign, assignment]


def _submitting(submit: Callable[..., "Future[T]"]) -> Callable[..., "Future[T]"]:
    @functools.wraps(submit)
    def accounted_submit(
        self: ThreadPoolExecutor, fn: Callable[..., T], /, *args: object, **kwargs: object
    ) -> "Future[T]":
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
    """Whether a thread that a leaf starts works for this leaf alone, and is not a thread of a pool."""
    target: object = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return not any(module.startswith(_SERVING) for module in modules)
