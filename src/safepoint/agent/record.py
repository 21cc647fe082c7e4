"""Owns the record of an agent that runs inside work which may run again, such as a node of a flow.

When a node runs again, its agents are asked again. So that no call is repeated which may have had effects, each of them
records its conversation in the journal of the work around it, message by message, and continues from there. The journal
is in the checkpoint of the flow, or in the log of the session. Three rules make the record true at every moment:

- **Records are only added.** Each message is a part of its own with a number, and is never written again. So an older
  copy of the journal, such as one in an earlier checkpoint, can be merged with a newer one in any order.
- **The result exists before the call.** Before the body of a call begins, the result "unknown" is recorded for it and
  flushed. The real result is recorded when there is one, and the last one counts. After a crash, a call without any
  result has certainly not begun. (Tools that only read are not written ahead, because to repeat them does no harm.)
- **A conversation that may have had effects is binding.** Its work is continued, whatever happens. If the node asks
  something else than it did before, that is refused, because the calls on record might be repeated under other keys. A
  conversation without effects may begin anew: if the node asks something else, or is tried again after its failure.

Which run of an agent a record belongs to is decided by the order in which a node starts its agents
(`RepeatableContext.inner_key`). Knows nothing of flows.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from ..errors import UsageError
from ..messages import AssistantMessage, Message, ToolResult
from ..receipt import Usage
from ..run.context import Context
from ..run.journal import EnclosedJournal, Journal, part_name
from ..run.once import RepeatableContext, running_repeatable
from ..wire import message_from_json, message_to_json
from .conversation import AgentResult, Conversation, RunAgain

__all__ = ["ConversationRecord", "record_in"]


class ConversationRecord:
    """The record of one run of an agent.

    Args:
        ctx: The context of the work that may run again.
        key: The key of the run: the same one when that work runs again.
        name: The name of the agent.

    Attributes:
        key: The key of the run.
    """

    def __init__(self, ctx: RepeatableContext, key: str, name: str) -> None:
        self.key = key
        self._ctx = ctx
        self._name = name
        self._size = 0

    def journal(self) -> Journal:
        """Return the journal for a run of the agent that has a context of its own."""
        return EnclosedJournal(self._ctx)

    def restore(
        self, new: Conversation, given: AgentResult | None, run_again: Callable[[ToolResult], RunAgain]
    ) -> Conversation:
        """Return the conversation that is on record, or else record the beginning of a new one.

        Args:
            new: The conversation that begins if there is nothing on record.
            given: The stopped conversation that the caller wants to continue, if it gave one.
            run_again: Whether the call of a result in an unfinished round is to run again.

        Raises:
            UsageError: The agent is asked something else than before, and the calls on record may have had effects.
        """
        begin = list(new.messages if given is None else given.messages)
        for name, text in new.parts.items():
            self._ctx.journal.results.setdefault(name, text)
        found = self._read()
        if found is not None and found.begin == begin and not (self._ctx.is_retry and found.may_begin_anew):
            result = AgentResult(
                "",
                tuple(found.messages()),
                found.usage,
                new.steps + found.steps,
                new.kept,
                new.id or self._id(found.number),
                new.parts,
            )
            conversation = Conversation(resume=result, run_again=run_again)
        else:
            if found is not None and found.may_have_effects and found.begin != begin and given is None:
                raise UsageError(
                    f"{self._ctx.operation} asked agent {self._name!r} something else when it ran before, and the tools"
                    " that were called then may have had effects. Ask the same again, and the agent goes on where it"
                    " was: make the prompt from the state alone, or with ctx.once()"
                )
            conversation = new
            conversation.id = new.id or self._id(0 if found is None else found.number + 1)
            self._put({"begin": [_data(message) for message in begin]})
        conversation.record = self
        return conversation

    def add(self, message: Message, usage: Usage) -> None:
        """Record an answer, or the result of a call: the one that is true if the process dies now.

        Args:
            message: The answer or the result.
            usage: What the conversation has cost so far.
        """
        if not self._ctx.abandoned:  # the node may be running again already, with the same record
            self._put({"message": _data(message), "usage": asdict(usage)})

    def parts_of(self, conversation_id: str) -> dict[str, str]:
        """Return the results of `ctx.once` that belong to the tool calls of a conversation."""
        prefix = f"{conversation_id}:"
        return {name: text for name, text in self._ctx.journal.results.copy().items() if name.startswith(prefix)}

    async def flush(self, ctx: Context) -> None:
        """Wait until everything that was added survives a crash. A stop ends the wait: see `Journal.flush`."""
        await self._ctx.journal.flush(ctx)

    def _id(self, number: int) -> str:
        return f"{self.key}.{number}" if number else self.key

    def _put(self, data: Mapping[str, object]) -> None:
        text = json.dumps(data, ensure_ascii=False)
        self._ctx.journal.record(self._ctx, self.key, _part(self._size), text)
        self._size += 1

    def _read(self) -> "_Recorded | None":
        found: _Recorded | None = None
        results = self._ctx.journal.results
        while (text := results.get(part_name(self.key, _part(self._size)))) is not None:
            self._size += 1
            data = json.loads(text)
            if "begin" in data:
                found = _Recorded([_message(each) for each in data["begin"]], 0 if found is None else found.number + 1)
            elif found is not None:
                found.add(_message(data["message"]))
                found.usage = Usage.from_dict(data["usage"])
        return found


def record_in(ctx: Context | None, name: str) -> ConversationRecord | None:
    """Return the record of an agent that begins to run here, or None if nothing around it runs again with a record.

    Args:
        ctx: The context that the agent was given, or None for `agent.run()`, which is not given one.
        name: The name of the agent.
    """
    around = running_repeatable() if ctx is None else ctx.repeatable
    if around is None or not around.records_agents:
        return None
    return ConversationRecord(around, around.inner_key(name), name)


class _Recorded:
    """A conversation as it was recorded."""

    def __init__(self, begin: Sequence[Message], number: int) -> None:
        self.begin = list(begin)
        self.number = number  # how many conversations were begun anew before it
        self.steps = 0
        self.usage = Usage()
        self.may_have_effects = False
        self._messages: list[Message] = []
        self._results: dict[str, ToolResult] = {}
        for message in begin:
            self._append(message)

    def add(self, message: Message) -> None:
        self.steps += isinstance(message, AssistantMessage)
        self.may_have_effects |= isinstance(message, ToolResult) and message.status == "unknown"
        self._append(message)

    def _append(self, message: Message) -> None:
        if isinstance(message, ToolResult):
            self._results[message.call_id] = message
            return
        last = self._messages[-1] if self._messages else None
        if isinstance(message, AssistantMessage) and isinstance(last, AssistantMessage) and last.interrupted:
            self._messages.pop()  # it was cut off, and this is the answer to the same request
            self._results = {}
        self._messages = self.messages()
        self._results = {}
        self._messages.append(message)

    def messages(self) -> list[Message]:
        """Return the messages. The results of the last answer come in the order of its calls."""
        last = self._messages[-1] if self._messages else None
        calls = last.calls if isinstance(last, AssistantMessage) else ()
        return [*self._messages, *(self._results[call.call_id] for call in calls if call.call_id in self._results)]

    @property
    def may_begin_anew(self) -> bool:
        """Whether it has an answer, and asking again does no harm."""
        last = self._messages[-1] if self._messages else None
        return isinstance(last, AssistantMessage) and not last.calls and not self.may_have_effects


def _part(number: int) -> str:
    return f"messages/{number}"


def _data(message: Message) -> object:
    data: object = json.loads(message_to_json(message))
    return data


def _message(data: object) -> Message:
    return message_from_json(json.dumps(data))
