"""What a flow is made of, and whether it fits together."""

from typing import Any

import pytest

from safepoint.flow import END, End, Flow, FlowError
from tests.kit.flows import NodeRecorder, Trail


async def nothing(state: Trail) -> None: ...


def flow_of(*names: str, start: str = "a") -> Flow[Trail, Any]:
    flow: Flow[Trail, Any] = Flow("flow", start=start)
    for name in names:
        flow.node(name, nothing)
    return flow


def refused(flow: Flow[Any, Any]) -> str:
    with pytest.raises(FlowError) as caught:
        flow.graph()
    return str(caught.value)


def test_a_flow_without_nodes_is_refused():
    assert "it has no node: add one with @flow.node" in refused(flow_of())


def test_an_unknown_start_is_named_with_the_nodes_there_are():
    flow = flow_of("b", "c", start="a")
    flow.route("b", "c")
    flow.route("c", END)
    assert "its start 'a' is not a node: the nodes are b, c" in refused(flow)


def test_an_output_without_a_route_is_named_with_the_line_to_add():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", nothing, outputs=("found", "empty"))
    flow.route("a", found=END)
    assert "node 'a': output 'empty' has no route: add flow.route('a', empty=…)" in refused(flow)


def test_an_output_that_is_no_word_is_named_with_a_line_that_is_python():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", nothing, outputs=("not found",))
    told = refused(flow)
    assert "add flow.route('a', **{'not found': …})" in told
    flow.route("a", **{"not found": END})
    flow.graph()


def test_a_route_to_nowhere_is_named():
    flow = flow_of("a")
    flow.route("a", "b")
    assert "node 'a': output 'done' leads to 'b', which is not a node: the nodes are a" in refused(flow)


def test_a_route_of_an_unknown_node_is_named():
    flow = flow_of("a")
    flow.route("a", END)
    flow.route("ghost", END)
    assert "there are routes for 'ghost', which is not a node: the nodes are a" in refused(flow)


def test_a_route_of_an_output_that_does_not_exist_is_named():
    flow = flow_of("a")
    flow.route("a", END, found=END)
    assert "node 'a': it has no output 'found' (it has 'done'): declare it or drop the route" in refused(flow)


def test_a_node_that_cannot_be_reached_is_named():
    flow = flow_of("a", "b")
    flow.route("a", END)
    flow.route("b", END)
    assert "node 'b' cannot be reached from 'a': route to it, or remove it" in refused(flow)


def test_a_node_that_only_a_failure_leads_to_is_reached():
    flow = flow_of("a", "b")
    flow.route("a", END, failed="b")
    flow.route("b", END)
    assert list(flow.graph().nodes) == ["a", "b"]


def test_a_timeout_that_can_never_come_is_refused():
    flow = flow_of("a")
    flow.route("a", END, timeout=END)
    assert "node 'a': output 'timeout' is never taken: give the node timeout=seconds, or drop the route" in refused(
        flow
    )
    composite: Flow[Trail, Any] = Flow("flow", start="sub")
    composite.subflow("sub", NodeRecorder().line("child", "c"))
    composite.route("sub", END, timeout=END)
    assert "node 'sub': output 'timeout' is never taken" in refused(composite)


def test_all_problems_are_told_at_once():
    flow = flow_of("a", "b", start="x")
    flow.route("a", "nowhere")
    told = refused(flow)
    assert told.startswith("flow 'flow' does not fit together:")
    assert told.count("\n  - ") == 3


def test_cycles_are_legal():
    flow: Flow[Trail, Any] = Flow("flow", start="a")
    flow.node("a", nothing, outputs=("again", "done"))
    flow.route("a", END, again="a")
    assert flow.graph().ends == ("done",)


def test_a_flow_that_contains_itself_is_refused():
    outer: Flow[Trail, Any] = Flow("outer", start="sub")
    inner: Flow[Trail, Any] = Flow("inner", start="sub")
    outer.subflow("sub", inner)
    inner.subflow("sub", outer)
    outer.route("sub", END)
    inner.route("sub", END)
    assert "flow 'outer' contains itself" in refused(outer)


def test_ends_are_the_outputs_of_a_subflow_each_once():
    child: Flow[Trail, Any] = Flow("child", start="c")
    child.node("c", nothing, outputs=("x", "y", "z"))
    child.route("c", x=End("found"), y=END, z=End("found"))
    assert child.graph().ends == ("found", "done")
    parent: Flow[Trail, Any] = Flow("parent", start="sub")
    parent.subflow("sub", child)
    parent.route("sub", END)
    assert "node 'sub': output 'found' has no route" in refused(parent)
    parent.route("sub", found=END)
    parent.graph()


def test_a_broken_child_is_told_by_its_own_name():
    parent: Flow[Trail, Any] = Flow("parent", start="sub")
    parent.subflow("sub", flow_of("a"))
    parent.route("sub", END)
    assert "flow 'flow' does not fit together" in refused(parent)


def test_a_node_and_an_end_of_one_name_are_not_one_shape():
    flow = flow_of("a", "done")
    flow.route("a", "done")
    flow.route("done", END)
    other = flow_of("a", "done")
    other.route("a", END, failed="done")
    other.route("done", END)
    assert flow.graph().fingerprint != other.graph().fingerprint


def test_a_branch_that_is_one_function_is_named_once_and_any_other_is_a_flow():
    lab = NodeRecorder()
    assert lab.line("x", "x").graph().is_single_step("x")
    assert not lab.line("x", "x", "y").graph().is_single_step("x")
    assert not lab.line("x", "y").graph().is_single_step("x")
    deeper: Flow[Trail, Any] = Flow("x", start="x")
    deeper.subflow("x", lab.line("child", "c"))
    deeper.route("x", END)
    assert not deeper.graph().is_single_step("x")
