"""The checkpoint of a flow in a store: one run at a time has it, and nothing is overwritten unknowingly."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed, Failed, Retry
from safepoint.agent import Agent, tool
from safepoint.errors import UsageError
from safepoint.flow import (
    END,
    Checkpoint,
    CheckpointCompleted,
    CheckpointMismatch,
    CheckpointUnfinished,
    Flow,
    FlowResult,
    NodeContext,
)
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import (
    CheckpointError,
    CheckpointInUse,
    Checkpoints,
    FolderCheckpoints,
    MemoryCheckpoints,
    SqliteCheckpoints,
)
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.flows import NodeRecorder, Trail, one

ID = "visit-7"


EACH: list[Any] = [{}, {"resume": "auto"}]


@pytest.fixture(params=["memory", "folder", "sqlite"])
def store(request, tmp_path: Path) -> Checkpoints:
    if request.param == "memory":
        return MemoryCheckpoints()
    return (
        FolderCheckpoints(tmp_path / "kept") if request.param == "folder" else SqliteCheckpoints(tmp_path / "kept.db")
    )


async def stopped_in(name: str, lab: NodeRecorder, store: Checkpoints, *names: str) -> FlowResult[Trail]:
    flow = lab.line("flow", *(names or ("a", "b", "c")))
    return await lab.stop_in(name, flow.start(Trail(), checkpoints=store, checkpoint_id=ID))


def given(store: Checkpoints) -> Any:
    return {"checkpoints": store, "checkpoint_id": ID}


async def is_free(store: Checkpoints) -> bool:
    """True: nobody has the lease."""
    try:
        async with store.lease(ID):
            return True
    except CheckpointInUse:
        return False


async def test_a_run_is_on_record_with_its_key_before_its_first_node_begins(store: Checkpoints):
    seen: list[Any] = []

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        saved = await Checkpoint.recall(store, ID)
        assert saved is not None
        seen.append((saved.cursor, saved.status, ctx.idempotency_key.startswith(f"{saved.run_id}:")))

    await one(node).execute(Trail(), **given(store))
    assert seen == [("it", "running", True)]


async def test_a_stop_ends_the_wait_for_the_first_checkpoint_and_no_node_begins(clock: FakeClock):
    class Hanging(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            await asyncio.get_running_loop().create_future()

    lab, controller = NodeRecorder(), AbortController()
    async with lab.line("flow", "a").start(Trail(), signal=controller.signal, **given(Hanging())) as run:
        await drain_ready_tasks()
        controller.abort("enough")
        await clock.elapse(60)
        assert run.finished
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, lab.ran) == ("a", [])


async def test_a_flow_whose_first_checkpoint_cannot_be_written_runs_nothing():
    class Full(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            raise CheckpointError("the disk is full")

    lab = NodeRecorder()
    result = await lab.line("flow", "a").execute(Trail(), **given(Full()))
    assert isinstance(result.outcome, Failed)
    assert str(result.outcome.error) == "the disk is full"
    assert (result.cursor, lab.ran) == ("a", [])


async def test_a_fresh_run_does_not_overwrite_an_unfinished_one_and_is_told_what_to_do(store: Checkpoints):
    lab = NodeRecorder()
    before = await stopped_in("b", lab, store)
    text = await store.load(ID)
    ran = list(lab.ran)
    with pytest.raises(CheckpointUnfinished) as raised:
        await lab.line("flow", "a", "b", "c").execute(Trail(["other"]), **given(store))
    assert isinstance(raised.value, UsageError)
    told = str(raised.value)
    for part in ("'visit-7'", "'flow'", "at b", "aborted", before.run_id, 'resume="auto"', "store.delete('visit-7')"):
        assert part in told
    assert raised.value.checkpoint == Checkpoint.from_result(before)
    assert await store.load(ID) == text
    assert lab.ran == ran
    assert await is_free(store)


async def test_what_was_thrown_away_does_not_stand_in_the_way(store: Checkpoints):
    lab = NodeRecorder()
    await stopped_in("b", lab, store)
    await store.delete(ID)
    result = await lab.line("flow", "a").execute(Trail(), **given(store))
    assert isinstance(result.outcome, Completed)


async def test_a_refused_run_has_no_events_and_can_be_asked_again(store: Checkpoints):
    lab = NodeRecorder()
    await stopped_in("b", lab, store)
    run = lab.line("flow", "a", "b", "c").start(Trail(), **given(store))
    assert [event async for event in run] == []
    for _ in range(2):
        with pytest.raises(CheckpointUnfinished):
            await run


async def test_what_cannot_be_read_is_neither_run_nor_overwritten(store: Checkpoints):
    lab = NodeRecorder()
    await store.save(ID, "not json")
    for more in EACH:
        with pytest.raises(CheckpointError, match="checkpoint 'visit-7' cannot be read, and was left as it is"):
            await lab.line("flow", "a").execute(Trail(), **given(store), **more)
    assert await store.load(ID) == "not json"
    assert lab.ran == []


@pytest.mark.parametrize("resume", [None, "auto", "checkpoint"])
async def test_a_second_run_of_one_id_is_refused_at_once_and_told_who_has_it(store: Checkpoints, resume: str | None):
    lab = NodeRecorder()
    lab.after["b"] = gate = asyncio.Event()
    flow = lab.line("flow", "a", "b")
    async with asyncio.timeout(10), flow.start(Trail(), **given(store)) as first:
        while lab.ran != ["a", "b"]:
            await asyncio.sleep(0.001)  # real time: the stores on disk work in threads
        found = await Checkpoint.recall(store, ID)
        more: Any = {"resume": found if resume == "checkpoint" else resume}
        state = () if resume == "checkpoint" else (Trail(),)
        with pytest.raises(CheckpointInUse, match=r"in use by this process \(pid \d+\) since 20") as raised:
            await flow.execute(*state, **given(store), **more)
        assert "takes the lease of its checkpoint_id by itself" in raised.value.__notes__[0]
        gate.set()
        result = await first
    assert isinstance(result.outcome, Completed)
    assert lab.ran == ["a", "b"]


async def test_the_lease_is_given_back_however_the_run_ends(store: Checkpoints):
    lab = NodeRecorder()
    await stopped_in("b", lab, store)
    assert await is_free(store)
    lab.broken = {"b"}
    failed = await lab.line("flow", "a", "b", "c").execute(Trail(), resume="auto", **given(store))
    assert isinstance(failed.outcome, Failed)
    assert await is_free(store)
    lab.broken = set()
    completed = await lab.line("flow", "a", "b", "c").execute(Trail(), resume="auto", **given(store))
    assert isinstance(completed.outcome, Completed)
    assert await is_free(store)


async def test_the_checkpoint_is_looked_at_under_the_lease():
    seen: list[str] = []

    class Watched(MemoryCheckpoints):
        async def load(self, key: str) -> str | None:
            seen.append("free" if await is_free(self) else "leased")
            return await super().load(key)

        async def save(self, key: str, text: str) -> None:
            seen.append("free" if await is_free(self) else "leased")
            await super().save(key, text)

    await NodeRecorder().line("flow", "a").execute(Trail(), **given(Watched()))
    assert seen == ["leased"] * 4  # the look; before the first node, after it, at the end


async def test_a_lease_that_cannot_be_given_back_does_not_change_how_the_flow_ended(caplog):
    class Sticky(MemoryCheckpoints):
        @asynccontextmanager
        async def lease(self, key: str) -> AsyncIterator[None]:
            yield
            raise OSError("the lock is gone")

    result = await NodeRecorder().line("flow", "a").execute(Trail(), **given(Sticky()))
    assert isinstance(result.outcome, Completed)
    assert "the lease of its checkpoint could not be given back: OSError: the lock is gone" in caplog.text


async def test_auto_begins_where_there_is_nothing_and_goes_on_where_there_is_something(store: Checkpoints):
    lab = NodeRecorder()
    lab.stuck = {"b"}
    flow = lab.line("flow", "a", "b", "c")
    async with flow.start(Trail(), resume="auto", **given(store)) as run:
        await lab.reached.wait()
        run.abort("enough")
        first = await run
    assert (first.cursor, lab.ran) == ("b", ["a", "b"])
    second = flow.start(Trail(["not used"]), resume="auto", **given(store))
    result = await second
    assert isinstance(result.outcome, Completed)
    assert result.state.notes == ["a", "b", "c"]
    assert lab.ran == ["a", "b", "b", "c"]
    assert len(set(lab.keys["b"])) == 1
    assert second.id == result.run_id == first.run_id
    assert not result.already_completed


async def test_auto_gives_the_result_of_a_run_that_has_completed_and_runs_nothing(store: Checkpoints):
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b")
    cleaned: list[str] = []
    flow.cleanup(lambda state: cleaned.append("cleaned"))
    first = await flow.execute(Trail(), resume="auto", **given(store))
    text = await store.load(ID)
    again = await flow.execute(Trail(["not used"]), resume="auto", **given(store))
    assert isinstance(again.outcome, Completed)
    assert again.outcome.value == again.state == first.state
    assert (again.already_completed, first.already_completed) == (True, False)
    assert (again.run_id, again.executed, again.cursor) == (first.run_id, first.executed, None)
    assert lab.ran == ["a", "b"]
    assert cleaned == ["cleaned"]
    assert await store.load(ID) == text


async def test_auto_needs_a_state_and_a_store():
    flow, store = NodeRecorder().line("flow", "a"), MemoryCheckpoints()
    for args, options in (
        ((), given(store)),
        ((Trail(),), {}),
    ):
        with pytest.raises(UsageError, match='resume="auto" needs a state to begin with, checkpoints= and'):
            await flow.execute(*args, resume="auto", **options)
    wrong: Any = "automatic"
    with pytest.raises(UsageError, match=r"resume must be a Checkpoint, .* not 'automatic'"):
        await flow.execute(Trail(), resume=wrong, **given(store))


async def test_auto_mends_what_it_finds_as_migrate_says(store: Checkpoints):
    def rename(old: Checkpoint) -> Checkpoint:
        return replace(old, place={**old.place, "node": "d"})

    lab = NodeRecorder()
    await stopped_in("c", lab, store)
    changed = lab.line("flow", "a", "b", "d")
    with pytest.raises(CheckpointMismatch, match="'c' is gone"):
        await changed.execute(Trail(), resume="auto", **given(store))
    assert await is_free(store)
    result = await changed.execute(Trail(), resume="auto", migrate=rename, **given(store))
    assert result.state.notes == ["a", "b", "d"]


async def test_a_fresh_run_of_what_has_completed_is_told_when_and_runs_nothing(store: Checkpoints, clock: FakeClock):
    lab = NodeRecorder()
    flow = lab.line("flow", "a")
    first = await flow.execute(Trail(), **given(store))
    with pytest.raises(CheckpointCompleted) as raised:
        await flow.execute(Trail(), **given(store))
    assert isinstance(raised.value, UsageError)
    assert raised.value.checkpoint.completed_at == pytest.approx(clock.time())
    for part in (
        "has completed under checkpoint 'visit-7' at 20",
        "UTC",
        first.run_id,
        'resume="auto" gives its result',
    ):
        assert part in str(raised.value)
    assert lab.ran == ["a"]


async def test_the_result_of_a_completed_run_is_given_also_when_the_flow_has_changed(store: Checkpoints):
    lab = NodeRecorder()
    await lab.line("flow", "a", "b").execute(Trail(), **given(store))
    result = await lab.line("flow", "a", "new").execute(Trail(), resume="auto", **given(store))
    assert (result.already_completed, result.state.notes) == (True, ["a", "b"])
    with pytest.raises(CheckpointMismatch, match="this checkpoint is of flow 'flow', not of 'other'"):
        await lab.line("other", "a").execute(Trail(), resume="auto", **given(store))
    with pytest.raises(CheckpointMismatch, match=r"has completed .*, and its result cannot be read"):
        await one(lambda state: None, int).execute(1, resume="auto", **given(store))


async def test_a_checkpoint_of_the_same_run_that_completed_meanwhile_gives_its_result(store: Checkpoints):
    lab = NodeRecorder()
    old = Checkpoint.from_result(await stopped_in("b", lab, store))
    flow = lab.line("flow", "a", "b", "c")
    await flow.execute(resume=old, **given(store))
    ran = list(lab.ran)
    result = await flow.execute(resume=old, **given(store))
    assert (result.already_completed, result.state.notes, lab.ran) == (True, ["a", "b", "c"], ran)


async def test_a_checkpoint_that_is_older_than_what_the_store_has_is_refused(store: Checkpoints):
    lab = NodeRecorder()
    old = Checkpoint.from_result(await stopped_in("b", lab, store))
    flow = lab.line("flow", "a", "b", "c")
    newer = await lab.stop_in("c", flow.start(resume=old, **given(store)))
    ran = list(lab.ran)
    with pytest.raises(CheckpointUnfinished, match=r"has gone on since .* it is at 'c' now.*resume=\"auto\""):
        await flow.execute(resume=old, **given(store))
    assert lab.ran == ran
    result = await flow.execute(resume=Checkpoint.from_result(newer), **given(store))
    assert result.state.notes == ["a", "b", "c"]


async def test_a_checkpoint_of_another_run_does_not_overwrite_what_is_there(store: Checkpoints):
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b", "c")
    elsewhere = Checkpoint.from_result(await lab.stop_in("b", flow.start(Trail())))
    await stopped_in("b", lab, store)
    with pytest.raises(CheckpointUnfinished, match="has not completed"):
        await flow.execute(resume=elsewhere, **given(store))
    await flow.execute(Trail(), resume="auto", **given(store))
    with pytest.raises(CheckpointCompleted):
        await flow.execute(resume=elsewhere, **given(store))


async def test_a_checkpoint_from_elsewhere_goes_on_in_a_store_that_has_nothing(store: Checkpoints):
    lab = NodeRecorder()
    flow = lab.line("flow", "a", "b", "c")
    elsewhere = Checkpoint.from_result(await lab.stop_in("b", flow.start(Trail())))
    result = await flow.execute(resume=elsewhere, **given(store))
    assert (result.state.notes, result.run_id) == (["a", "b", "c"], elsewhere.run_id)
    saved = await Checkpoint.recall(store, ID)
    assert saved is not None
    assert saved.completed


async def test_a_run_that_is_stopped_before_it_begins_leaves_the_store_as_it_was(store: Checkpoints):
    lab = NodeRecorder()
    await stopped_in("b", lab, store)
    text, ran = await store.load(ID), list(lab.ran)
    for more in EACH:
        run = lab.line("flow", "a", "b", "c").start(Trail(), **given(store), **more)
        run.abort("too early")
        assert isinstance((await run).outcome, Aborted)
    assert (await store.load(ID), lab.ran) == (text, ran)


async def test_a_stop_ends_the_wait_for_a_store_that_does_not_answer(clock: FakeClock):
    class Silent(MemoryCheckpoints):
        async def load(self, key: str) -> str | None:
            await asyncio.get_running_loop().create_future()
            return None

    lab, store = NodeRecorder(), Silent()
    async with lab.line("flow", "a").start(Trail(), resume="auto", **given(store)) as run:
        await drain_ready_tasks()
        run.abort("enough")
        await drain_ready_tasks()
        assert run.finished
        result = await run
    assert isinstance(result.outcome, Aborted)
    assert (result.cursor, lab.ran) == ("a", [])
    assert await is_free(store)


async def test_what_is_recorded_once_travels_with_the_checkpoint():
    lab = NodeRecorder()
    run = lab.line("flow", "a", "b").start(Trail())
    name = f"{run.id}:b:1/charge"
    run._execution.once[name] = '{"paid": 7}'
    result = await lab.stop_in("b", run)
    checkpoint = Checkpoint.from_json(Checkpoint.from_result(result).to_json())
    assert checkpoint.once == {name: '{"paid": 7}'}
    resumed = await lab.stop_in("b", lab.line("flow", "a", "b").start(resume=checkpoint))
    assert Checkpoint.from_result(resumed).once == checkpoint.once


async def test_a_checkpoint_of_an_older_writer_can_be_read():
    lab = NodeRecorder()
    data = json.loads(
        Checkpoint.from_result(await lab.stop_in("b", lab.line("flow", "a", "b").start(Trail()))).to_json()
    )
    for name in ("once", "revision", "completed_at"):
        del data[name]
    old = Checkpoint.from_json(json.dumps(data))
    assert (old.once, old.revision, old.completed_at, old.completed) == ({}, 0, None, False)
    store = MemoryCheckpoints()
    await store.save(ID, json.dumps(data))
    result = await lab.line("flow", "a", "b").execute(Trail(), resume="auto", **given(store))
    assert result.state.notes == ["a", "b"]


async def test_what_a_part_returned_is_in_the_checkpoint_before_the_node_goes_on(store: Checkpoints):
    ran: list[str] = []

    async def charge(ctx: NodeContext[Any]) -> str:
        async def part() -> dict[str, int]:
            ran.append("part")
            return {"paid": 7}

        paid = await ctx.once("charge", part)
        saved = await Checkpoint.recall(store, ID)
        assert saved is not None
        assert saved.once == {f"{ctx.idempotency_key}/charge": '{"paid": 7}'}
        return str(paid["paid"])

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        state.notes.append(await charge(ctx))
        ran.append("rest")
        if ran.count("rest") < 3:
            raise LookupError("the network is down")

    # One attempt more in the same run, then the run fails, and a run of another flow object goes on.
    flow = one(node, Trail, retry=Retry(attempts=2))
    failed = await flow.execute(Trail(), **given(store))
    assert isinstance(failed.outcome, Failed)
    result = await one(node, Trail, retry=Retry(attempts=2)).execute(Trail(), resume="auto", **given(store))
    assert result.state.notes == ["7"]
    assert ran == ["part", "rest", "rest", "rest"]


async def test_each_visit_and_each_item_has_parts_of_its_own_and_they_survive_a_resume_without_a_store():
    ran: list[str] = []
    stop = asyncio.Event()

    async def body(item: str, ctx: NodeContext[Any]) -> str:
        async def part() -> str:
            ran.append(item)
            return item.upper()

        told = await ctx.once("part", part)
        if item == "c" and not stop.is_set():
            stop.set()
            await asyncio.get_running_loop().create_future()
        return told

    flow: Flow[Trail, Any] = Flow("flow", start="each", state=Trail)
    flow.scatter("each", items=lambda state: "abc", body=body, gather=lambda state, found: state.found.extend(found))
    flow.route("each", END)
    async with flow.start(Trail()) as run:
        await stop.wait()
        run.abort("enough")
        stopped = await run
    assert stopped.executed == ()
    checkpoint = Checkpoint.from_json(Checkpoint.from_result(stopped).to_json())
    result = await flow.execute(resume=checkpoint)
    assert (result.state.found, ran) == (["A", "B", "C"], ["a", "b", "c"])


async def test_a_part_whose_result_cannot_be_written_fails_its_node():
    class Full(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            if json.loads(text)["once"]:
                raise CheckpointError("the disk is full")
            await super().save(key, text)

    ran: list[str] = []

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        await ctx.once("part", lambda: "done")
        ran.append("rest")

    result = await one(node, Trail).execute(Trail(), **given(Full()))
    assert isinstance(result.outcome, Failed)
    assert ran == []


async def test_an_agent_in_a_node_writes_a_checkpoint_before_and_after_each_round_of_calls_and_for_its_answer():
    class Counting(MemoryCheckpoints):
        saved = 0

        async def save(self, key: str, text: str) -> None:
            self.saved += 1
            await super().save(key, text)

    store = Counting()
    look = tool(lambda: "nothing", name="look")
    agent = Agent(ScriptedModel([Call("look")], [Call("look")], "done"), tools=[look])

    async def node(state: Trail, ctx: NodeContext[Any]) -> None:
        state.notes.append((await agent(ctx, "go")).text)

    result = await one(node, Trail).execute(Trail(), **given(store))
    assert result.state.notes == ["done"]
    assert store.saved == 3 + 2 * 2 + 1
