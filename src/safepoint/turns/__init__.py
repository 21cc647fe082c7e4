"""Turns: items come in, turns run one after the other, and can be stopped, preempted and paused at any moment.

Owns the turn loop. Knows nothing of sessions and stores.
"""

from .exit import CheckpointReport, LoopExit
from .loop import TurnLoop
from .preempt import Preempt, PreemptAck, Pushed
from .saved import Stopped
from .turn import Turn, TurnPlan

__all__ = [
    "CheckpointReport",
    "LoopExit",
    "Preempt",
    "PreemptAck",
    "Pushed",
    "Stopped",
    "Turn",
    "TurnLoop",
    "TurnPlan",
]
