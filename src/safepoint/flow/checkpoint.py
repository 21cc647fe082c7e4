"""Owns a stopped flow on paper: versioned JSON from which another process goes on. Knows nothing of stores."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import UsageError, shorten, text_of
from ..run.checkpoints import CheckpointError, Checkpoints, read_back, write_atomically
from ..run.outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.partial_work import FLOW, PartialWork
from .execution import FlowExecution, NodeError
from .graph import Graph, Node, Parallel, Scatter, Step, Subflow
from .position import Inside, ParallelAt, Position, ScatterAt, SubflowAt
from .result import FlowResult
from .state import dump, load

__all__ = ["VERSION", "Checkpoint", "CheckpointMismatch"]

S = TypeVar("S")
VERSION = 1


class CheckpointMismatch(CheckpointError):
    """This checkpoint is not of this flow, or of another shape of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a flow stopped, and with which state. All fields are JSON data.

    once          what parts of nodes have returned, as JSON text: see `NodeContext.once`
    revision      of two checkpoints of one run, the one with the higher number is newer
    completed_at  when the run completed, in seconds since 1970
    """

    flow: str
    fingerprint: str
    shape: dict[str, Any]
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
    def from_result(cls, result: FlowResult[S]) -> "Checkpoint":
        """Of a run that did not complete. Raises: UsageError for one that did, or a state that JSON cannot hold."""
        if result.cursor is None:
            raise UsageError(f"flow {result.place.graph.name!r} has completed: there is nothing to resume")
        execution = FlowExecution(result.run_id, executed=list(result.executed), errors=list(result.errors))
        execution.once, execution.revision = dict(result.once), result.revision
        return cls.of(result.place, execution, status=result.outcome.status, reason=why(result.outcome))

    @classmethod
    def of(cls, place: Position, execution: FlowExecution, *, status: str, reason: str | None = None) -> "Checkpoint":
        """Of a flow that is at this place. Raises: UsageError for a state that JSON cannot hold."""
        graph = place.graph
        return cls(
            flow=graph.name,
            fingerprint=graph.fingerprint,
            shape=dict(graph.shape),
            run_id=execution.key,
            cursor=place.cursor,
            place=place_to_data(place),
            status=status,
            reason=reason,
            executed=tuple(execution.executed),
            errors=tuple(execution.errors),
            once={name: text for name, text in execution.once.items() if name.startswith(f"{execution.key}:")},
            revision=execution.revision,
        )

    @property
    def completed(self) -> bool:
        """True: the run has completed, and there is nothing to go on with."""
        return self.status == "completed"

    def execution(self) -> FlowExecution:
        """What the run that goes on from here shares with the one that was stopped."""
        execution = FlowExecution(self.run_id, executed=list(self.executed), errors=list(self.errors))
        execution.once, execution.revision = dict(self.once), self.revision
        return execution

    def to_kept(self) -> PartialWork:
        """As what a tool call leaves behind when it is stopped; `from_kept` reads it back."""
        return PartialWork(FLOW, self.to_json())

    @classmethod
    def from_kept(cls, kept: PartialWork) -> "Checkpoint":
        """Raises: CheckpointError that says what is wrong; UsageError for what no flow has written."""
        if kept.kind != FLOW:
            raise UsageError(f"a flow cannot go on from what work of the kind {kept.kind!r} has left behind")
        return cls.from_json(kept.data, source="what the stopped tool call has left behind")

    def to_json(self) -> str:
        """As text; `from_json` reads it back."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "this checkpoint") -> "Checkpoint":
        """Raises: CheckpointError that says what is wrong with `source`."""
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
        """To a file, which afterwards holds all of it or what it held before."""
        write_atomically(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Checkpoint":
        """From a file. Raises: CheckpointError; FileNotFoundError."""
        text = read_back(path)
        if text is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return cls.from_json(text, source=os.fspath(path))

    @classmethod
    async def recall(cls, checkpoints: Checkpoints, key: str) -> "Checkpoint | None":
        """From a store; None: there is none under this key. Raises: CheckpointError."""
        text = await checkpoints.load(key)
        return None if text is None else cls.from_json(text, source=f"checkpoint {key!r}")

    def end_in(self, graph: Graph) -> Position:
        """The end of a completed run. The flow may look different by now: nothing of it is run.

        Raises: CheckpointMismatch for another flow, or a state that cannot be read any more.
        """
        if self.flow != graph.name:
            raise CheckpointMismatch(f"this checkpoint is of flow {self.flow!r}, not of {graph.name!r}")
        try:
            return place_from_data(graph, {**self.place, "node": None})
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"flow {graph.name!r} has completed (run {self.run_id}), and its result cannot be read: {problem}"
            ) from problem

    def place_in(self, graph: Graph, migrate: "Callable[[Checkpoint], Checkpoint] | None" = None) -> Position:
        """Where this is in the flow as it is now. Raises: CheckpointMismatch that names what has changed."""
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
            return place_from_data(graph, checkpoint.place)
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(f"this checkpoint does not fit flow {graph.name!r}: {problem}") from problem


