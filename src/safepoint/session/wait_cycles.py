"""Owns the check that no turn waits for itself: by awaiting a turn that cannot end before it has ended.

A turn waits for the turns ahead of it in its own session, which runs one at a time, and for those that its work awaits.
When the work of a turn is about to await another one, these edges are followed: if they lead back, nobody would ever
move again, so the await raises instead. Knows nothing of how turns run.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .turn import SessionTurn

__all__ = ["RUNNING", "refuse_cycle"]

# The turn whose work the running code is.
RUNNING: "ContextVar[SessionTurn | None]" = ContextVar("safepoint_session_turn", default=None)


def refuse_cycle(what: str, targets: "Iterable[SessionTurn]") -> "SessionTurn | None":
    """The turn whose work is about to wait until all of these have ended, if the code is the work of a turn.

    Raises: UsageError if one of them cannot end before that turn, with the chain of sessions.
    """
    waiting = RUNNING.get()
    if waiting is None or not waiting.runs:
        return None
    for target in targets:
        chain = _chain(target, waiting)
        if chain is not None:
            sessions = _without_repeats([waiting.session_id, *chain])
            raise UsageError(
                f"{what} would wait for itself: turn {waiting.id!r} waits along the sessions"
                f" {' → '.join(map(repr, sessions))}. Use send() without awaiting its turn, or another session"
            )
    return waiting


def _chain(start: "SessionTurn", goal: "SessionTurn") -> list[str] | None:
    """The sessions on a way from one turn to another that it waits for; None if there is no such way."""
    came_from: dict[SessionTurn, SessionTurn | None] = {start: None}
    to_visit = [start]
    while to_visit:
        turn: SessionTurn | None = to_visit.pop()
        assert turn is not None  # for the type checker
        if turn is goal:
            way = []
            while turn is not None:
                way.append(turn.session_id)
                turn = came_from[turn]
            return way[::-1]
        for other in _waited_for(turn):
            if other not in came_from:
                came_from[other] = turn
                to_visit.append(other)
    return None


def _waited_for(turn: "SessionTurn") -> "Iterable[SessionTurn]":
    """The turns that must end before this one can: awaited by its work, or ahead of it in its session."""
    yield from list(turn.awaits)
    ahead = True
    for other in list(turn.queue.values()):
        ahead = ahead and other is not turn
        if ahead or (other.runs and other is not turn):
            yield other


def _without_repeats(sessions: list[str]) -> list[str]:
    last = len(sessions) - 1
    return [one for place, one in enumerate(sessions) if place in (0, last) or one != sessions[place - 1]]
