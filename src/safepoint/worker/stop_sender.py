"""Owns how a stop gets to a turn on another machine: the worker is rung and the record is kept, side by side.

Neither waits for the other. Whoever asks is answered at once with how far it has come; it goes on by itself.
"""

import asyncio
import logging

from ..abort import AbortReason
from ..session.loop_tasks import LoopTasks
from .broker import BrokerConnection, BrokerError, NoResponders, RequestTimeout
from .protocol import Reply, StopCall, Unreadable, from_json, to_json

__all__ = ["StopSender", "recorded_stops"]

log = logging.getLogger("safepoint")
# So long is waited for an answer of either; for the record, once the worker has answered; for one ring.
ANSWER_SECONDS = 0.5
RECORD_SECONDS = 0.05
RING_SECONDS = 0.3
RINGS = 5


class StopSender:
    """Rings workers, and keeps the record of what it rang for."""

    def __init__(self, connection: BrokerConnection, loop_tasks: LoopTasks) -> None:
        self._connection = connection
        self._loop_tasks = loop_tasks

    async def stop(self, session: str, call: StopCall) -> tuple[Reply | None, bool]:
        """What the worker says, None if nobody was there in time; and whether the stop is kept for good."""
        record = self._loop_tasks.spawn(self._record(session, call), f"the record of the stop of {call.turn_id}")
        ring = self._loop_tasks.spawn(self._ring(session, call, record), f"the stop of {call.turn_id}")
        await asyncio.wait([record, ring], timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if ring.done() and ring.result() is not None:
            await asyncio.wait([record], timeout=RECORD_SECONDS)
        else:
            await asyncio.wait([record, ring], timeout=ANSWER_SECONDS)
        return (ring.result() if ring.done() else None), record.done() and record.result()

    async def _record(self, session: str, call: StopCall) -> bool:
        try:
            await self._connection.append("stops", (session, call.turn_id), to_json(call))
        except BrokerError as error:
            log.error("the stop of turn %s could not be recorded: %s", call.turn_id, error)
            return False
        await self._connection.publish(("poke", session), b"")  # the process that runs it reads the record by itself
        return True

    async def _ring(self, session: str, call: StopCall, record: "asyncio.Task[bool]") -> Reply | None:
        for _ in range(RINGS):
            was_kept = record.done()
            try:
                answer = await self._connection.request(("ctl", session), to_json(call), RING_SECONDS)
                reply: Reply = from_json(Reply, answer)
                if not reply.error:
                    return reply
                await asyncio.wait([record])  # whoever has it is about to lose it
            except NoResponders:
                # Whoever takes the order after the record was kept reads it first; who took it before is rung again.
                if was_kept:
                    return None
                await asyncio.wait([record])
            except RequestTimeout:
                continue
            except BrokerError as error:
                log.warning("the stop of turn %s was answered with nonsense: %s", call.turn_id, error)
                return None
        return None


async def recorded_stops(connection: BrokerConnection, session: str, after: int = 0) -> list[tuple[int, StopCall]]:
    """The stops of a session's turns that are kept, each with its position. One that cannot be read is a stop too."""
    found = []
    for entry in await connection.lasts("stops", (session,), after):
        try:
            call: StopCall = from_json(StopCall, entry.data)
        except Unreadable as error:
            log.warning("session %s: turn %s is stopped: %s", session, entry.key[-1], error)
            call = StopCall(entry.key[-1], "NOW", None, AbortReason("user", "somebody stopped it").to_dict())
        found.append((entry.position, call))
    return found
