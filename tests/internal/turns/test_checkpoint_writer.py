"""Owns the tests of the loop's checkpoint: when it is written, kept, deleted and set aside."""

import logging

import pytest

from safepoint import UsageError
from safepoint.agent import AgentResult
from safepoint.messages import UserMessage
from safepoint.run import CheckpointError, CheckpointInUse, MemoryCheckpoints
from safepoint.turns import CheckpointReport, InterruptedTurn
from safepoint.turns.loop_checkpoint import AnyPartial, CheckpointWriter, SavedLoop

LEFT = SavedLoop(("a", "b"), InterruptedTurn(("c",), None), "deploy")


def writer(store: MemoryCheckpoints) -> CheckpointWriter[str]:
    return CheckpointWriter(store, "k", str, str)


async def loaded(store: MemoryCheckpoints) -> CheckpointWriter[str]:
    one = writer(store)
    await one.load()
    return one


class Counting(MemoryCheckpoints):
    def __init__(self) -> None:
        super().__init__()
        self.saves = 0

    async def save(self, key: str, text: str) -> None:
        self.saves += 1
        await super().save(key, text)


class Failing(MemoryCheckpoints):
    broken = True

    async def save(self, key: str, text: str) -> None:
        if self.broken:
            raise OSError("disk full")
        await super().save(key, text)

    async def delete(self, key: str) -> bool:
        if self.broken:
            raise OSError("disk full")
        return await super().delete(key)


async def test_what_one_leaves_the_next_one_finds() -> None:
    store = MemoryCheckpoints()
    assert await (await loaded(store)).save_exit(LEFT, skip=False, planning_failed=False) == CheckpointReport("saved")
    assert await writer(store).load() == LEFT


async def test_nothing_there_is_a_fresh_start() -> None:
    store = MemoryCheckpoints()
    assert (await writer(store).load()).empty
    await store.save("k", "")
    assert (await writer(store).load()).empty


async def test_what_is_used_up_is_deleted() -> None:
    store = MemoryCheckpoints()
    await (await loaded(store)).save_exit(LEFT, skip=False, planning_failed=False)
    one = await loaded(store)
    assert (await one.save_exit(SavedLoop(), skip=False, planning_failed=False)).status == "deleted"
    assert await store.load("k") is None
    assert (await (await loaded(store)).save_exit(SavedLoop(), skip=False, planning_failed=False)).status == "none"


async def test_what_was_loaded_stays_when_the_loop_broke() -> None:
    store = MemoryCheckpoints()
    await (await loaded(store)).save_exit(LEFT, skip=False, planning_failed=False)
    one = await loaded(store)
    assert (await one.save_exit(SavedLoop(), skip=False, planning_failed=True)).status == "kept"
    assert await writer(store).load() == LEFT
    assert (
        await (await loaded(MemoryCheckpoints())).save_exit(LEFT, skip=False, planning_failed=True)
    ).status == "none"


async def test_skipping_leaves_nothing_behind() -> None:
    store = MemoryCheckpoints()
    await (await loaded(store)).save_exit(LEFT, skip=False, planning_failed=False)
    one = await loaded(store)
    assert (await one.save_exit(LEFT, skip=True, planning_failed=False)).status == "deleted"
    assert await store.load("k") is None


async def test_between_two_turns_it_is_written_only_if_something_changed() -> None:
    store = Counting()
    one = await loaded(store)
    await one.save(LEFT)
    await one.save(LEFT)
    assert store.saves == 1
    assert (await one.save_exit(LEFT, skip=False, planning_failed=False)).status == "saved"
    assert store.saves == 1
    assert await writer(store).load() == LEFT


async def test_a_store_that_fails_between_turns_is_a_warning_and_the_end_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Failing()
    one = await loaded(store)
    with caplog.at_level(logging.WARNING, "safepoint"):
        await one.save(LEFT)
        await one.save(LEFT)
    assert len(caplog.records) == 1, "said once"
    assert "'k'" in caplog.text
    assert "disk full" in caplog.text
    assert (await one.save_exit(LEFT, skip=False, planning_failed=False)).status == "failed"
    store.broken = False
    assert (await one.save_exit(LEFT, skip=False, planning_failed=False)).status == "saved"


