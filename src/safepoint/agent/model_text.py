"""Owns the words in which a model reads what did not end as planned: cut-off answers, and calls without a true result.

Without such words a model assumes that everything it asked for was done, or does it again. There is one wording, here.
A result that the agent makes has it as its content. A result that comes from elsewhere is prefixed by it when it is
sent, unless its content says it already. Knows nothing of any provider's format.
"""

from dataclasses import dataclass

from ..messages import AssistantMessage, CallStatus, FinishReason, ToolCall, ToolResult

__all__ = [
    "CUT_OFF_CALL",
    "INTERRUPTED",
    "INTERRUPTED_MARK",
    "NOT_RUN",
    "NO_OUTPUT",
    "STATUS_SENTENCES",
    "UNKNOWN",
    "SyntheticResult",
    "assistant_text",
    "result_text",
]

INTERRUPTED_MARK = "[interrupted]"
NO_OUTPUT = "(no output)"
STATUS_SENTENCES: dict[CallStatus, str] = {
    "failed": "This call failed.",
    "interrupted": "This call was interrupted before it had finished; it may have had an effect.",
    "not_started": "This call was not started; it had no effect.",
    "unknown": "It is not known whether this call finished, and whether it had an effect.",
}
# How a content begins that says its status already. The results of earlier versions begin like this, too.
BEGINNINGS: dict[CallStatus, str] = {
    "failed": "This call failed",
    "interrupted": "This call was interrupted",
    "not_started": "This call was not started",
    "unknown": "It is not known",
}
# Why the last call of an answer does not run if the answer was cut off, and may have meant something else.
CUT_OFF_CALL: dict[FinishReason, str] = {
    "length": "The answer reached its token limit before the call was complete.",
    "content_filter": "The provider's content filter ended the answer before the call was complete.",
    "refusal": "The answer ended in a refusal.",
}


@dataclass(frozen=True, slots=True)
class SyntheticResult:
    """A result for a tool call that did not end by itself, in words that a model understands.

    Attributes:
        status: The status of the result.
        text: What the model reads.
    """

    status: CallStatus
    text: str

    def result(self, call: ToolCall, note: str = "") -> ToolResult:
        """Return the result of a call, with `note` after the text."""
        text = f"{self.text} {note}".strip()
        return ToolResult(call_id=call.call_id, name=call.name, content=text, status=self.status)


NOT_RUN = SyntheticResult("not_started", STATUS_SENTENCES["not_started"])
INTERRUPTED = SyntheticResult("interrupted", "This call was interrupted before it had finished. It has no result.")
UNKNOWN = SyntheticResult("unknown", "It is not known whether this call finished. It may have had effects.")


def assistant_text(message: AssistantMessage) -> str:
    """Return the text of an answer, with a mark at the end if it was cut off."""
    if not message.interrupted:
        return message.text
    return f"{message.text} {INTERRUPTED_MARK}" if message.text else INTERRUPTED_MARK


def result_text(result: ToolResult) -> str:
    """Return the text of a call's result, never empty. Unless the call completed, it begins with its status."""
    if result.status == "completed":
        return result.content if result.content.strip() else NO_OUTPUT
    if result.content.startswith(BEGINNINGS[result.status]):
        return result.content
    return "\n".join(filter(str.strip, (STATUS_SENTENCES[result.status], result.content)))
