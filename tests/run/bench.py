"""A run to hang leaves on, for the tests of leaves."""

import asyncio

from safepoint.abort import AbortController
from safepoint.events import Event
from safepoint.run import Context, Entry


class Bench:
    """A run to hang leaves on: its controller, context and events."""

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
