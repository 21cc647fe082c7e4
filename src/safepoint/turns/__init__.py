"""The turn loop: items are queued, turns run one after the other, and can be stopped, preempted and paused at any time.

Owns the turn loop. Knows nothing of sessions and stores.
"""

from .loop import TurnLoop
from .loop_checkpoint import CheckpointReport, InterruptedTurn
from .loop_state import LoopExit
from .plan import TurnPlan
from .turn import Preempt, PreemptAck, Pushed, Turn

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
