"""The picture of a flow."""

import re
from typing import Any

from safepoint.flow import END, End, Flow
from tests.kit.flows import NodeRecorder, Trail


def edges(picture: str) -> list[tuple[str, str, str]]:
    """All arrows: from, label, to."""
    found = re.findall(r'^\s*(\S+?)(?:\(\(.*?\)\))? --> ?(?:\|"(.*?)"\| )?(\w+)', picture, re.MULTILINE)
    return [(start, label, end) for start, label, end in found]


def test_a_line_is_drawn_node_by_node():
    picture = NodeRecorder().line("flow", "a", "b").to_mermaid()
    assert picture.splitlines()[0] == "flowchart TD"
    assert 'n_a["a"]' in picture
    assert 'n_b["b"]' in picture
    assert ("n_a", "done", "n_b") in edges(picture)
    assert re.search(r'n_b -->\|"done"\| e_done\(\("done"\)\)', picture)


def test_the_start_is_an_arrow_from_nowhere_also_to_a_node_of_that_name():
    picture = NodeRecorder().line("flow", "start", "end done").to_mermaid()
    (first, _, target), *_rest = edges(picture)
    assert first != target
    assert target == "n_start"
    ids = {start for start, _, _ in edges(picture)} | {end for _, _, end in edges(picture)}
    assert len(ids) == 4  # the beginning, two nodes, one end


def test_two_names_never_become_one_node():
    lab = NodeRecorder()
    flow = lab.line("flow", "a b", "a_b", "a-b", "ä", "a_20_b")
    ids = re.findall(r"^\s*(n_\w+)\[", flow.to_mermaid(), re.MULTILINE)
    assert len(set(ids)) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", each) for each in ids)


def test_names_cannot_break_the_picture():
    flow: Flow[Trail, Any] = Flow("flow", start='say "hi" | <b>\nnow')
    flow.node('say "hi" | <b>\nnow', NodeRecorder().node("x"), outputs=('a "b" (c) | [d]',))
    flow.route('say "hi" | <b>\nnow', **{'a "b" (c) | [d]': END})
    picture = flow.to_mermaid()
    assert "<b>" not in picture
    for line in picture.splitlines()[1:]:
        assert line.count('"') % 2 == 0
        assert line.count("|") in (0, 2)
    assert len(picture.splitlines()) == 4


def composite(lab: NodeRecorder) -> Flow[Trail, Any]:
    flow: Flow[Trail, Any] = Flow("flow", start="sub")
    flow.subflow("sub", lab.line("child", "c1", "c2", end=End("found")))
    flow.parallel("both", {"left": lab.line("left", "l"), "fn": lab.node("fn")}, join=lambda *_: None)
    flow.scatter("each", items=lambda state: ["i"], body=lab.item, concurrency=3)
    flow.scatter("deep", items=lambda state: [Trail()], body=lab.line("body", "b"))
    flow.route("sub", found="both")
    flow.route("both", "each", failed=End("broken"))
    flow.route("each", "deep")
    flow.route("deep", END)
    return flow


def test_composites_are_boxes_with_what_is_inside():
    picture = composite(NodeRecorder()).to_mermaid()
    assert picture.count("subgraph") == picture.count("\n    end") == 3
    assert 'subgraph n_sub["sub"]' in picture
    assert 'subgraph n_both["both (all of)"]' in picture
    assert '[["each (each, 3 at once)"]]' in picture
    assert 'subgraph n_deep["deep (each, 8 at once)"]' in picture
    assert 'n_sub_2f_c1["c1"]' in picture
    assert 'n_both_2f_left_2f_l["l"]' in picture
    assert 'n_both_2f_fn["fn"]' in picture
    assert ("n_sub", "found", "n_both") in edges(picture)
    assert 'e_broken(("broken"))' in picture


async def test_a_run_shows_what_ran_where_it_stopped_and_what_was_not_reached():
    lab = NodeRecorder()
    flow = composite(lab)
    result = await lab.stop_in("l", flow.start(Trail()))
    picture = result.to_mermaid()
    assert result.cursor == "both/left/l"
    assert 'n_sub_2f_c2["c2"]:::executed' in picture
    assert "class n_sub executed" in picture
    assert "class n_both interrupted" in picture
    assert 'n_both_2f_left_2f_l["l"]:::interrupted' in picture
    assert re.search(r"n_each\[.*\]:::unreached", picture)
    assert "class n_deep unreached" in picture
    assert "classDef interrupted" in picture
    whole = (await flow.execute(Trail())).to_mermaid()
    assert ":::unreached" not in whole
    assert ":::interrupted" not in whole


def test_a_flow_that_did_not_run_has_no_colours():
    assert ":::" not in composite(NodeRecorder()).to_mermaid()