def why(outcome: Outcome[Any]) -> str | None:
    """Why a flow did not complete, in words; None if it did."""
    match outcome:
        case Failed(error):
            return shorten(text_of(error))
        case Aborted(reason) | TimedOut(reason):
            return str(reason)
        case Completed():
            return None


def _changes(old: dict[str, Any], graph: Graph) -> str:
    new = json.loads(json.dumps(graph.shape))
    told = [f"{name!r} is new" for name in new.keys() - old.keys()]
    told += [f"{name!r} is gone" for name in old.keys() - new.keys()]
    told += [f"{name!r} has other routes or parts" for name in old.keys() & new.keys() if old[name] != new[name]]
    return ", ".join(sorted(told)) or "it starts elsewhere"


def place_to_data(place: Position) -> dict[str, Any]:
    """A place as JSON data. Raises: UsageError for a state that JSON cannot hold."""
    data: dict[str, Any] = {"node": place.node, "step": place.step, "state": _dumped(place)}
    match place.inside:
        case None:
            if place.end is not None:
                data["end"] = place.end
        case SubflowAt(inner):
            data["inside"] = place_to_data(inner)
        case ParallelAt(places):
            data["inside"] = {name: place_to_data(inner) for name, inner in places.items()}
        case ScatterAt() as at:
            data["inside"] = {
                "watermark": at.watermark,
                "ahead": sorted(at.ahead),
                "results": _dumped_results(place, at),
                "places": {str(index): place_to_data(inner) for index, inner in at.places.items()},
                "pulled": at.pulled,
            }
    return data


def _dumped(place: Position) -> Any:
    kind, given = place.graph.state_type, type(place.state)
    if _would_change(kind, given):
        raise UsageError(
            f"the state of flow {place.graph.name!r} is a {given.__name__}, and would come back as"
            f" {_name(kind)}: give Flow({place.graph.name!r}, …, state={given.__name__})"
        )
    return dump(place.state)


def _dumped_results(place: Position, at: ScatterAt) -> dict[str, Any]:
    node = place.graph.nodes[place.node or ""]
    assert isinstance(node, Scatter)  # for the type checker: that is what it is inside of
    for result in at.results.values():
        if isinstance(node.body, Step) and _would_change(node.body.result_type, type(result)):
            raise UsageError(
                f"node {node.name!r}: its body returns a {type(result).__name__}, which would come back as"
                f" {_name(node.body.result_type)}: annotate what the body returns"
            )
    return {str(index): dump(result) for index, result in at.results.items()}


def _would_change(kind: Any, given: type) -> bool:
    """True: what is written as one type would be read as another."""
    if kind is given or not (kind is Any or isinstance(kind, type)):
        return False
    types: list[Any] = [given] if kind is Any else [given, kind]
    return any(is_dataclass(each) or issubclass(each, BaseModel) for each in types)


def _name(kind: Any) -> str:
    return "plain JSON data" if kind is Any else f"a {kind.__name__}"


def place_from_data(graph: Graph, data: dict[str, Any], kind: Any = None, around: str = "") -> Position:
    """Read `place_to_data()` back. Raises: ValueError, KeyError or TypeError that says what does not fit.

    kind    the type of the state, where the graph itself does not know it
    around  as in a Place
    """
    name = data["node"]
    if name is not None and name not in graph.nodes:
        raise ValueError(f"it is at {name!r}, which is not a node of {graph.name!r}")
    kind = kind if graph.state_type is None else graph.state_type
    if kind is None:
        raise ValueError(f"the type of the state is not known: give Flow({graph.name!r}, …, state=YourState)")
    place = Position(graph, name, load(kind, data["state"]), load(int, data["step"]), data.get("end"), None, around)
    if name is not None and data.get("inside") is not None:
        place.inside = _inside_from_data(graph.nodes[name], data["inside"], kind, place.within)
    return place


def _inside_from_data(node: Node, data: dict[str, Any], kind: Any, around: str) -> Inside:
    match node:
        case Step():
            raise ValueError(f"it is inside {node.name!r}, which is not a composite")
        case Subflow(child=child):
            return SubflowAt(place_from_data(child.graph(), data, kind if node.into is None else None, around))
        case Parallel(branches=branches):
            graphs = {key: child.graph() for key, child in branches.items()}
            return ParallelAt({key: place_from_data(each, data[key], kind, around) for key, each in graphs.items()})
        case Scatter(body=body):
            inner = None if isinstance(body, Step) else body.graph()
            kind = body.result_type if isinstance(body, Step) else body.graph().state_type
            results, places = data["results"].items(), data["places"].items()
            return ScatterAt(
                load(int, data["watermark"]),
                load(set[int], data["ahead"]),
                {int(index): load(kind, result) for index, result in results},
                {} if inner is None else {int(at): place_from_data(inner, one, None, around) for at, one in places},
                load(int, data["pulled"]),
            )
