"""Owns the picture of a flow, as Mermaid text. Knows nothing of how it runs."""

from collections.abc import Iterator

from .graph import End, Graph, Node, Parallel, Scatter, Step, Subflow

__all__ = ["draw"]

STYLES = {
    "executed": "fill:#d7f0dd,stroke:#2e7d4f,color:#123",
    "interrupted": "fill:#fff2c2,stroke:#b58900,color:#432,stroke-width:3px",
    "unreached": "fill:#f2f2f2,stroke:#999,color:#666,stroke-dasharray:4 3",
}
# Mermaid's own entities; a label is one line.
ESCAPED = {"#": "#35;", "&": "#amp;", '"': "#quot;", "|": "#124;", "<": "#lt;", ">": "#gt;", "\n": " "}


def draw(graph: Graph, *, executed: frozenset[str] | None = None, cursor: str | None = None) -> str:
    """The flow; with `executed` and `cursor`, how far a run of it came."""
    lines = ["flowchart TD", f"    s((start)) --> {_id(graph.start)}"]
    lines += _graph(graph, "", executed, cursor, "    ")
    if executed is not None:
        lines += [f"    classDef {name} {style}" for name, style in STYLES.items()]
    return "\n".join(lines)


def _graph(graph: Graph, path: str, executed: frozenset[str] | None, cursor: str | None, pad: str) -> Iterator[str]:
    for name, node in graph.nodes.items():
        here = f"{path}{name}"
        yield from _node(node, here, executed, cursor, pad)
        for output, target in graph.routes[name].items():
            if isinstance(target, End):
                end = _id(f"{path}{target.name}", "e")
                yield f'{pad}{_id(here)} -->|"{_text(output)}"| {end}(("{_text(target.name)}"))'
            else:
                yield f'{pad}{_id(here)} -->|"{_text(output)}"| {_id(f"{path}{target}")}'


def _node(node: Node, here: str, executed: frozenset[str] | None, cursor: str | None, pad: str) -> Iterator[str]:
    name = _id(here)
    match node:
        case Step():
            yield f'{pad}{name}["{_text(node.name)}"]{_class(here, executed, cursor)}'
        case Subflow(child=child):
            yield from _box(node.name, name, [("", child.graph())], here, executed, cursor, pad)
        case Parallel(branches=branches):
            parts = [(branch, child.graph()) for branch, child in branches.items()]
            graphs = [("" if graph.is_just(branch) else f"{branch}/", graph) for branch, graph in parts]
            yield from _box(f"{node.name} (all of)", name, graphs, here, executed, cursor, pad)
        case Scatter(body=body):
            label = f"{node.name} (each, {node.concurrency} at once)"
            if isinstance(body, Step):
                yield f'{pad}{name}[["{_text(label)}"]]{_class(here, executed, cursor)}'
            else:
                # Items are many and the picture is one: inside, only the shape is drawn.
                yield from _box(label, name, [("*/", body.graph())], here, executed, cursor, pad)


def _box(
    label: str,
    name: str,
    graphs: list[tuple[str, Graph]],
    here: str,
    executed: frozenset[str] | None,
    cursor: str | None,
    pad: str,
) -> Iterator[str]:
    yield f'{pad}subgraph {name}["{_text(label)}"]'
    for branch, graph in graphs:
        known = None if "*" in branch else executed
        yield from _graph(graph, f"{here}/{branch}", known, cursor, f"{pad}    ")
    yield f"{pad}end"
    if executed is not None:
        yield f"{pad}class {name} {_state(here, executed, cursor)}"


def _class(here: str, executed: frozenset[str] | None, cursor: str | None) -> str:
    return "" if executed is None else f":::{_state(here, executed, cursor)}"


def _state(here: str, executed: frozenset[str], cursor: str | None) -> str:
    if cursor is not None and f"{cursor}/".startswith(f"{here}/"):
        return "interrupted"
    return "executed" if here in executed else "unreached"


def _id(path: str, kind: str = "n") -> str:
    # Mermaid takes few characters in an id; two names must not become one, nor a node and an end.
    return f"{kind}_" + "".join(char if char.isascii() and char.isalnum() else f"_{ord(char):x}_" for char in path)


def _text(text: str) -> str:
    return "".join(ESCAPED.get(char, char) for char in text)
