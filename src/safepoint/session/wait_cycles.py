"""Owns the check for deadlocks between turns: no turn may await a turn that cannot end before it. Knows no loops.

A turn waits for the turns ahead of it in its own session, which runs one at a time, and for those that its work awaits.
When the work of a turn is about to await another turn, these edges are followed from there: if they lead back to the
waiting turn, none of them would ever end, so the await raises instead.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .turn import SessionTurn

__all__ = ["RUNNING", "refuse_cycle"]

# The turn whose work the current code belongs to.
RUNNING: "ContextVar[SessionTurn | None]" = ContextVar("safepoint_session_turn", default=None)


def refuse_cycle(what: str, targets: "Iterable[SessionTurn]") -> "SessionTurn | None":
    """Refuse a wait that would never end.

    Args:
        what: What is about to wait, for the message.
        targets: The turns that it would wait for.

    Returns:
        The turn whose work is about to wait; `None` if the calling code does not belong to a running turn.

    Raises:
        UsageError: One of the targets cannot end before that turn. The message has the chain of sessions.
    """
    waiting = RUNNING.get()
    if waiting is None or not waiting.running:
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
    """Return the sessions on a path from one turn to another that it waits for; `None` if there is no such path."""
    came_from: dict[SessionTurn, SessionTurn | None] = {start: None}
    to_visit = [start]
    while to_visit:
        turn: SessionTurn | None = to_visit.pop()
        assert turn is not None  # only turns are put into the list
        if turn is goal:
            path = []
            while turn is not None:
                path.append(turn.session_id)
                turn = came_from[turn]
            return path[::-1]
        for other in _waited_for(turn):
            if other not in came_from:
                came_from[other] = turn
                to_visit.append(other)
    return None


def _waited_for(turn: "SessionTurn") -> "Iterable[SessionTurn]":
    """Yield the turns that must end before this one: those that its work awaits, and those ahead of it in the queue."""
    yield from list(turn.awaited_turns)
    ahead = True
    for other in list(turn.session_turns.values()):
        ahead = ahead and other is not turn
        if ahead or (other.running and other is not turn):
            yield other


def _without_repeats(sessions: list[str]) -> list[str]:
    last = len(sessions) - 1
    return [each for index, each in enumerate(sessions) if index in (0, last) or each != sessions[index - 1]]
