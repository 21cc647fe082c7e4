"""Owns the public import path of messages, and how a message becomes JSON. Knows nothing of providers.

A conversation is a sequence of messages. The modules of Safepoint import messages from where they are defined, never
from here.
"""

from .run.messages import AssistantMessage, CallStatus, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from .run.wire import message_from_json, message_to_json

__all__ = [
    "AssistantMessage",
    "CallStatus",
    "Message",
    "SystemMessage",
    "ToolCall",
    "ToolResult",
    "UserMessage",
    "message_from_json",
    "message_to_json",
]
