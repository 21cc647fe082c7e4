"""The JSON data that the API answers with: sessions, turns and acknowledgements. Knows nothing of HTTP."""

import json

from ..agent.conversation import AgentResult
from ..run.stop import StopAck
from ..session.acknowledgements import ChangeAck
from ..session.host import SessionView, TurnView
from ..wire import outcome_to_json

__all__ = ["ack_data", "change_data", "session_data", "turn_data"]


def turn_data(turn: TurnView) -> dict[str, object]:
    """The data of a turn."""
    outcome = None if turn.outcome is None else json.loads(outcome_to_json(turn.outcome, AgentResult))
    optional = {"said": turn.text, "continued_by": turn.continued_by}
    given = {key: value for key, value in optional.items() if value}
    return {"id": turn.id, "status": turn.status, "outcome": outcome, **given}


def session_data(session: SessionView) -> dict[str, object]:
    """The data of a session."""
    return {
        "id": session.id,
        "agent": session.agent,
        "last_seq": session.last_seq,
        "live": session.live,
        "turns": [turn_data(turn) for turn in session.turns],
    }


def change_data(ack: ChangeAck) -> dict[str, object]:
    """The data of the acknowledgement of a change."""
    return {"accepted": ack.accepted, "level": ack.level, "message": ack.message}


def ack_data(ack: StopAck) -> dict[str, object]:
    """The data of the acknowledgement of a stop."""
    return {"status": ack.status, "level": ack.level, "message": ack.message, "id": ack.id}
