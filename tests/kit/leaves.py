"""Runs for tests of leaves: one that is stopped while its tool is at work, and one to attach any leaf to."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from safepoint import AbortController
from safepoint.events import Event
from safepoint.run import Completed, Context, Entry, Outcome, Policy, Receipt, leaf, settle
from safepoint.testing import drain_ready_tasks
from tests.kit.waiting import until

SECONDS = 20.0


@dataclass
class Stopped:
    """How the run ended: its outcome, and how long after the stop."""

    outcome: Outcome[Any]
    seconds: float

    @property
    def receipt(self) -> Receipt:
        assert not isinstance(self.outcome, Completed)
        return self.outcome.receipt

    def entries(self, name: str) -> list[Entry]:
        """The lines whose operation ends with this name."""
        return [entry for entry in self.receipt.entries if entry.name.rpartition("/")[2] == name]

    def fate(self, name: str) -> str:
        [entry] = self.entries(name)
        return entry.fate


class Gate:
    """Says that the tool is where the test wants it: set in the tool, awaited by the test."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    async def opened(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self._event.wait, SECONDS)


async def stop(tool: Callable[..., Any], when: Callable[[], object], policy: Policy | None = None) -> Stopped:
    """Run the tool as a leaf of a run, and stop the run as soon as `when()` is true."""
    controller = AbortController()
    ctx = Context(signal=controller.signal)

    async def work(ctx: Context, value: None) -> Any:
        return await leaf(ctx, tool, policy=policy or Policy())

    running = asyncio.ensure_future(settle(ctx, work, None))
    await until(lambda: when() or running.done())
    start = time.monotonic()
    controller.abort("stop")
    outcome = await running
    return Stopped(outcome, time.monotonic() - start)


class LibraryCall:
    """The events of a synchronous function that is inside a library until it is let go: no interrupt is sent there.

    Its body is part of the test, because interrupts look at the file of a function. `out` says that it has ended.
    """

    def __init__(self) -> None:
        self.inside, self.let_go, self.out = threading.Event(), threading.Event(), threading.Event()

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, SECONDS)
        while not self.let_go._cond._waiters:  # type: ignore[attr-defined]  # before that it is in its own code
            await asyncio.sleep(0.001)  # real time: a thread on its way into a lock

    async def end(self) -> None:
        self.let_go.set()
        assert await asyncio.to_thread(self.out.wait, SECONDS)
        await drain_ready_tasks()


class LeafRig:
    """A run to attach leaves to: its controller, context and events."""

    def __init__(self, timeout: float | None = None) -> None:
        self.controller = AbortController()
        self.events: list[Event] = []
        self.ctx = Context(signal=self.controller.signal, timeout=timeout, emit=self.events.append, run_id="r1")

    def entries(self) -> tuple[Entry, ...]:
        return self.ctx.receipt_builder.receipt(self.ctx.signal).entries

    def fates(self) -> list[str]:
        return [entry.fate for entry in self.entries()]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


async def forever(ctx: Context, value: object) -> None:
    await asyncio.get_running_loop().create_future()
