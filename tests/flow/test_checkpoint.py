"""A stopped flow on paper, from which another process goes on."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from safepoint import AbortSignal, Completed
from safepoint.errors import UsageError
from safepoint.flow import END, Checkpoint, CheckpointMismatch, Flow, NodeContext
from safepoint.run import CheckpointError, Checkpoints, FolderCheckpoints, MemoryCheckpoints, SqliteCheckpoints
from tests.kit.flows import NodeRecorder, Trail, again, one


class Model(BaseModel):
    notes: list[str] = []


@dataclass
class Book:
    title: str
    pages: int = 0


def stuck_flow(lab: NodeRecorder, kind: Any) -> Flow[Any, Any]:
    flow: Flow[Any, Any] = Flow("flow", start="a", state=kind)

    def note(state: Any, name: str) -> None:
        (state["notes"] if isinstance(state, dict) else state.notes).append(name)

    def node(name: str) -> Any:
        async def run(state: Any, ctx: NodeContext[Any]) -> None:
            await lab.visit(name, ctx)
            note(state, name)

        return run

    for name, target in (("a", "b"), ("b", "c")):
        flow.node(name, node(name))
        flow.route(name, target)
    flow.node("c", node("c"))
    flow.route("c", END)
    return flow


async def stopped(lab: NodeRecorder | None = None, *names: str) -> Checkpoint:
    lab = lab or NodeRecorder()
    names = names or ("a", "b")
    return Checkpoint.from_result(await lab.stop_in(names[-1], lab.line("flow", *names).start(Trail())))


@pytest.mark.parametrize("state", [Trail(), Model(), {"notes": []}], ids=lambda state: type(state).__name__)
async def test_states_of_each_kind_come_back_from_json(state: Any):
    lab = NodeRecorder()
    flow = stuck_flow(lab, type(state))
    whole = await flow.execute(state)
    lab.ran.clear()
    result = await lab.stop_in("b", flow.start(state))
    resumed = await flow.execute(resume=again(result))
    assert isinstance(resumed.outcome, Completed)
    assert type(resumed.state) is type(state)
    assert resumed.state == whole.state
    assert resumed.executed == whole.executed
    assert lab.ran == ["a", "b", "b", "c"]
    assert resumed.run_id == result.run_id


async def test_a_checkpoint_says_where_it_stopped_and_why():
    checkpoint = await stopped()
    assert (checkpoint.flow, checkpoint.cursor, checkpoint.status) == ("flow", "b", "aborted")
    assert checkpoint.executed == ("a",)
    assert checkpoint.reason is not None
    assert "enough" in checkpoint.reason
    lab = NodeRecorder()
    lab.broken.add("a")
    failed = Checkpoint.from_result(await lab.line("flow", "a").execute(Trail()))
    assert (failed.status, failed.reason) == ("failed", "a is broken")


async def test_a_completed_flow_has_nothing_to_resume():
    result = await NodeRecorder().line("flow", "a").execute(Trail())
    with pytest.raises(UsageError, match="flow 'flow' has completed: there is nothing to resume"):
        Checkpoint.from_result(result)


async def test_a_state_that_json_cannot_hold_is_refused_with_the_fix():
    async def node(state: dict[str, Any]) -> None: ...

    result = await one(node).execute({"what": object()}, signal=AbortSignal.already("no"))
    with pytest.raises(UsageError, match="give the rest as services"):
        Checkpoint.from_result(result)


async def test_a_state_that_would_come_back_as_another_type_is_refused_with_the_fix():
    @dataclass
    class Derived(Trail):
        more: int = 0

    async def node(state: Trail) -> None: ...
    async def anything(state: Any) -> None: ...

    for fn, told in ((node, "a Trail"), (anything, "plain JSON data")):
        result = await one(fn).execute(Derived(more=5), signal=AbortSignal.already("no"))
        with pytest.raises(UsageError, match=rf"is a Derived, and would come back as {told}: .*state=Derived"):
            Checkpoint.from_result(result)
        result = await one(fn, state=Derived).execute(Derived(more=5), signal=AbortSignal.already("no"))
        resumed = await one(fn, state=Derived).execute(resume=again(result))
        assert resumed.state == Derived(more=5)


async def test_results_of_a_scatter_come_back_with_their_type_or_are_refused():
    lab = NodeRecorder()

    async def typed(item: str, ctx: NodeContext[Any]) -> Book:
        await lab.visit(item, ctx)
        return Book(item)

    async def untyped(item, ctx):
        return await typed(item, ctx)

    def gather(state: list[Book], books: list[Book]) -> None:
        state.extend(books)

    def flow_of(body: Any) -> Flow[list[Book], Any]:
        flow: Flow[list[Book], Any] = Flow("flow", start="each", state=list[Book])
        flow.scatter("each", items=lambda state: ["x", "y"], body=body, gather=gather, concurrency=1)
        flow.route("each", END)
        return flow

    result = await lab.stop_in("y", flow_of(typed).start([]))
    resumed = await flow_of(typed).execute(resume=again(result))
    assert resumed.state == [Book("x"), Book("y")]
    result = await lab.stop_in("y", flow_of(untyped).start([]))
    with pytest.raises(UsageError, match=r"node 'each': its body returns a Book.*annotate what the body returns"):
        Checkpoint.from_result(result)


async def test_a_flow_whose_state_type_nobody_knows_says_how_to_tell_it():
    async def untyped(state, ctx) -> None: ...

    result = await one(untyped).execute({"a": 1}, signal=AbortSignal.already("no"))
    with pytest.raises(CheckpointMismatch, match=r"the type of the state is not known: give Flow\('flow', …, state="):
        await one(untyped).execute(resume=again(result))
    assert (await one(untyped, state=dict).execute(resume=again(result))).state == {"a": 1}


async def test_a_checkpoint_can_be_resumed_more_than_once():
    async def node(state: dict[str, Any], ctx: NodeContext[Any]) -> None:
        state["list"].append("x")

    result = await one(node).execute({"list": []}, signal=AbortSignal.already("no"))
    checkpoint = again(result)
    first = await one(node).execute(resume=checkpoint, signal=AbortSignal.already("no"))
    first.state["list"].append("somebody wrote into the result")
    assert (await one(node).execute(resume=checkpoint)).state == {"list": ["x"]}


async def test_saving_and_loading_a_file(tmp_path: Path):
    path = tmp_path / "flow.json"
    checkpoint = await stopped()
    checkpoint.save(path)
    assert Checkpoint.load(path) == checkpoint
    assert Checkpoint.load(str(path)) == checkpoint
    assert [each.name for each in tmp_path.iterdir()] == ["flow.json"]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        Checkpoint.load(tmp_path / "nowhere.json")


async def test_text_that_a_model_said_survives_a_file(tmp_path: Path):
    path = tmp_path / "flow.json"
    lab = NodeRecorder()
    said = Trail(["half a pair: \ud83d", "ä \u2028 \x00"])
    result = await lab.stop_in("a", lab.line("flow", "a").start(said))
    Checkpoint.from_result(result).save(path)
    resumed = await lab.line("flow", "a").execute(resume=Checkpoint.load(path))
    assert resumed.state.notes == [*said.notes, "a"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "cannot be read"),
        (b'{"flow": "flow", "ver', "cannot be read"),
        (b"[1, 2]", "it is not a JSON object but list"),
        (b'{"version": 99}', "it is of version 99; this reader knows 1"),
        (b'{"version": 1}', "flow"),
        (b"\xff\xfe\x00", "is not a checkpoint's text"),
    ],
    ids=["empty", "cut", "list", "version", "partial", "bytes"],
)
async def test_a_corrupt_file_is_refused_by_name_and_left_alone(content: bytes, told: str, tmp_path: Path):
    path = tmp_path / "flow.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.load(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "value"),
    [("place", {}), ("place", {"node": "b", "step": "many", "state": {}}), ("place", {"node": "b", "step": 1})],
)
async def test_a_checkpoint_that_was_tampered_with_is_refused(name: str, value: Any):
    broken = replace(await stopped(), **{name: value})
    with pytest.raises(CheckpointMismatch, match="this checkpoint does not fit flow 'flow'"):
        await NodeRecorder().line("flow", "a", "b").execute(resume=broken)


async def test_fields_of_a_newer_writer_are_passed_over():
    checkpoint = await stopped()
    data = {**json.loads(checkpoint.to_json()), "colour": "blue"}
    assert Checkpoint.from_json(json.dumps(data)) == checkpoint


@pytest.mark.parametrize("kind", ["memory", "folder", "sqlite"])
async def test_it_is_recalled_from_each_store(kind: str, tmp_path: Path):
    stores: dict[str, Checkpoints] = {
        "memory": MemoryCheckpoints(),
        "folder": FolderCheckpoints(tmp_path / "folder"),
        "sqlite": SqliteCheckpoints(tmp_path / "db.sqlite"),
    }
    store = stores[kind]
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    assert await Checkpoint.recall(store, "run 1") is None
    result = await lab.stop_in("b", flow.start(Trail(), checkpoints=store, checkpoint_id="run 1"))
    recalled = await Checkpoint.recall(store, "run 1")
    assert recalled == Checkpoint.from_result(result)
    resumed = await flow.execute(resume=recalled, checkpoints=store, checkpoint_id="run 1")
    assert resumed.state.notes == ["a", "b"]
    completed = await Checkpoint.recall(store, "run 1")
    assert completed is not None
    assert (completed.completed, completed.run_id) == (True, result.run_id)
    await store.save("run 1", "not json")
    with pytest.raises(CheckpointError, match="checkpoint 'run 1' cannot be read"):
        await Checkpoint.recall(store, "run 1")


async def test_a_flow_of_another_name_is_refused():
    with pytest.raises(CheckpointMismatch, match="this checkpoint is of flow 'flow', not of 'other'"):
        await NodeRecorder().line("other", "a", "b").execute(resume=await stopped())


async def test_a_flow_that_has_changed_is_refused_with_what_has_changed():
    checkpoint = await stopped()
    with pytest.raises(CheckpointMismatch, match=r"'a' has other routes or parts, 'c' is new\. Resume it with"):
        await NodeRecorder().line("flow", "a", "c", "b").execute(resume=checkpoint)
    with pytest.raises(CheckpointMismatch, match="'a' has other routes or parts, 'b' is gone"):
        await NodeRecorder().line("flow", "a").execute(resume=checkpoint)
    moved: Flow[Trail, Any] = Flow("flow", start="b")
    lab = NodeRecorder()
    moved.node("a", lab.node("a"))
    moved.node("b", lab.node("b"))
    moved.route("a", "b")
    moved.route("b", END, failed="a")
    with pytest.raises(CheckpointMismatch, match="'b' has other routes or parts"):
        await moved.execute(resume=checkpoint)


async def test_a_flow_that_only_starts_elsewhere_has_changed_too():
    def cycle(start: str) -> Flow[Trail, Any]:
        flow: Flow[Trail, Any] = Flow("flow", start=start)
        for name, target in (("a", "b"), ("b", "a")):
            flow.node(name, lab.node(name))
            flow.route(name, target)
        return flow

    lab = NodeRecorder()
    result = await lab.stop_in("b", cycle("a").start(Trail()))
    with pytest.raises(CheckpointMismatch, match="it starts elsewhere"):
        await cycle("b").execute(resume=again(result))


async def test_a_change_inside_a_child_is_a_change():
    def parent(child: Flow[Trail, Any]) -> Flow[Trail, Any]:
        flow: Flow[Trail, Any] = Flow("flow", start="sub")
        flow.subflow("sub", child)
        flow.route("sub", END)
        return flow

    lab = NodeRecorder()
    result = await lab.stop_in("c1", parent(lab.line("child", "c1", "c2")).start(Trail()))
    with pytest.raises(CheckpointMismatch, match="'sub' has other routes or parts"):
        await parent(lab.line("child", "c1")).execute(resume=again(result))


async def test_migrate_mends_a_checkpoint_of_an_older_shape():
    def rename(old: Checkpoint) -> Checkpoint:
        return replace(old, place={**old.place, "node": "c"})

    lab = NodeRecorder()
    flow = lab.line("flow", "a", "c")
    resumed = await flow.execute(resume=await stopped(), migrate=rename)
    assert resumed.state.notes == ["a", "c"]
    assert lab.ran == ["c"]
    with pytest.raises(CheckpointMismatch, match="it is at 'b', which is not a node of 'flow'"):
        await flow.execute(resume=await stopped(), migrate=lambda old: old)


async def test_migrate_is_not_asked_when_nothing_has_changed():
    def never(old: Checkpoint) -> Checkpoint:
        raise AssertionError("asked")

    resumed = await NodeRecorder().line("flow", "a", "b").execute(resume=await stopped(), migrate=never)
    assert isinstance(resumed.outcome, Completed)


async def test_composites_come_back_from_json_where_they_were():
    @dataclass
    class Shelf:
        notes: list[str] = field(default_factory=list)
        books: list[Book] = field(default_factory=list)

    lab = NodeRecorder()

    async def read(book: Book, ctx: NodeContext[Any]) -> None:
        await lab.visit(f"read {book.title}", ctx)
        book.pages += 1

    async def shelve(book: Book, ctx: NodeContext[Any]) -> None:
        await lab.visit(f"shelve {book.title}", ctx)
        book.pages += 10

    body: Flow[Book, Any] = Flow("body", start="read")
    body.node("read", read)
    body.node("shelve", shelve)
    body.route("read", "shelve")
    body.route("shelve", END)

    def gather(state: Shelf, books: list[Book]) -> None:
        state.books = books

    inner: Flow[Shelf, Any] = Flow("inner", start="each")
    inner.scatter("each", items="books", body=body, gather=gather, concurrency=2)
    inner.route("each", END)

    async def beside(state: Shelf, ctx: NodeContext[Any]) -> None:
        await lab.visit("beside", ctx)
        state.notes.append("beside")

    flow: Flow[Shelf, Any] = Flow("flow", start="both")
    flow.parallel("both", {"books": inner, "beside": beside})
    flow.route("both", END)
    start = Shelf(books=[Book("x"), Book("y"), Book("z")])
    whole = await flow.execute(start)
    assert whole.state.books == [Book("x", 11), Book("y", 11), Book("z", 11)]
    result = await lab.stop_in("shelve y", flow.start(start))
    assert result.cursor == "both/books/each/1/shelve"
    inside = again(result).place["inside"]["books"]["inside"]
    assert inside["places"]["1"]["state"] == {"title": "y", "pages": 1}
    resumed = await flow.execute(resume=again(result))
    assert resumed.state == whole.state
    assert sorted(resumed.executed) == sorted(whole.executed)
