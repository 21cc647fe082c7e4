"""An event loop in a thread of its own, for tests that must not run on one: browsers, fuzzers, child processes."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS = 45.0


class Background:
    """A loop that lives until `close()`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._entered = AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = SECONDS) -> T:
        """Run this there, and wait for it here."""

        async def bounded() -> T:
            async with asyncio.timeout(seconds):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(seconds + 10)

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter this; it is left when everything is closed."""
        return self.run(self._entered.enter_async_context(manager))

    def close(self) -> None:
        self.run(self._entered.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *about: object) -> None:
        self.close()


def in_background(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on the loop of its argument `lab`, which has a `background`."""

    @functools.wraps(test)
    def runs(**kwargs: Any) -> None:
        kwargs["lab"].background.run(test(**kwargs))

    return runs
