"""Owns the thread pool behind `asyncio.to_thread` and `run_in_executor(None, …)`: each call on the account of its leaf.

asyncio ends the *wait* for such a call at once; the thread goes on, and nobody would know. This pool is the usual one;
only where a leaf is the caller, the function gets a line in the receipt and is interrupted like a synchronous leaf.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ...abort.accounting import accounted

__all__ = ["AccountingExecutor", "install_executor"]

T = TypeVar("T")
# What asyncio calls the threads of the pool that it makes by itself.
ASYNCIO_PREFIX = "asyncio"


class AccountingExecutor(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that puts what it runs on the account of the leaf that submits it."""

    def __init__(self, before: ThreadPoolExecutor | None = None) -> None:
        super().__init__(thread_name_prefix=ASYNCIO_PREFIX)
        self._before = before  # the pool in whose place this one stands, which may still be at work

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        return super().submit(accounted(fn), *args, **kwargs)

    def shutdown(self, *args: Any, **options: Any) -> None:
        super().shutdown(*args, **options)
        if self._before is not None:
            self._before.shutdown(*args, **options)


def install_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Make it the loop's default, unless the program has chosen one of its own.

    Whether it has, uvloop does not say; there, and with a pool of the program's own, a call that is left behind is
    found by what its caller waited for (`leftovers.py`), and is named but not interrupted.
    """
    present: Any = getattr(loop, "_default_executor", loop)
    if present is None:
        loop.set_default_executor(AccountingExecutor())
    elif type(present) is ThreadPoolExecutor and present._thread_name_prefix == ASYNCIO_PREFIX:
        loop.set_default_executor(AccountingExecutor(present))
