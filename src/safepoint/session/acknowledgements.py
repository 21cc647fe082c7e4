"""Owns the answers to stops and changes, which say whether the request is on record yet.

The request itself is carried out at once. Only the answer waits for the store, and only for a short time. Knows nothing
of who asks.
"""

import asyncio
from dataclasses import dataclass, replace

from ..errors import describe
from ..run.stop import AckLevel, StopAck
from .session import Session

__all__ = ["NOT_RECORDED", "ChangeAck", "change_ack", "stop_ack"]

# How long an answer waits for the store. This is real time, because a disk does not follow a fake clock.
ANSWER_SECONDS = 0.25
NOT_RECORDED = "(not recorded yet)"


@dataclass(frozen=True, slots=True)
class ChangeAck:
    """The answer to a change of a queued turn. In a condition it is true if the change was made.

    Attributes:
        accepted: Whether the change was made. False if the turn is not queued.
        level: "recorded" if the change is on record, so that it survives a crash; else "accepted".
        message: An explanation for people.
    """

    accepted: bool
    level: AckLevel = "accepted"
    message: str = ""

    def __bool__(self) -> bool:
        return self.accepted


async def stop_ack(session: Session, ack: StopAck) -> StopAck:
    """Complete the answer to a stop that has just been made: wait briefly for its record, and set the level."""
    if ack.status == "unknown":
        return ack  # it is kept in memory only, which its level says
    level, note = await _recorded(session)
    if ack.status == "already_finished" and level == "recorded":
        return ack  # its level is "settled" already
    return replace(ack, level=level, message=f"{ack.message} {note}".strip())


async def change_ack(session: Session, accepted: bool) -> ChangeAck:
    """Make the answer to a change that has just been made, or refused if `accepted` is false."""
    if not accepted:
        return ChangeAck(False, "accepted", "the turn is not queued: it has begun, has ended, or never existed")
    return ChangeAck(True, *await _recorded(session))


async def _recorded(session: Session) -> tuple[AckLevel, str]:
    """Wait briefly until everything that has happened in the session is on record. Returns the level and a note."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await session.saved()
    except TimeoutError:
        return "accepted", NOT_RECORDED
    except Exception as error:  # whatever the store raises
        return "accepted", f"(not recorded: {describe(error)})"
    return "recorded", ""
