"""Owns the chart of a flow, as Mermaid text. Knows nothing of how it runs."""

from collections.abc import Iterator
from dataclasses import dataclass

from .graph import End, Graph, Node, Parallel, Scatter, Step, Subflow

__all__ = ["draw"]

STYLES = {
    "executed": "fill:#d7f0dd,stroke:#2e7d4f,color:#123",
    "interrupted": "fill:#fff2c2,stroke:#b58900,color:#432,stroke-width:3px",
    "unreached": "fill:#f2f2f2,stroke:#999,color:#666,stroke-dasharray:4 3",
}
# Mermaid has entities of its own. A label is one line.
ESCAPED = {"#": "#35;", "&": "#amp;", '"': "#quot;", "|": "#124;", "<": "#lt;", ">": "#gt;", "\n": " "}


def draw(graph: Graph, *, executed: frozenset[str] | None = None, cursor: str | None = None) -> str:
    """Return the chart of a flow.

    Args:
        graph: The flow.
        executed: The paths of the nodes that have ended, to show how far a run came. None: only the shape is drawn.
        cursor: The path of the node at which the run stopped.
    """
    lines = ["flowchart TD", f"    s((start)) --> {_id(graph.start)}"]
    lines += _graph(graph, "", None if executed is None else _Progress(executed, cursor), "    ")
    if executed is not None:
        lines += [f"    classDef {name} {style}" for name, style in STYLES.items()]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far a run came."""

    executed: frozenset[str]
    cursor: str | None

    def style(self, path: str) -> str:
        """Return the name of the style of a node."""
        if self.cursor is not None and f"{self.cursor}/".startswith(f"{path}/"):
            return "interrupted"
        return "executed" if path in self.executed else "unreached"


def _graph(graph: Graph, prefix: str, progress: _Progress | None, indent: str) -> Iterator[str]:
    for name, node in graph.nodes.items():
        path = f"{prefix}{name}"
        yield from _node(node, path, progress, indent)
        for output, target in graph.routes[name].items():
            if isinstance(target, End):
                end = _id(f"{prefix}{target.name}", "e")
                yield f'{indent}{_id(path)} -->|"{_text(output)}"| {end}(("{_text(target.name)}"))'
            else:
                yield f'{indent}{_id(path)} -->|"{_text(output)}"| {_id(f"{prefix}{target}")}'


def _node(node: Node, path: str, progress: _Progress | None, indent: str) -> Iterator[str]:
    name = _id(path)
    css_class = "" if progress is None else f":::{progress.style(path)}"
    match node:
        case Step():
            yield f'{indent}{name}["{_text(node.name)}"]{css_class}'
        case Subflow(child=child):
            yield from _box(node.name, path, [("", child.graph())], progress, indent)
        case Parallel(branches=branches):
            parts = [(branch, child.graph()) for branch, child in branches.items()]
            graphs = [("" if graph.is_single_step(branch) else f"{branch}/", graph) for branch, graph in parts]
            yield from _box(f"{node.name} (all of)", path, graphs, progress, indent)
        case Scatter(body=body):
            label = f"{node.name} (each, {node.concurrency} at once)"
            if isinstance(body, Step):
                yield f'{indent}{name}[["{_text(label)}"]]{css_class}'
            else:
                # There are many items and only one box for all of them, so it shows the shape and no progress.
                yield from _box(label, path, [("*/", body.graph())], progress, indent)


def _box(
    label: str, path: str, graphs: list[tuple[str, Graph]], progress: _Progress | None, indent: str
) -> Iterator[str]:
    name = _id(path)
    yield f'{indent}subgraph {name}["{_text(label)}"]'
    for branch, graph in graphs:
        inner_progress = None if "*" in branch else progress
        yield from _graph(graph, f"{path}/{branch}", inner_progress, f"{indent}    ")
    yield f"{indent}end"
    if progress is not None:
        yield f"{indent}class {name} {progress.style(path)}"


def _id(path: str, kind: str = "n") -> str:
    # Mermaid allows few characters in an id. Two names must not get the same id, nor a node and an end.
    return f"{kind}_" + "".join(char if char.isascii() and char.isalnum() else f"_{ord(char):x}_" for char in path)


def _text(text: str) -> str:
    return "".join(ESCAPED.get(char, char) for char in text)
