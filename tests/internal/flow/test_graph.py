"""Owns the tests that look inside, beside those of `tests/flow/test_graph.py`.

What a flow is made of, and whether it fits together.
"""

from typing import Any

from safepoint.flow import END, End, Flow
from safepoint.flow.graph import Graph, children
from tests.flow.test_graph import nothing
from tests.kit.flows import NodeRecorder, Trail


def fingerprint(*names: str, **more: Any) -> str:
    return NodeRecorder().line("flow", *names, **more).graph().fingerprint


def test_the_fingerprint_changes_with_the_shape_and_only_with_it():
    assert fingerprint("a", "b") == fingerprint("a", "b")
    assert fingerprint("a", "b") != fingerprint("a", "c")
    assert fingerprint("a", "b") != fingerprint("b", "a")
    assert fingerprint("a", "b") != fingerprint("a", "b", end=End("found"))

    def around(child: Flow[Trail, Any]) -> Graph:
        flow: Flow[Trail, Any] = Flow("parent", start="sub")
        flow.subflow("sub", child)
        flow.route("sub", END)
        return flow.graph()

    assert around(NodeRecorder().line("c", "x")).fingerprint != around(NodeRecorder().line("c", "y")).fingerprint


def test_the_flows_inside_a_node_are_known_by_name():
    lab = NodeRecorder()
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    left = lab.line("left", "l")
    flow.subflow("sub", left)
    flow.parallel("both", {"left": left, "fn": nothing})
    flow.scatter("each", items="found", body=left)
    flow.scatter("plain", items="found", body=nothing)
    for name, target in (("sub", "both"), ("both", "each"), ("each", "plain"), ("plain", END)):
        flow.route(name, target)
    nodes = flow.graph().nodes
    assert [list(children(node)) for node in nodes.values()] == [[""], ["left", "fn"], [""], []]
