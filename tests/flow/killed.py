"""A program that can be killed at any moment: it runs a flow with checkpoints, and goes on from what it finds.

It forks one child per line that it reads, so that only the first start of Python is waited for. A line is a folder;
the answer is the child's process id, and then how it ended.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safepoint.flow import END, Checkpoint, Flow, NodeContext
from safepoint.run.checkpoints import Checkpoints, FolderCheckpoints
from safepoint.run.checkpoints_sqlite import SqliteCheckpoints


@dataclass
class Ledger:
    """The state: what was done, in order."""

    done: list[str] = field(default_factory=list)
    rounds: int = 0


class World:
    """Effects outside of the state: a line in a file for every one, by its key."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "effects"

    def note(self, what: str, ctx: NodeContext[Any]) -> None:
        key = ctx.idempotency_key.partition(":")[2]
        with self._path.open("a") as file:
            file.write(f"{key}={what}\n")

    def effects(self) -> set[str]:
        lines = self._path.read_text().splitlines(keepends=True)
        return {line.strip() for line in lines if line.endswith("\n")}


def flow_of(world: World) -> Flow[Ledger, Any]:
    """Every kind of node, in a cycle."""

    def node(name: str) -> Any:
        async def run(state: Ledger, ctx: NodeContext[Any]) -> None:
            world.note(name, ctx)
            await asyncio.sleep(0.001)  # real time: so that there is a time to be killed in
            state.done.append(name)

        return run

    def line(flow_name: str, *names: str) -> Flow[Ledger, Any]:
        flow: Flow[Ledger, Any] = Flow(flow_name, start=names[0])
        targets: list[Any] = [*names[1:], END]
        for name, target in zip(names, targets, strict=True):
            flow.node(name, node(name))
            flow.route(name, target)
        return flow

    async def item(number: int, ctx: NodeContext[Any]) -> str:
        world.note(f"item {number}", ctx)
        await asyncio.sleep(0.001)  # real time: so that there is a time to be killed in
        return f"item {number}"

    async def items(state: Ledger) -> AsyncIterator[int]:
        for number in range(6):
            yield number

    async def again(state: Ledger) -> str:
        state.rounds += 1
        return "again" if state.rounds < 2 else "done"

    flow: Flow[Ledger, Any] = Flow("killed", start="sub")
    flow.subflow("sub", line("child", "c1", "c2", "c3"))
    flow.parallel("both", {"left": line("left", "l1", "l2"), "right": line("right", "r1", "r2")}, join=_join)
    flow.scatter("each", items=items, body=item, gather=_gather, concurrency=2)
    flow.node("again", again, outputs=("again", "done"))
    for name, target in (("sub", "both"), ("both", "each"), ("each", "again")):
        flow.route(name, target)
    flow.route("again", END, again="sub")
    return flow


def _join(state: Ledger, branches: dict[str, Ledger]) -> None:
    before = len(state.done)
    for name in sorted(branches):
        state.done += branches[name].done[before:]


def _gather(state: Ledger, results: list[str]) -> None:
    state.done += results


def store_of(folder: Path) -> Checkpoints:
    return SqliteCheckpoints(folder / "db.sqlite") if "sqlite" in folder.name else FolderCheckpoints(folder / "store")


async def go_on(folder: Path) -> Ledger:
    """From the checkpoint, if there is one."""
    store = store_of(folder)
    found = await Checkpoint.recall(store, "run")
    given: dict[str, Any] = {} if found is None else {"resume": found}
    flow = flow_of(World(folder))
    result = await flow.execute(*([Ledger()] if found is None else []), checkpoints=store, checkpoint_id="run", **given)
    return result.outcome.unwrap()


def child(folder: Path) -> None:
    state = asyncio.run(go_on(folder))
    (folder / "result").write_text("\n".join(state.done))


def main() -> None:
    for line in sys.stdin:
        folder = Path(line.strip())
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child(folder)
                status = 0
            finally:
                os._exit(status)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
