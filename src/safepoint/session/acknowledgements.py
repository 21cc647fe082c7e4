"""Owns how far the answer to a stop or a change has come when it is given: on record, or not yet.

What is asked for is done at once; only the answer waits, and not for long. Knows nothing of who asks.
"""

import asyncio
from dataclasses import dataclass, replace

from ..errors import describe
from ..run.stop import AckLevel, StopAck
from .session import Session

__all__ = ["NOT_RECORDED", "ChangeAck", "change_ack", "stop_ack"]

# An answer waits so long for the record. It is real time: a disk knows no other clock.
ANSWER_SECONDS = 0.25
NOT_RECORDED = "(not recorded yet)"


@dataclass(frozen=True, slots=True)
class ChangeAck:
    """The answer to a change of a turn that waits. In a condition it is true if the change was made.

    Attributes:
        accepted: False: the turn does not wait (any more), and nothing was changed.
        level: "recorded" if the change is on record, so that it survives a crash; else "accepted".
        message: What there is to say, for people.
    """

    accepted: bool
    level: AckLevel = "accepted"
    message: str = ""

    def __bool__(self) -> bool:
        return self.accepted


async def stop_ack(session: Session, ack: StopAck) -> StopAck:
    """The answer to a stop that was made a moment ago, with how far its record has come."""
    if ack.status == "unknown":
        return ack  # it is remembered in memory only, and says so by its level
    level, note = await _recorded(session)
    if ack.status == "already_finished" and level == "recorded":
        return ack  # with its level, "settled"
    return replace(ack, level=level, message=f"{ack.message} {note}".strip())


async def change_ack(session: Session, accepted: bool) -> ChangeAck:
    """The answer to a change that was made a moment ago, if it was `accepted`."""
    if not accepted:
        return ChangeAck(False, "accepted", "the turn does not wait (any more)")
    return ChangeAck(True, *await _recorded(session))


async def _recorded(session: Session) -> tuple[AckLevel, str]:
    """Whether everything that has happened in the session so far is on record, and a note if it is not."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await session.saved()
    except TimeoutError:
        return "accepted", NOT_RECORDED
    except Exception as error:  # whatever the store raises
        return "accepted", f"(not recorded: {describe(error)})"
    return "recorded", ""
