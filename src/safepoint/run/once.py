"""Owns `ctx.once(key, fn)`: a part of a tool or node whose result is recorded, so that the part does not run again."""

import inspect
import json
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from .context import Context
from .events import PartRecorded
from .journal import part_name
from .leaf import leaf, name_of

__all__ = ["once"]


async def once(ctx: Context, scope: str, key: str, fn: Callable[[], Any]) -> Any:
    """Run `fn` as a leaf and record what it returned; if that is on record already, give it back instead.

    Args:
        ctx: The context of the tool call or node.
        scope: Its idempotency key.
        key: The name of the part, the same each time the call or node runs.
        fn: A function without parameters, sync (it runs in a thread) or async. It returns plain JSON data.

    Raises:
        AbortError: The run was stopped before the part had a result.
        UsageError: The result is not plain JSON data, or nothing can be recorded from here.
    """
    name = part_name(scope, key)
    async with ctx.journal.lock(name):
        if name not in ctx.journal.results:
            text = _json(key, await leaf(ctx, _without_arguments(fn), name=key))
            ctx.journal.results[name] = text
            ctx.emit(PartRecorded(**ctx.stamp(), scope=scope, key=key, value=text))
            await ctx.journal.flush(ctx)
    # Read back also the first time: code that works only with what was never JSON fails at once, not after a crash.
    return json.loads(ctx.journal.results[name])


def _without_arguments(fn: Callable[[], Any]) -> Any:
    """`fn` as a leaf calls it."""

    async def awaited(ctx: Context, value: object) -> Any:
        return await fn()

    def called(ctx: Context, value: object) -> Any:
        return fn()

    call: Any = awaited if inspect.iscoroutinefunction(fn) else called
    call.__name__ = name_of(fn)
    call.__wrapped__ = fn  # an interrupt looks for the file it is in
    return call


def _json(key: str, value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise UsageError(
            f"ctx.once({key!r}) must return plain JSON data, so that it can be recorded: {problem}"
        ) from None
    return text
