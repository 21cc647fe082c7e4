"""Owns what the API gives out: sessions, turns and acknowledgements as JSON data. Knows nothing of HTTP."""

import json
from typing import Any

from ..agent.conversation import AgentResult
from ..run.stop import StopAck
from ..run.wire import outcome_to_json
from ..session.acknowledgements import ChangeAck
from ..session.host import SessionView, TurnView

__all__ = ["ack_data", "change_data", "session_data", "turn_data"]


def turn_data(turn: TurnView) -> dict[str, Any]:
    """A turn."""
    outcome = None if turn.outcome is None else json.loads(outcome_to_json(turn.outcome, AgentResult))
    more = {"said": turn.said, "continued_by": turn.continued_by}
    return {"id": turn.id, "status": turn.status, "outcome": outcome, **{key: more[key] for key in more if more[key]}}


def session_data(session: SessionView) -> dict[str, Any]:
    """A session."""
    return {
        "id": session.id,
        "agent": session.agent,
        "last_seq": session.last_seq,
        "live": session.live,
        "turns": [turn_data(turn) for turn in session.turns],
    }


def change_data(ack: ChangeAck) -> dict[str, Any]:
    """The answer to a change that was made."""
    return {"accepted": ack.accepted, "level": ack.level, "message": ack.message}


def ack_data(ack: StopAck) -> dict[str, Any]:
    """The answer to a stop."""
    return {"status": ack.status, "level": ack.level, "message": ack.message, "id": ack.id}
