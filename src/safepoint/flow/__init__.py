"""Flows: nodes, routes, time limits, checkpoints. A stopped flow knows where it was, and a resumed one continues there.

Owns the loop that runs the nodes. Knows nothing of agents, turns and sessions.
"""

from .checkpoint import Checkpoint, CheckpointMismatch
from .checkpoint_saver import CheckpointCompleted, CheckpointUnfinished
from .dispatch import StepLimitExceeded
from .execution import NodeError
from .flow import Flow
from .flow_run import FlowResult, FlowRun
from .graph import END, End, FlowError
from .state import JoinConflict
from .step import NodeContext, UnknownOutput

__all__ = [
    "END",
    "Checkpoint",
    "CheckpointCompleted",
    "CheckpointMismatch",
    "CheckpointUnfinished",
    "End",
    "Flow",
    "FlowError",
    "FlowResult",
    "FlowRun",
    "JoinConflict",
    "NodeContext",
    "NodeError",
    "StepLimitExceeded",
    "UnknownOutput",
]
