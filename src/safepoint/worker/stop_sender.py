"""Sends a stop to a turn on another machine: a request to its worker and a durable record, at the same time.

Neither waits for the other. The caller soon learns how far the stop has come, and delivery continues by itself.
"""

import asyncio
import logging

from ..session.loop_tasks import LoopTasks
from .broker import BrokerError, NoResponders, RequestTimeout, SessionConnection
from .protocol import Reply, StopCall, from_json, to_json

__all__ = ["StopSender"]

log = logging.getLogger("safepoint")
# How long the caller waits for the worker and the record; how long for the record once the worker has replied.
ANSWER_SECONDS = 0.5
RECORD_SECONDS = 0.05
# The timeout of one request to the worker, and how many are sent.
REQUEST_SECONDS = 0.3
REQUEST_TRIES = 5


class StopSender:
    """Delivers stops to workers, and records them.

    Request and record run in parallel because each covers the failure of the other, and neither may delay the other:

    - The request is fast, but it is lost if no worker has the session, or if its worker is frozen or cut off.
    - The record survives all of that, and every worker reads it before it starts a turn. But a broker that is electing
      a leader may take seconds to confirm it.

    If the record came first, a stop would be as slow as the broker's disk. If the request came first, a crash of this
    process right after the worker's reply, together with a crash of the worker, would lose an acknowledged stop.
    """

    def __init__(self, connection: SessionConnection, loop_tasks: LoopTasks) -> None:
        self._connection = connection
        self._loop_tasks = loop_tasks

    async def send(self, session: str, call: StopCall) -> tuple[Reply | None, bool]:
        """Send a stop.

        Returns:
            The worker's reply, None if there was none in time, and whether the stop is recorded by now.
        """
        record = self._loop_tasks.spawn(self._record(session, call), f"the record of the stop of {call.turn_id}")
        request = self._loop_tasks.spawn(self._deliver(session, call, record), f"the stop of {call.turn_id}")
        await asyncio.wait([record, request], timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if request.done() and request.result() is not None:
            await asyncio.wait([record], timeout=RECORD_SECONDS)
        else:
            await asyncio.wait([record, request], timeout=ANSWER_SECONDS)
        return (request.result() if request.done() else None), record.done() and record.result()

    async def _record(self, session: str, call: StopCall) -> bool:
        try:
            await self._connection.append("stops", (session, call.turn_id), to_json(call))
        except BrokerError as error:
            log.error("the stop of turn %s could not be recorded: %s", call.turn_id, error)
            return False
        # The process that runs the session reads the record by itself, even if its supervisor is frozen.
        await self._connection.publish(("poke", session), b"")
        return True

    async def _deliver(self, session: str, call: StopCall, record: "asyncio.Task[bool]") -> Reply | None:
        for _ in range(REQUEST_TRIES):
            # Must be read before the request is sent. A worker serves its subject first and reads the record then. So
            # if the record was written before a request that finds no responder, any worker that takes the order later
            # reads it. If it was not, a worker may have read the record too early: ask again after it is written.
            was_recorded = record.done()
            try:
                answer = await self._connection.request(("ctl", session), to_json(call), REQUEST_SECONDS)
                reply = from_json(Reply, answer)
                if not reply.error:
                    return reply
                await asyncio.wait([record])  # this worker is about to lose the session: ask the next one
            except NoResponders:
                if was_recorded:
                    return None
                await asyncio.wait([record])
            except RequestTimeout:
                continue
            except BrokerError as error:
                log.warning("the reply to the stop of turn %s cannot be read: %s", call.turn_id, error)
                return None
        return None
