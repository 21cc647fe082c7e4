"""Tools: schema, validation, policy and context, from a function or any Work."""

import enum
import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from safepoint.agent import Agent, AnyTool, BadArguments, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.models.scripted import ScriptedModel
from safepoint.run import Context, Policy


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    zip_code: int = 0


@dataclass
class Span:
    start: int
    end: int = 10


def properties(made: AnyTool) -> dict[str, Any]:
    return dict(made.spec.parameters["properties"])


def test_a_tool_is_named_and_described_by_its_function():
    @tool
    async def search(query: str, limit: int = 5) -> str:
        """Look something up.

        In the whole library.

        Args:
            query: What to look for.
            limit (int): How many at most.

        Returns:
            str: the best ones
        """
        return query * limit

    assert search.name == "search"
    assert search.description == "Look something up.\n\nIn the whole library.\n\nReturns:\n    str: the best ones"
    assert search.spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "default": 5, "description": "How many at most."},
        },
        "required": ["query"],
    }
    assert search.read('{"query": "x"}') == {"query": "x", "limit": 5}


def test_a_decorated_function_can_still_be_called_as_it_is():
    @tool(effects="read")
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    assert tool(double) is double, "what is a tool already stays what it is"


def test_every_kind_of_annotation_becomes_schema_and_values():
    @tool
    async def draw(
        colour: Colour,
        place: Place,
        span: Span,
        filters: list[dict[str, int]],
        mode: Literal["fast", "fine"],
        page: Annotated[int, Field(ge=1, description="From 1.")],
        note: str | None = None,
        tags: tuple[str, ...] = (),
        plain=3,
        limit: int = Field(7, le=9),
    ) -> str:
        return ""

    shown = properties(draw)
    assert shown["mode"] == {"enum": ["fast", "fine"], "type": "string"}
    assert shown["page"] == {"minimum": 1, "type": "integer", "description": "From 1."}
    assert shown["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert shown["limit"] == {"default": 7, "maximum": 9, "type": "integer"}
    assert set(draw.spec.parameters["required"]) == {"colour", "place", "span", "filters", "mode", "page"}
    arguments = """{"colour": "red", "place": {"city": "Ulm"}, "span": {"start": 2}, "filters": [{"a": 1}],
                    "mode": "fine", "page": "3"}"""
    assert draw.read(arguments) == {
        "colour": Colour.RED,
        "place": Place(city="Ulm"),
        "span": Span(2),
        "filters": [{"a": 1}],
        "mode": "fine",
        "page": 3,
        "note": None,
        "tags": (),
        "plain": 3,
        "limit": 7,
    }


def test_parameters_may_have_any_name():
    @tool
    def query(schema: str, json: str = "", copy: bool = False, _hidden: int = 0, model_config: str = "") -> str:
        return schema

    assert list(properties(query)) == ["schema", "json", "copy", "_hidden", "model_config"]
    assert query.read('{"schema": "s", "_hidden": 2}') == {
        "schema": "s",
        "json": "",
        "copy": False,
        "_hidden": 2,
        "model_config": "",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"query": 1, "limit": 3}', "query: Input should be a valid string"),
        ('{"limit": 3}', "query: Field required"),
        ('{"query": "x", "limit": 0}', "limit: Input should be greater than or equal to 1"),
        ('{"query": "x", "depth": 3}', "depth: Extra inputs are not permitted"),
        ('{"query": ', "Invalid JSON"),
        ("[1]", "arguments: "),
        ('{"unreadable": "{\\"query\\": "}', 'not a JSON object: {"query": '),
        ('{"query": "boom"}', "KeyError: 'boom'"),
    ],
)
def test_wrong_arguments_are_told_in_words_for_the_model(arguments: str, told: str):
    def refuse(value: str) -> str:
        raise KeyError(value) if value == "boom" else ValueError("no")

    from pydantic import AfterValidator

    def check(value: str) -> str:
        return refuse(value) if value == "boom" else value

    @tool
    async def search(query: Annotated[str, AfterValidator(check)], limit: Annotated[int, Field(ge=1)] = 1) -> str:
        return query

    with pytest.raises(BadArguments) as wrong:
        search.read(arguments)
    assert told in str(wrong.value)
    assert str(wrong.value).startswith("The arguments of search are wrong: ")
    assert str(wrong.value).endswith("Correct them and call it again.")


def test_no_arguments_at_all_are_an_empty_object():
    @tool
    async def now() -> str:
        return "noon"

    assert now.read("") == {}
    assert now.read("{}") == {}


def test_the_context_is_optional_may_have_any_name_and_is_never_shown_to_the_model():
    @tool
    async def by_name(ctx, word: str) -> str:
        return word

    @tool
    async def by_type(word: str, context: ToolContext) -> str:
        return word

    @tool
    async def by_base(word: str, around: Context) -> str:
        return word

    @tool
    async def optional(word: str, around: ToolContext | None = None) -> str:
        return word

    @tool
    async def none(word: str) -> str:
        return word

    for made, name in ((by_name, "ctx"), (by_type, "context"), (by_base, "around"), (optional, "around"), (none, None)):
        assert made.context_name == name
        assert list(properties(made)) == ["word"]


def test_an_annotation_that_cannot_be_read_is_no_obstacle():
    with pytest.warns(UserWarning, match="open_minded: no type for word: 'Unheard'"):

        @tool
        async def open_minded(word: "Unheard") -> str:  # type: ignore[name-defined]  # noqa: F821
            return str(word)

    assert list(properties(open_minded)) == ["word"]
    assert open_minded.read('{"word": [1]}') == {"word": [1]}


