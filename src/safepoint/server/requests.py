"""The request bodies of the API, each validated before anything happens. Knows nothing of HTTP."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["AnswerBody", "EditBody", "NewMessageBody", "NewSessionBody", "StopBody"]

Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:~-]*$")]
# At least one visible character. The set is written out, because Python, JavaScript and Rust disagree on what is white
# space.
Text = Annotated[str, Field(min_length=1, max_length=200_000, pattern=r"[^\x00-\x20\x7f-\xa0]")]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

# 0 means not to wait at all.
SecondsOrZero = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class Body(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewSessionBody(Body):
    """Open a session, new or stored."""

    id: Id | None = None
    agent: str | None = None


class NewMessageBody(Body):
    """Send a message. The turn may take `timeout` seconds, including the time in the queue."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["timeout", "deadline"]}})

    text: Text
    turn_id: Id | None = None
    when_busy: Literal["queue", "steer", "interrupt", "reject"] = "queue"
    timeout: Seconds | None = None
    deadline: Seconds | None = Field(default=None, deprecated="It is called timeout now.")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if {"timeout", "deadline"} <= self.model_fields_set:
            raise ValueError("timeout and deadline are the same limit: give timeout alone")
        return self

    @property
    def uses_old_name(self) -> bool:
        """True if the limit was given as `deadline`, which is accepted until version 0.3."""
        return "deadline" in self.model_fields_set

    @property
    def seconds(self) -> float | None:
        """The time limit, by whichever name it was given."""
        values = self.__dict__  # not the attribute, which would warn
        limit: float | None = values["deadline"] if self.uses_old_name else values["timeout"]
        return limit


class StopBody(Body):
    """Stop a turn, at once or at a safe point. What has not ended `abandon` seconds after that is abandoned.

    `scope` applies to a safe point: with "root", sub-agents go on until the turn reaches its own safe point; with
    "tree", each of them stops at its own.
    """

    at: Literal["NOW", "SAFE_POINT", "AFTER_MODEL", "AFTER_TOOLS"] | None = None
    scope: Literal["root", "tree"] | None = None
    within: Seconds | None = None
    abandon: SecondsOrZero | None = None
    reason: Annotated[str, Field(max_length=2_000)] | None = None


class AnswerBody(Body):
    """Answer a question."""

    question_id: Id
    text: Annotated[str, Field(max_length=200_000)]


class EditBody(Body):
    """Replace the message of a turn that waits."""

    text: Text