async def test_a_checkpoint_that_could_not_be_deleted_is_said_to_be_there_still() -> None:
    store = Failing()
    store.broken = False
    one = await loaded(store)
    await one.save_exit(LEFT, skip=False, planning_failed=False)
    store.broken = True
    await one.save(SavedLoop())
    assert (await one.save_exit(SavedLoop(), skip=False, planning_failed=True)).status == "kept"
    report = await one.save_exit(SavedLoop(), skip=False, planning_failed=False)
    assert (report.status, str(report.error)) == ("failed", "disk full")


async def test_what_cannot_be_read_is_set_aside_and_named() -> None:
    for text in ("{ half", '{"kind": "turn-loop", "version": 1, "unhandled": [], "stopped": ["odd"]}', "[" * 99_999):
        store = MemoryCheckpoints()
        await store.save("k", text)
        one = writer(store)
        with pytest.raises(CheckpointError, match="'k' cannot be read"):
            await one.load()
        assert store.aside[0][:2] == ("k", text)
        assert (await one.save_exit(LEFT, skip=False, planning_failed=True)).status == "none"


async def test_what_could_not_be_loaded_is_left_as_it_is() -> None:
    class Away(MemoryCheckpoints):
        async def load(self, key: str) -> str | None:
            raise CheckpointError("the disk is away")

    store = Away()
    await store.save("k", "whatever it is")
    one = writer(store)
    with pytest.raises(CheckpointError, match="away"):
        await one.load()
    await one.save_exit(SavedLoop(), skip=False, planning_failed=True)
    assert await MemoryCheckpoints.load(store, "k") == "whatever it is"
    assert store.aside == []


async def test_what_a_stopped_turn_left_behind_that_json_cannot_hold_costs_no_item(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is what a plain function returned though it was stopped, say: that turn begins anew."""
    store = MemoryCheckpoints()
    one = await loaded(store)
    odd: SavedLoop[str] = SavedLoop(("b",), InterruptedTurn(("a",), object()))
    assert (await one.save_exit(odd, skip=False, planning_failed=False)).status == "saved"
    assert "partial_type=" in caplog.text
    assert await writer(store).load() == SavedLoop(("b",), InterruptedTurn(("a",), None))


@pytest.mark.parametrize(
    "partial", [AgentResult("half", (UserMessage(text="go"),)), {"page": 7}, "text", ["a", 1], None], ids=repr
)
async def test_by_default_it_holds_what_an_agent_or_any_work_left_behind(partial: object) -> None:
    store = MemoryCheckpoints()
    saved: SavedLoop[str] = SavedLoop((), InterruptedTurn(("a",), partial))
    one: CheckpointWriter[str] = CheckpointWriter(store, "k", str, AnyPartial)
    await one.load()
    await one.save(saved)
    assert await CheckpointWriter[str](store, "k", str, AnyPartial).load() == saved


async def test_an_item_that_would_come_back_as_something_else_is_not_written() -> None:
    one = await loaded(MemoryCheckpoints())
    report = await one.save_exit(SavedLoop((7,)), skip=False, planning_failed=False)  # type: ignore[arg-type]
    assert (report.status, "item_type=" in str(report.error)) == ("failed", True)


async def test_one_key_is_for_one_loop() -> None:
    store = MemoryCheckpoints()
    async with writer(store).lease():
        with pytest.raises(CheckpointInUse):
            async with writer(store).lease():
                pass


def test_types_that_cannot_be_written_are_refused_at_once() -> None:
    class Odd:
        pass

    with pytest.raises(UsageError, match="item_type"):
        CheckpointWriter(MemoryCheckpoints(), "k", Odd, str)
    with pytest.raises(UsageError, match="partial_type"):
        CheckpointWriter(MemoryCheckpoints(), "k", str, Odd)