def test_how_a_tool_runs_follows_from_its_function_and_its_policy():
    @tool
    async def awaited() -> None: ...

    @tool
    def threaded() -> None: ...

    @tool(isolation="process", timeout=3)
    def isolated() -> None: ...

    assert (awaited.kind, threaded.kind, isolated.kind) == ("await", "thread", "process")
    assert isolated.policy == Policy(isolation="process", timeout=3)

    class Shop:
        @tool
        def plain(self) -> None: ...

        async def buy(self, what: str) -> str:
            return what

    bound = tool(Shop().buy)
    assert (bound.kind, list(properties(bound))) == ("await", ["what"])


def test_options_override_what_the_function_says():
    made = tool(plain, name="count", description="Count it.", effects="read", requires_approval=True, grace=1.5)
    assert (made.name, made.description, made.effects, made.requires_approval) == ("count", "Count it.", "read", True)
    assert made.policy.grace == 1.5


def test_a_tool_can_be_changed_by_making_a_tool_of_it_again():
    first = tool(plain, effects="read", timeout=3)
    changed = tool(first, name="careful", requires_approval=True, isolation="process")
    assert (changed.name, changed.description, changed.effects) == ("careful", "Say it.", "read")
    assert changed.requires_approval
    assert changed.policy == Policy(timeout=3, isolation="process")
    assert (first.kind, changed.kind) == ("thread", "process")
    assert changed.spec.name == "careful"
    assert not first.requires_approval, "the first one is as it was"


def plain(word: str) -> str:
    """Say it."""
    return word


def test_a_function_with_some_arguments_given_is_a_tool_of_the_others():
    made = tool(functools.partial(multiply, factor=3), name="triple")
    assert (made.kind, made.description) == ("await", "Multiply it.")
    assert properties(made) == {"number": {"type": "integer"}, "factor": {"type": "integer", "default": 3}}
    assert made.read('{"number": "2"}') == {"number": 2, "factor": 3}


async def multiply(number: int, factor: int) -> int:
    """Multiply it."""
    return number * factor


def not_named(*args: int) -> None: ...


def by_position(word: str, /) -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: tool(lambda: None), "'<lambda>' is not a tool name"),
        (lambda: tool(plain, name="no spaces"), "'no spaces' is not a tool name"),
        (lambda: tool(Agent(ScriptedModel(), name="my agent")), "'my agent' is not a tool name"),
        (lambda: tool(plain, name="x" * 65), "at most 64"),
        (lambda: tool(3), "must be a function or Work, not int"),  # type: ignore[call-overload]
        (lambda: tool(not_named), "parameters must have names"),
        (lambda: tool(by_position), "parameters must have names"),
        (lambda: tool(yields), "returns one value"),
        (lambda: tool(yields_later), "returns one value"),
        (lambda: tool(plain, effects="harmless"), "effects of 'plain' must be"),  # type: ignore[call-overload]
        (lambda: tool(plain, on_abort="never"), "on_abort must be one of"),  # type: ignore[call-overload]
        (lambda: tool(plain, timeout=-1), "timeout"),
    ],
)
def test_a_mistake_is_told_when_the_tool_is_made(make: Any, told: str):
    with pytest.raises(UsageError, match=told):
        make()


class Report:
    """Write a report."""

    name = "report"

    async def __call__(self, ctx: Context, value: Span) -> str:
        return f"{value.start}-{value.end}"


class Loose:
    async def __call__(self, ctx: Context, value: Annotated[int, Field(ge=0)]) -> int:
        return value


def test_any_work_can_be_a_tool_and_its_value_is_what_the_model_gives():
    report = tool(Report())
    assert (report.name, report.description, report.kind, report.is_work) == (
        "report",
        "Write a report.",
        "child",
        True,
    )
    assert set(properties(report)) == {"start", "end"}, "the value is a record: its fields are the arguments"
    assert report.read('{"start": 1}') == Span(1, 10)
    loose = tool(Loose(), name="loose", description="Any number.")
    assert properties(loose) == {"input": {"type": "integer", "minimum": 0}}
    assert loose.read('{"input": 3}') == 3
    told = tool(Loose(), name="told", input=Place)
    assert told.read('{"city": "Ulm"}') == Place(city="Ulm")
    with pytest.raises(BadArguments, match="city"):
        told.read("{}")
    with pytest.raises(BadArguments, match="not a JSON object"):
        tool(Loose(), name="open", input=dict[str, int]).read('{"unreadable": "[1]"}')


def test_work_handles_the_abort_itself_unless_told_otherwise():
    assert tool(Report()).policy.on_abort == "cooperate"
    assert tool(Report(), on_abort="finish").policy.on_abort == "finish"


def test_an_agent_is_a_tool_that_describes_itself():
    agent = Agent(ScriptedModel(), name="digger", instructions="Dig deep.")
    for made in (agent.as_tool(), tool(agent)):
        assert (made.name, made.description, made.kind) == ("digger", "Ask digger. Dig deep.", "child")
        assert properties(made) == {"prompt": {"type": "string"}}
        assert made.policy.on_abort == "cooperate"
    strict = tool(agent, name="strict", description="Ask first.", requires_approval=True, timeout=3, effects="read")
    assert (strict.name, strict.description, strict.requires_approval) == ("strict", "Ask first.", True)
    assert (strict.policy, strict.effects) == (Policy(on_abort="cooperate", timeout=3), "read")
    other = agent.as_tool(name="shovel", description="A shovel.")
    assert (other.name, other.description) == ("shovel", "A shovel.")
