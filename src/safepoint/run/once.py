"""The context of work that may run again, and `ctx.once(key, fn)`: a part of it whose result is recorded.

It does not know what the work is: a tool call, a node of a flow.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import ClassVar, TypeVar, Unpack, overload
from urllib.parse import quote

from ..errors import UsageError
from .context import ChildContext, ChildOptions, Context
from .journal import part_name
from .leaf import leaf, name_of

__all__ = ["RepeatableContext", "repeatable_around", "running_repeatable"]

T = TypeVar("T")

# The work that may run again and in which the running code is. For code that is not given its context.
running_repeatable: ContextVar["RepeatableContext | None"] = ContextVar("safepoint_repeatable", default=None)
# The part under `ctx.once` in which the running code is: the context and the name of the part.
_running_part: ContextVar["tuple[RepeatableContext, str] | None"] = ContextVar("safepoint_part", default=None)


class RepeatableContext(ChildContext):
    """The context of work that may run again, after a stop or a crash.

    Args:
        outer: The context of the work around it.
        name: The name of the work.
        idempotency_key: Its key.
        **options: What differs from `outer`: see `ChildContext`.

    Attributes:
        continues_from_kept: Whether the work is called again with what it had kept, such as its checkpoint.
        idempotency_key: The same each time the work runs: for effects that must happen once.
        records_agents: Whether an agent that runs inside records its conversation in the journal, message by message,
            and goes on from there when this runs again.
    """

    __slots__ = ("_inner_counts", "idempotency_key", "records_agents")
    continues_from_kept: ClassVar[bool] = False

    def __init__(
        self, outer: Context, name: str | None, *, idempotency_key: str, **options: Unpack[ChildOptions]
    ) -> None:
        super().__init__(outer, name, **options)
        self.idempotency_key = idempotency_key
        self.records_agents = False
        self._inner_counts: dict[str, int] = {}

    @property
    def is_retry(self) -> bool:
        """Whether the work runs again because it has failed, and not because it was stopped."""
        return False

    def inner_key(self, name: str) -> str:
        """Return a key for work inside this: a new one each time, and the same ones when this runs again.

        Work inside a part under `once` is counted for itself. A part that has a result does not run again, so it must
        not shift the keys of the work after it.
        """
        part = _running_part.get()
        scope = self.idempotency_key
        if part is not None and part[0] is self:
            scope = part_name(scope, part[1])
        number = self._inner_counts[scope] = self._inner_counts.get(scope, 0) + 1
        return f"{scope}/{quote(name, safe='')}#{number}"

    @overload
    async def once(self, key: str, fn: Callable[[], Awaitable[T]]) -> T: ...

    @overload
    async def once(self, key: str, fn: Callable[[], T]) -> T: ...

    async def once(self, key: str, fn: Callable[[], object]) -> object:
        """Run a part of the work once, even if the work runs again: what `fn` returned is recorded under `key`.

        It is on record before this returns: in the log of a session, or in the checkpoint of a flow that has a store.

        Args:
            key: The name of the part, the same each time the work runs.
            fn: A function without parameters, sync (it runs in a thread) or async. It returns plain JSON data.

        Returns:
            What `fn` returned, this time or when the work ran before.

        Raises:
            AbortError: The run was stopped before the part had a result.
            UsageError: The result is not plain JSON data, or nothing can be recorded in this process.
        """
        journal, scope = self.journal, self.idempotency_key
        name = part_name(scope, key)
        async with journal.lock(name):
            if name not in journal.results:
                journal.record(self, scope, key, _json(key, await self._run_part(key, fn)))
                await journal.flush(self)
        # Read the JSON back even the first time. Code that relies on the original object, such as a tuple instead of a
        # list, then fails at once, and not only after a crash.
        result: object = json.loads(journal.results[name])
        return result

    async def _run_part(self, key: str, fn: Callable[[], object]) -> object:
        self._inner_counts.pop(part_name(self.idempotency_key, key), None)  # it may have failed before: count anew
        before = _running_part.get()
        _running_part.set((self, key))
        try:
            return await leaf(self, _as_work(fn), name=key)
        finally:
            _running_part.set(before)


def repeatable_around(ctx: Context | None) -> RepeatableContext | None:
    """Return the context of the work that may run again and that is around this context.

    Args:
        ctx: The context. None for code that is not given one: then the work around the running code counts.
    """
    if isinstance(ctx, RepeatableContext):
        return ctx
    running = running_repeatable.get()
    # A run of its own, such as a turn of a session, has its own record, even if it was started inside a node.
    return running if running is None or ctx is None or ctx.run_id == running.run_id else None


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
