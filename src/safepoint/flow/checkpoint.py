"""Owns checkpoints: a stopped flow as versioned JSON, from which another process can continue.

Knows nothing of stores.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import UsageError, shorten, text_of
from ..outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.partial_work import FLOW, PartialWork
from ..storage.checkpoints import CheckpointError, Checkpoints, read_back, write_atomically
from .execution import FlowExecution, NodeError
from .graph import Graph, Node, Parallel, Scatter, Step, Subflow
from .position import InnerPosition, ParallelPosition, Position, ScatterPosition, SubflowPosition
from .state import dump, load

if TYPE_CHECKING:
    from .flow_run import FlowResult

__all__ = ["VERSION", "Checkpoint", "CheckpointMismatch", "reason_text"]

S = TypeVar("S")
VERSION = 1


class CheckpointMismatch(CheckpointError):
    """The checkpoint belongs to another flow, or to another shape of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a flow stopped, and with which state. All fields are JSON data.

    Attributes:
        flow: The name of the flow.
        fingerprint: Identifies the shape of the flow.
        shape: The shape of the flow: see `Graph.shape`.
        run_id: The id of the run. A resumed run has the same one.
        cursor: The path of the node that would run next, or of the interrupted one; None at the end.
        place: The position of the flow with its state: see `position_to_data`.
        status: "running", "completed", "aborted", "timed_out", "failed" or "stopped".
        reason: Why the run did not complete, in words.
        executed: The paths of the nodes that have ended, in order.
        errors: What the nodes collected.
        once: The results of `NodeContext.once`, and the conversations of agents inside nodes, as JSON text.
        revision: Of two checkpoints of one run, the one with the higher number is newer.
        completed_at: When the run completed, in seconds since 1970.
        version: The version of this format.
    """

    flow: str
    fingerprint: str
    shape: dict[str, object]
    run_id: str
    cursor: str | None
    place: dict[str, Any]
    status: str
    reason: str | None
    executed: tuple[str, ...] = ()
    errors: tuple[NodeError, ...] = ()
    once: dict[str, str] = field(default_factory=dict)
    revision: int = 0
    completed_at: float | None = None
    version: int = field(default=VERSION)

    @classmethod
    def from_result(cls, result: "FlowResult[S]") -> "Checkpoint":
        """Return the checkpoint of a run that did not complete.

        Raises:
            UsageError: The run completed, or its state cannot be written as JSON.
        """
        if result.cursor is None:
            raise UsageError(f"flow {result.position.graph.name!r} has completed: there is nothing to resume")
        execution = FlowExecution(result.run_id, executed=list(result.executed), errors=list(result.errors))
        execution.once, execution.revision = dict(result.once), result.revision
        return cls.of(result.position, execution, status=result.outcome.status, reason=reason_text(result.outcome))

    @classmethod
    def of(
        cls, position: Position, execution: FlowExecution, *, status: str, reason: str | None = None
    ) -> "Checkpoint":
        """Return the checkpoint of a flow at this position. Raises: UsageError if JSON cannot hold the state."""
        graph = position.graph
        return cls(
            flow=graph.name,
            fingerprint=graph.fingerprint,
            shape=dict(graph.shape),
            run_id=execution.key,
            cursor=position.cursor,
            place=position_to_data(position),
            status=status,
            reason=reason,
            executed=tuple(execution.executed),
            errors=tuple(execution.errors),
            once=execution.own_parts(),
            revision=execution.revision,
        )

    @property
    def completed(self) -> bool:
        """Whether the run has completed, so that there is nothing to continue."""
        return self.status == "completed"

    def execution(self) -> FlowExecution:
        """Return what the resumed run has in common with the stopped one."""
        execution = FlowExecution(self.run_id, executed=list(self.executed), errors=list(self.errors))
        execution.once, execution.revision = dict(self.once), self.revision
        return execution

    def to_kept(self) -> PartialWork:
        """Return it in the form that a stopped tool call keeps. `from_kept` reads it back."""
        return PartialWork(FLOW, self.to_json())

    @classmethod
    def from_kept(cls, kept: PartialWork) -> "Checkpoint":
        """Read what a stopped tool call kept.

        Raises:
            CheckpointError: It cannot be read. The text says why.
            UsageError: It was not written by a flow.
        """
        if kept.kind != FLOW:
            raise UsageError(f"a flow cannot go on from what work of the kind {kept.kind!r} has left behind")
        return cls.from_json(kept.data, source="what the stopped tool call has left behind")

    def to_json(self) -> str:
        """Return it as JSON text. `from_json` reads it back."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "this checkpoint") -> "Checkpoint":
        """Read JSON text.

        Args:
            text: The text.
            source: Where it came from, for messages.

        Raises:
            CheckpointError: It cannot be read. The text says why.
        """
        try:
            data = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError(f"it is not a JSON object but {type(data).__name__}")
            if data.get("version") != VERSION:
                raise ValueError(f"it is of version {data.get('version')!r}; this reader knows {VERSION}")
            known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
            checkpoint: Checkpoint = TypeAdapter(cls).validate_python(known)
        except (ValueError, ValidationError) as problem:
            raise CheckpointError(f"{source} cannot be read, and was left as it is: {problem}") from problem
        return checkpoint

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file. If that fails, the file still holds what it held before."""
        write_atomically(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Checkpoint":
        """Read it from a file. Raises: CheckpointError; FileNotFoundError."""
        text = read_back(path)
        if text is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return cls.from_json(text, source=os.fspath(path))

    @classmethod
    async def recall(cls, checkpoints: Checkpoints, key: str) -> "Checkpoint | None":
        """Read it from a store. None if there is none under this key. Raises: CheckpointError."""
        text = await checkpoints.load(key)
        return None if text is None else cls.from_json(text, source=f"checkpoint {key!r}")

    def final_position_in(self, graph: Graph) -> Position:
        """Return the last position of a completed run.

        The flow may have another shape by now, because nothing of it is run.

        Raises:
            CheckpointMismatch: The checkpoint is of another flow, or its state cannot be read any more.
        """
        if self.flow != graph.name:
            raise CheckpointMismatch(f"this checkpoint is of flow {self.flow!r}, not of {graph.name!r}")
        try:
            return position_from_data(graph, {**self.place, "node": None})
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"flow {graph.name!r} has completed (run {self.run_id}), and its result cannot be read: {problem}"
            ) from problem

    def position_in(self, graph: Graph, migrate: "Callable[[Checkpoint], Checkpoint] | None" = None) -> Position:
        """Return the position in the flow as it is now.

        Args:
            graph: The flow.
            migrate: Turns a checkpoint of an older shape of the flow into one of today's.

        Raises:
            CheckpointMismatch: The checkpoint does not fit. The text says what has changed.
        """
        checkpoint = self
        if checkpoint.flow != graph.name and migrate is None:
            raise CheckpointMismatch(f"this checkpoint is of flow {self.flow!r}, not of {graph.name!r}")
        if checkpoint.fingerprint != graph.fingerprint:
            if migrate is None:
                raise CheckpointMismatch(
                    f"flow {graph.name!r} has changed since this checkpoint was made: {_changes(self.shape, graph)}."
                    " Resume it with the old flow, or give migrate=function(checkpoint)"
                )
            checkpoint = replace(migrate(checkpoint), fingerprint=graph.fingerprint)
        try:
            return position_from_data(graph, checkpoint.place)
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(f"this checkpoint does not fit flow {graph.name!r}: {problem}") from problem


def reason_text(outcome: Outcome[S]) -> str | None:
    """Return why a flow did not complete, in words, or None if it did."""
    match outcome:
        case Failed(error):
            return shorten(text_of(error))
        case Aborted(reason) | TimedOut(reason):
            return str(reason)
        case Completed():
            return None


def _changes(old: dict[str, object], graph: Graph) -> str:
    new = json.loads(json.dumps(graph.shape))
    changes = [f"{name!r} is new" for name in new.keys() - old.keys()]
    changes += [f"{name!r} is gone" for name in old.keys() - new.keys()]
    changes += [f"{name!r} has other routes or parts" for name in old.keys() & new.keys() if old[name] != new[name]]
    return ", ".join(sorted(changes)) or "it starts elsewhere"


def position_to_data(position: Position) -> dict[str, object]:
    """Return a position as JSON data. Raises: UsageError if JSON cannot hold the state."""
    data: dict[str, object] = {"node": position.node, "step": position.step, "state": _dumped_state(position)}
    match position.inside:
        case None:
            if position.end is not None:
                data["end"] = position.end
        case SubflowPosition(inner):
            data["inside"] = position_to_data(inner)
        case ParallelPosition(branches):
            data["inside"] = {name: position_to_data(branch) for name, branch in branches.items()}
        case ScatterPosition() as progress:
            data["inside"] = {
                "watermark": progress.watermark,
                "ahead": sorted(progress.ahead),
                "results": _dumped_results(position, progress),
                "places": {str(index): position_to_data(item) for index, item in progress.positions.items()},
                "pulled": progress.pulled,
            }
    return data


def _dumped_state(position: Position) -> object:
    kind, actual = position.graph.state_type, type(position.state)
    if _type_would_change(kind, actual):
        raise UsageError(
            f"the state of flow {position.graph.name!r} is a {actual.__name__}, and would come back as"
            f" {_type_name(kind)}: give Flow({position.graph.name!r}, …, state={actual.__name__})"
        )
    return dump(position.state)


def _dumped_results(position: Position, progress: ScatterPosition) -> dict[str, object]:
    node = position.graph.nodes[position.node or ""]
    assert isinstance(node, Scatter)  # only a scatter has a ScatterPosition inside
    for result in progress.results.values():
        if isinstance(node.body, Step) and _type_would_change(node.body.result_type, type(result)):
            raise UsageError(
                f"node {node.name!r}: its body returns a {type(result).__name__}, which would come back as"
                f" {_type_name(node.body.result_type)}: annotate what the body returns"
            )
    return {str(index): dump(result) for index, result in progress.results.items()}


def _type_would_change(kind: object, actual: type) -> bool:
    """Whether a value of the type `actual` would have another type after it is read as `kind`."""
    if kind is actual or not isinstance(kind, type):
        return False
    return any(is_dataclass(each) or issubclass(each, BaseModel) for each in (actual, kind))


def _type_name(kind: object) -> str:
    return f"a {kind.__name__}" if isinstance(kind, type) and kind is not object else "plain JSON data"


def position_from_data(
    graph: Graph, data: Mapping[str, object], kind: object = None, outer_visits: str = ""
) -> Position:
    """Read what `position_to_data` has written.

    Args:
        graph: The flow.
        data: The position as JSON data.
        kind: The type of the state, if the graph does not know it.
        outer_visits: See `Position`.

    Raises:
        ValueError: The data does not fit the flow. The text says what. KeyError and TypeError are possible as well.
    """
    name, end = data["node"], data.get("end")
    if name is not None and (not isinstance(name, str) or name not in graph.nodes):
        raise ValueError(f"it is at {name!r}, which is not a node of {graph.name!r}")
    if end is not None and not isinstance(end, str):
        raise ValueError(f"its end is {end!r}, which is not a name")
    kind = kind if graph.state_type is None else graph.state_type
    if kind is None:
        raise ValueError(f"the type of the state is not known: give Flow({graph.name!r}, …, state=YourState)")
    position = Position(graph, name, load(kind, data["state"]), load(int, data["step"]), end, None, outer_visits)
    if name is not None and data.get("inside") is not None:
        inside = _json_object(data["inside"])
        position.inside = _inner_from_data(graph.nodes[name], inside, kind, position.inner_prefix)
    return position


def _inner_from_data(node: Node, data: Mapping[str, object], kind: object, outer_visits: str) -> InnerPosition:
    match node:
        case Step():
            raise ValueError(f"it is inside {node.name!r}, which is not a composite")
        case Subflow(child=child):
            inner_kind = kind if node.into is None else None
            return SubflowPosition(position_from_data(child.graph(), data, inner_kind, outer_visits))
        case Parallel(branches=branches):
            graphs = {key: child.graph() for key, child in branches.items()}
            return ParallelPosition(
                {
                    key: position_from_data(graph, _json_object(data[key]), kind, outer_visits)
                    for key, graph in graphs.items()
                }
            )
        case Scatter(body=body):
            graph = None if isinstance(body, Step) else body.graph()
            result_kind = body.result_type if isinstance(body, Step) else body.graph().state_type
            results, positions = _json_object(data["results"]), _json_object(data["places"])
            return ScatterPosition(
                load(int, data["watermark"]),
                load(set[int], data["ahead"]),
                {int(index): load(result_kind, result) for index, result in results.items()},
                {}
                if graph is None
                else {
                    int(index): position_from_data(graph, _json_object(item), None, outer_visits)
                    for index, item in positions.items()
                },
                load(int, data["pulled"]),
            )


def _json_object(data: object) -> Mapping[str, object]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r} is not a JSON object")
    return data
