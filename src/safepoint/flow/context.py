"""Owns what a node is given beside the state. Knows nothing of routes."""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, overload

from ..run.context import Context
from ..run.journal import ChildProcessJournal
from ..run.once import once
from .execution import FlowExecution, NodeError
from .position import Position
from .state import clone

__all__ = ["NodeContext"]

Services = TypeVar("Services")
T = TypeVar("T")


class NodeContext(Context, Generic[Services]):
    """The context of one attempt of one node.

    services         what the caller gave to `execute`
    attempt          1 for the first
    idempotency_key  the same in every attempt of this visit, and after a resume: for effects that must happen once
    """

    __slots__ = ("_calls", "_execution", "_pending", "_place", "_working", "attempt", "idempotency_key", "services")

    services: Services
    attempt: int
    idempotency_key: str

    def _prepare(self, execution: FlowExecution, place: Position | None, working: Any, attempt: int, key: str) -> None:
        self.services = execution.services
        self.attempt = attempt
        self.idempotency_key = key
        self._execution = execution
        self._place = place  # None: there is no state to keep, as for an item of a scatter
        self._working = working
        self._calls = 0
        self._pending: list[NodeError] = []

    def inner_key(self, name: str) -> str:
        """The key of a flow that the node calls: one per call, the same ones when the node is repeated."""
        self._calls += 1
        return f"{self.idempotency_key}/{name}#{self._calls}"

    @overload
    async def once(self, key: str, fn: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    @overload
    async def once(self, key: str, fn: Callable[[], T]) -> T: ...

    async def once(self, key: str, fn: Callable[[], Any]) -> Any:
        """Run a part of this node once, even if the node runs again: what `fn` returned is recorded under `key`.

        With a store it is in the checkpoint before this returns. It is the same for all attempts of one visit.

        Args:
            key: The name of the part, the same each time the node runs.
            fn: A function without parameters, sync (it runs in a thread) or async. It returns plain JSON data.

        Returns:
            What `fn` returned, now or then.

        Raises:
            AbortError: The run was stopped before the part had a result.
            UsageError: The result is not plain JSON data.
        """
        return await once(self, self.idempotency_key, key, fn)

    def collect_error(self, code: str, message: str, recoverable: bool = True) -> None:
        """Note that something went wrong that the flow can live with. After an abort nothing is believed."""
        if not self.signal.aborted:
            self._pending.append(
                NodeError(
                    code=code,
                    message=message,
                    operation="/".join(self.path[self._execution.depth :]),
                    recoverable=recoverable,
                    timestamp=self.clock.time(),
                )
            )

    async def safe_point(self) -> None:
        """Keep what the node has written to the state so far; stop here if a stop waits. Raises: AbortError.

        A node that is stopped or fails later begins again with the state as it was here.
        """
        self.signal.raise_if_aborted()
        self.raise_if_abandoned("safe_point()")
        if self._place is not None:
            self._place.state = clone(self._working)
        self._keep_errors()
        failure = await self._execution.save(self)
        if failure is not None:
            raise failure
        await super().safe_point()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        carry, about = super().__reduce__()
        return _carried, (
            carry,
            about,
            self._execution.key,
            self._execution.depth,
            self.services,
            self.attempt,
            self.idempotency_key,
        )

    def _keep_errors(self) -> None:
        if self._pending:
            self._execution.errors += self._pending
            self._pending = []


def _carried(
    carry: Callable[..., Context],
    about: tuple[object, ...],
    key: str,
    depth: int,
    services: Any,
    attempt: int,
    visit: str,
) -> NodeContext[Any]:
    """In another process: there is no state to keep at a safe point, and no checkpoint to write."""
    ctx = carry(*about).child("", context_class=NodeContext)
    assert isinstance(ctx, NodeContext)
    ctx.path = ctx.path[:-1]
    ctx.journal = ChildProcessJournal()
    ctx._prepare(FlowExecution(key, depth, services), None, None, attempt, visit)
    return ctx
