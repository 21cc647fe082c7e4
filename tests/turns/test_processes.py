"""Owns the proof across processes: stores on disk, kill -9 at any moment, and one loop at a time."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from safepoint.run import CheckpointInUse
from safepoint.testing import drain_ready_tasks
from safepoint.turns import TurnLoop, TurnPlan
from tests.conftest import counts
from tests.kit.turn_loops import ControlledTurns
from tests.turns.worker import store_at

ROOT = Path(__file__).parents[2]
SECONDS = 40.0
KINDS = ["folder", "sqlite"]


@contextmanager
def worker(kind: str, path: Path, *items: str, resume: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another process at work on the store. It is killed in the end, and also when it says nothing for too long."""
    command = [sys.executable, "-m", "tests.turns.worker", kind, str(path / "store"), str(path / "ledger"), *items]
    environment = os.environ | ({"resume": "1"} if resume else {})
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: "subprocess.Popen[str]") -> str:
    """Its last words."""
    assert process.stdout is not None
    return process.stdout.read().splitlines()[-1]


def receipt_builder(path: Path) -> list[str]:
    return (path / "ledger").read_text().splitlines()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_killed_at_any_moment_loses_no_item_and_repeats_none_that_was_told(
    kind: str, tmp_path: Path
) -> None:
    items = [f"item-{number}" for number in range(12)]
    kills = counts(4, 100)
    for number in range(kills):
        if not (tmp_path / "ledger").exists() or set(items) <= {line.split()[1] for line in receipt_builder(tmp_path)}:
            items = [f"{number}-{name}" for name in range(12)]
            fresh = items
        else:
            fresh = []
        with worker(kind, tmp_path, *fresh) as process:
            if said(process) == "working\n":  # the store has them all
                time.sleep(random.random() * 0.05)  # real time: the kill has to come at any moment
    with worker(kind, tmp_path) as process:
        assert "[] [] " in ended(process)
    lines = receipt_builder(tmp_path)
    done = {line.split()[1] for line in lines if line.startswith("did")}
    assert set(items) <= done, "an item was lost"
    for place, line in enumerate(lines):
        if line.startswith("told"):
            assert f"did {line.split()[1]}" not in lines[place:], "told, and done again"
            assert lines.count(line) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_loop_goes_on_in_another_process(kind: str, tmp_path: Path) -> None:
    with worker(kind, tmp_path, "slow", "a", "b") as process:
        assert said(process) == "working\n"
        process.send_signal(signal.SIGTERM)
        assert ended(process) == "ended 0 ['a', 'b'] ['slow'] saved None"
    with worker(kind, tmp_path, "c", resume=True) as process:
        assert ended(process).startswith("ended 4 [] [] deleted")
    assert [line for line in receipt_builder(tmp_path) if not line.startswith("told")] == [
        "did slow",
        "resumes slow",
        "did resumed",
        "did a",
        "did b",
        "did c",
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_loop_on_the_same_id_gets_a_clear_error_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    store = store_at(kind, str(tmp_path / "store"))
    first = ControlledTurns(checkpoints=store, checkpoint_id="k")
    async with first.loop:
        first.push("a")
        while "a" not in first.began:
            await asyncio.sleep(0.001)  # real time: the store is on disk
        second = ControlledTurns(checkpoints=store, checkpoint_id="k")
        second.push("b")
        second.loop.start()
        exit = await second.exit()
        assert isinstance(exit.reason, CheckpointInUse)
        assert "'k'" in str(exit.reason)
        assert (exit.unhandled, exit.checkpoint.status, second.planned) == (["b"], "none", [])
        assert await asyncio.to_thread(_elsewhere, kind, tmp_path) == "CheckpointInUse"
        await first.finish("a")
        await drain_ready_tasks()
    assert (await first.exit()).handled == 1
    third = ControlledTurns(checkpoints=store, checkpoint_id="k")
    third.loop.stop()
    third.loop.start()
    assert (await third.exit()).reason is None, "the lease ended with its loop"


def _elsewhere(kind: str, path: Path) -> str:
    with worker(kind, path, "c") as process:
        last = ended(process)
    assert last.startswith("ended 0 ['c'] [] none CheckpointInUse(")
    assert f"process {os.getpid()}" in last
    return "CheckpointInUse"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_store_has_the_items_of_a_running_turn_before_anyone_is_told_that_it_began(
    kind: str, tmp_path: Path
) -> None:
    """5.2-21: theirs writes only at the end, so a crash loses the turn."""
    store = store_at(kind, str(tmp_path / "store"))
    seen: list[object] = []

    async def plan(items: list[str]) -> TurnPlan[str]:
        seen.append(await store.load("k"))
        return TurnPlan(nothing, consumed=items[:1], remaining=items[1:])

    async def nothing(ctx: object, value: object) -> None:
        seen.append(await store.load("k"))

    loop: TurnLoop[str] = TurnLoop(plan, checkpoints=store, checkpoint_id="k")
    loop.push("a")
    loop.push("b")
    async with loop:
        loop.stop(when_idle_for=0.01)
        assert (await loop.wait(20)).handled == 2
    assert ['"unhandled": ["a", "b"]' in str(text) for text in seen] == [True, True, False, False]
    assert ['"unhandled": ["b"]' in str(text) for text in seen] == [False, False, True, True]
    assert await store.load("k") is None
