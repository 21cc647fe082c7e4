"""Agents: a model, tools, and one loop between them that can be stopped at any moment and keeps a valid conversation.

Owns the loop, the tools and the history. Knows nothing of providers, turns and sessions.
"""

from .model import (
    AnswerEnded,
    CallDelta,
    Chunk,
    Model,
    ModelError,
    ModelRequest,
    TextDelta,
    ToolSpec,
    UsageReported,
)

__all__ = [
    "AnswerEnded",
    "CallDelta",
    "Chunk",
    "Model",
    "ModelError",
    "ModelRequest",
    "TextDelta",
    "ToolSpec",
    "UsageReported",
]
