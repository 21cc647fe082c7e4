"""Where a flow is: the one truth from which cursor, checkpoint and resume derive."""

from hypothesis import given
from hypothesis import strategies as st

from safepoint.flow.position import ParallelPosition, Position, ScatterPosition, SubflowPosition
from tests.kit.flows import NodeRecorder, Trail


def at(*names: str, flow: str = "flow") -> Position:
    return Position.start(NodeRecorder().line(flow, *names).graph(), Trail())


def test_it_starts_before_the_first_node_and_moves_on():
    place = at("a", "b")
    assert (place.cursor, place.step, place.visit) == ("a", 0, "0")
    place.inside = SubflowPosition(at("c"))
    assert place.cursor == "a/c"
    place.advance("b", Trail(["a"]))
    assert (place.cursor, place.step, place.state) == ("b", 1, Trail(["a"]))
    place.finish("done", Trail(["a", "b"]))
    assert (place.end, place.step) == ("done", 2)


def test_inside_a_subflow_the_cursor_is_a_path():
    place = at("sub")
    inner = at("c1", "c2")
    place.inside = SubflowPosition(inner)
    assert place.cursor == "sub/c1"
    inner.advance("c2", Trail())
    assert place.cursor == "sub/c2"
    inner.finish("done", Trail())
    assert place.cursor == "sub"  # all inside is done, and it has not been left


def test_the_visit_says_which_visits_are_around_it():
    place = at("sub", "next")
    place.advance("next", Trail())
    inner = Position.start(place.graph, Trail(), place.inner_prefix)
    assert (place.visit, inner.visit) == ("1", "1.0")
    inner.advance("next", Trail())
    assert inner.visit == "1.1"
    assert inner.inner_prefix == "1.1."


def test_inside_a_parallel_the_cursor_is_at_the_first_branch_that_is_not_done():
    left, right = at("l", flow="left"), at("right", flow="right")
    place = at("both")
    place.inside = ParallelPosition({"left": left, "right": right})
    assert place.cursor == "both/left/l"
    left.finish("done", Trail())
    assert place.cursor == "both/right"  # a branch that is one function is named once
    right.finish("done", Trail())
    assert place.cursor == "both"


def test_inside_a_scatter_the_cursor_is_at_the_first_item_that_is_not_done():
    place = at("each")
    items = ScatterPosition()
    place.inside = items
    assert place.cursor == "each"
    items.pulled = 3
    assert place.cursor == "each/0"
    items.acknowledge(0)
    items.acknowledge(2)
    assert place.cursor == "each/1"
    items.positions[1] = at("c")
    assert place.cursor == "each/1/c"
    items.acknowledge(1)
    assert place.cursor == "each"
    assert (items.watermark, items.ahead, items.done, items.positions) == (3, set(), 3, {})


@given(st.permutations(range(8)), st.integers(0, 8))
def test_acknowledged_items_are_done_and_no_others(order: list[int], count: int):
    items = ScatterPosition(pulled=8)
    marks = [0]
    for index in order[:count]:
        items.acknowledge(index)
        marks.append(items.watermark)
    done = set(order[:count])
    assert {index for index in range(8) if items.is_done(index)} == done
    assert items.done == len(done)
    assert marks == sorted(marks)
    assert items.watermark not in items.ahead
