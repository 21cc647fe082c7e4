"""The public import path of messages, and the functions that read and write them as JSON.

A conversation is a sequence of messages. The modules of Safepoint itself import messages from `safepoint.run.messages`.
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
