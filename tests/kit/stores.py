"""Session stores that hold a write back or fail, so that a test decides when a record is on disk."""

import asyncio
from collections.abc import Sequence

from safepoint.session import LogRecord, MemoryStore, StoreError


class GatedStore(MemoryStore):
    """Writes to a session only while its gate is open. `writing` says that a write waits."""

    def __init__(self, held: str = "s") -> None:
        super().__init__()
        self.held = held
        self.gate, self.writing = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def shut(self) -> None:
        self.gate.clear()
        self.writing.clear()

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        if session == self.held and not self.gate.is_set():
            self.writing.set()
            await self.gate.wait()
        return await super().append(session, records, durable=durable)


class FailingStore(MemoryStore):
    """Fails from the first record on in which `breaks` occurs; `keeps`: after it has written it."""

    def __init__(self, breaks: str = "\0", *, keeps: bool = False) -> None:
        super().__init__()
        self.breaks, self.keeps = breaks, keeps

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        broken = any(self.breaks in record.text for record in records)
        if broken and not self.keeps:
            raise StoreError("the disk is full")
        refused = await super().append(session, records, durable=durable)
        if broken:
            raise StoreError("the disk went away")
        return refused
