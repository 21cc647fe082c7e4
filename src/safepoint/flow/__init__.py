"""Flows: nodes, routes, deadlines, checkpoints. A flow that is stopped knows where it was, and goes on from there.

Owns the dispatcher. Knows nothing of agents, turns and sessions.
"""

from .checkpoint import Checkpoint, CheckpointMismatch
from .checkpoint_saver import CheckpointCompleted, CheckpointUnfinished
from .context import NodeContext
from .dispatch import StepLimitExceeded
from .execution import NodeError
from .flow import Flow
from .flow_run import FlowRun
from .graph import END, End, FlowError
from .result import FlowResult
from .state import JoinConflict
from .step import UnknownOutput

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
