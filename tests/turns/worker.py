"""Owns the program that is killed: a loop over a store on disk, whose effects and words outlive it in a file.

    python -m tests.turns.worker folder|sqlite PATH LEDGER [ITEM …]

It does every item once, in 5 ms, and ends when it has been idle. SIGTERM stops it now.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from safepoint.events import Event, TurnEnded
from safepoint.run import Checkpoints, Completed, Context, FolderCheckpoints, SqliteCheckpoints, StopAt
from safepoint.turns import InterruptedTurn, TurnLoop, TurnPlan

SECONDS = 0.005


def store_at(kind: str, path: str) -> Checkpoints:
    return FolderCheckpoints(path) if kind == "folder" else SqliteCheckpoints(f"{path}.db")


async def main(kind: str, path: str, receipt_builder: str, *items: str) -> None:
    file = os.open(receipt_builder, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def note(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    async def work(ctx: Context, item: str) -> str:
        note("did", item)
        await asyncio.sleep(60 if item == "slow" else SECONDS)  # real time: another process watches
        return item

    async def plan(waiting: list[str]) -> TurnPlan[str]:
        return TurnPlan(work, waiting[0], consumed=waiting[:1], remaining=waiting[1:])

    async def resume(stopped: InterruptedTurn[str], waiting: list[str]) -> TurnPlan[str]:
        note("resumes", *stopped.items)
        return TurnPlan(work, "resumed", consumed=stopped.items, remaining=waiting)

    def hear(event: Event) -> None:
        if event.kind == "turn_started":
            print("working", flush=True)
        if isinstance(event, TurnEnded) and isinstance(event.outcome, Completed):
            note("told", event.outcome.value)

    options: dict[str, Any] = {"resume": resume} if "slow" in items or "resume" in os.environ else {}
    loop: TurnLoop[str] = TurnLoop(
        plan, on_event=hear, checkpoints=store_at(kind, path), checkpoint_id="k", item_type=str, **options
    )
    for item in items:
        loop.push(item)
    loop.start()
    loop.stop(when_idle_for=0.02)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: loop.stop(at=StopAt.NOW, reason="SIGTERM"))
    exit = await loop.wait()
    print(
        "ended", exit.handled, exit.unhandled, exit.interrupted, exit.checkpoint.status, repr(exit.reason), flush=True
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
