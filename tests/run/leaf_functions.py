"""Synchronous functions for leaves: they stand in a file of their own, as a user's tools do."""

import os
import time
from typing import Any

from safepoint.abort import current_signal


def die(ctx: object, value: object) -> None:
    os._exit(3)


def naive(ctx: Any, effects: list[str]) -> None:
    """Ignores its signal, as most tools do."""
    effects.append("begun")
    try:
        while True:
            time.sleep(0.01)  # real time: a tool that only sleeps
            effects.append("effect")
    finally:
        effects.append("cleaned")


def polite(ctx: Any, effects: list[str]) -> str:
    effects.append("begun")
    while not ctx.signal.wait(30):
        pass
    effects.append("saw it")
    return "value"


def ambient(ctx: Any, value: object) -> bool:
    return current_signal() is ctx.signal


def double(ctx: Any, value: int) -> int:
    return 2 * value


def progressing(ctx: Any, value: object) -> str:
    ctx.progress("halfway", 0.5)
    return "done"


def process_naive(ctx: Any, path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(0.01)  # real time: a tool that only sleeps


def process_double(ctx: Any, value: int) -> tuple[int, int, str]:
    return 2 * value, os.getpid(), ctx.operation


def spinning(ctx: Any, truth: Any) -> None:
    """Ignores its signal and keeps the processor busy."""
    with truth:
        while True:
            time.sleep(0.002)  # real time: a tool that only sleeps
