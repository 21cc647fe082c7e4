"""The turn loop: items are queued, turns run one after the other, and can be stopped, preempted and paused at any time.

Owns the turn loop. Knows nothing of sessions and stores.
"""

from .loop import TurnLoop
from .loop_exit import CheckpointReport, LoopExit
from .preempt import Preempt, PreemptAck, Pushed
from .saved_loop import InterruptedTurn
from .turn import Turn, TurnPlan

__all__ = [
    "CheckpointReport",
    "InterruptedTurn",
    "LoopExit",
    "Preempt",
    "PreemptAck",
    "Pushed",
    "Turn",
    "TurnLoop",
    "TurnPlan",
]
