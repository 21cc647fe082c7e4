"""Owns adding and calling many listeners. Each function returns the seconds for one listener.

A few listeners at a time are added and called, again and again, until there were `TOTAL` of them.
"""

from collections.abc import Callable

from safepoint.abort import AbortController

from ..measure import wall

__all__ = ["TOTAL", "add", "list_add", "list_tell", "tell"]

TOTAL = 100_000


def callbacks(size: int) -> list[Callable[[], None]]:
    return [lambda: None for _ in range(size)]


def add(size: int) -> float:
    spent = 0.0
    for _ in range(TOTAL // size):
        signal, given = AbortController().signal, callbacks(size)
        start = wall()
        for callback in given:
            signal.add_listener(callback)
        spent += wall() - start
    return spent / TOTAL


def tell(size: int) -> float:
    spent = 0.0
    for _ in range(TOTAL // size):
        controller = AbortController()
        for callback in callbacks(size):
            controller.signal.add_listener(callback)
        start = wall()
        controller.abort()
        spent += wall() - start
    return spent / TOTAL


def list_add(size: int) -> float:
    """The floor: a list that is appended to."""
    spent = 0.0
    for _ in range(TOTAL // size):
        kept, given = [], callbacks(size)
        start = wall()
        for callback in given:
            kept.append(callback)  # noqa: PERF402  # one by one, as listeners come
        spent += wall() - start
    return spent / TOTAL


def list_tell(size: int) -> float:
    """The floor: a list whose items are called."""
    spent = 0.0
    for _ in range(TOTAL // size):
        given = callbacks(size)
        start = wall()
        for callback in given:
            callback()
        spent += wall() - start
    return spent / TOTAL
