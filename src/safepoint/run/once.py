"""`ctx.once(key, fn)`: a part of a tool or node whose result is recorded, so that the part does not run again."""

import inspect
import json
from collections.abc import Awaitable, Callable

from ..errors import UsageError
from .context import Context
from .events import PartRecorded
from .journal import part_name
from .leaf import leaf, name_of

__all__ = ["once"]


async def once(ctx: Context, scope: str, key: str, fn: Callable[[], object]) -> object:
    """Run `fn` as a leaf and record what it returns. If a result is on record already, return that instead.

    Args:
        ctx: The context of the tool call or node.
        scope: Its idempotency key.
        key: The name of the part, the same each time the call or node runs.
        fn: A function without parameters, sync (it runs in a thread) or async. It returns plain JSON data.

    Raises:
        AbortError: The run was stopped before the part had a result.
        UsageError: The result is not plain JSON data, or nothing can be recorded in this process.
    """
    name = part_name(scope, key)
    async with ctx.journal.lock(name):
        if name not in ctx.journal.results:
            text = _json(key, await leaf(ctx, _as_work(fn), name=key))
            ctx.journal.results[name] = text
            ctx.emit(PartRecorded(**ctx.stamp(), scope=scope, key=key, value=text))
            await ctx.journal.flush(ctx)
    # Read the JSON back even the first time. Code that relies on the original object, such as a tuple instead of a
    # list, then fails at once, and not only after a crash.
    result: object = json.loads(ctx.journal.results[name])
    return result


def _as_work(fn: Callable[[], object]) -> Callable[[Context, None], object]:
    """Wrap `fn` as a leaf calls it."""

    async def call_async(ctx: Context, value: None) -> object:
        result = fn()
        assert isinstance(result, Awaitable)
        return await result

    def call_sync(ctx: Context, value: None) -> object:
        return fn()

    call: Callable[[Context, None], object] = call_async if inspect.iscoroutinefunction(fn) else call_sync
    call.__name__ = name_of(fn)
    call.__wrapped__ = fn  # type: ignore[attr-defined]  # an interrupt looks for the file of the wrapped function
    return call


def _json(key: str, value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise UsageError(
            f"ctx.once({key!r}) must return plain JSON data, so that it can be recorded: {problem}"
        ) from None
    return text
