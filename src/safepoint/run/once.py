"""The context of work that may run again, and `ctx.once(key, fn)`: a part of it whose result is recorded.

It does not know what the work is: a tool call, a node of a flow.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import ClassVar, TypeVar, Unpack, overload
from urllib.parse import quote

from ..abort.resource_account import current_account
from ..errors import UsageError
from .context import ChildContext, ChildOptions, Context
from .journal import part_name
from .leaf import leaf, name_of
from .leaf_run import LeafRun

__all__ = ["RepeatableContext", "running_repeatable"]

T = TypeVar("T")

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
        self._inner_counts: dict[str, int] | None = None  # most work has no agents or flows inside

    @property
    def repeatable(self) -> "RepeatableContext":
        """This context."""
        return self  # not stored, because a cycle of references would leave each context to the garbage collector

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
        if self._inner_counts is None:
            self._inner_counts = {}
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
        if self._inner_counts is not None:  # the part may have failed before: count anew
            self._inner_counts.pop(part_name(self.idempotency_key, key), None)
        before = _running_part.get()
        _running_part.set((self, key))
        try:
            return await leaf(self, _as_work(fn), name=key)
        finally:
            _running_part.set(before)


def running_repeatable() -> RepeatableContext | None:
    """Return the context of the innermost work around the running code that may run again.

    It is for code that is not given its context. The account of a leaf is known to everything that the leaf runs.
    """
    account = current_account.get()
    return account.ctx.repeatable if isinstance(account, LeafRun) else None


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
