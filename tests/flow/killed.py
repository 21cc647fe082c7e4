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

from safepoint.flow import END, Flow, NodeContext
from safepoint.run import CheckpointInUse, Checkpoints, FolderCheckpoints, SqliteCheckpoints


@dataclass
class Ledger:
    """The state: what was done, in order."""

    done: list[str] = field(default_factory=list)
    rounds: int = 0


class World:
    """Effects outside of the state: a line in a file for every one, by its key.

    While the folder has a file `hold`, every node waits after its effect.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "effects"
        self._hold = folder / "hold"

    async def note(self, what: str, ctx: NodeContext[Any]) -> None:
        with self._path.open("a") as file:
            file.write(f"{ctx.idempotency_key}={what}\n")
        await asyncio.sleep(3600.0 if self._hold.exists() else 0.001)  # real time: so that it can be killed in here

    def lines(self) -> list[str]:
        """All that happened, in order."""
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        return [line.strip() for line in lines if line.endswith("\n")]

    def effects(self) -> set[str]:
        """What happened, without the run in which it did."""
        return {line.partition(":")[2] for line in self.lines()}

    def runs(self) -> set[str]:
        """The runs that the keys are of."""
        return {line.partition(":")[0] for line in self.lines()}


def flow_of(world: World) -> Flow[Ledger, Any]:
    """Every kind of node, in a cycle."""

    def node(name: str) -> Any:
        async def run(state: Ledger, ctx: NodeContext[Any]) -> None:
            await world.note(name, ctx)
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
        await world.note(f"item {number}", ctx)
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
    flow = flow_of(World(folder))
    result = await flow.execute(Ledger(), resume="auto", checkpoints=store_of(folder), checkpoint_id="run")
    return result.outcome.unwrap()


def child(folder: Path) -> None:
    try:
        state = asyncio.run(go_on(folder))
    except CheckpointInUse as refused:
        (folder / "refused").write_text(str(refused))
        raise SystemExit(2) from None
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
            except SystemExit as ended:
                status = int(str(ended.code))
            finally:
                os._exit(status)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
