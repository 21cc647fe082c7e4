"""Tools as people write them: callable objects, methods, partials, classes, and every style of docstring."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from safepoint import Agent, Completed
from safepoint.agent import AnyTool, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Context

if TYPE_CHECKING:
    from decimal import Decimal

    import safepoint.agent as agents


def properties(made: AnyTool) -> dict[str, Any]:
    return dict(made.spec.parameters["properties"])


async def called(made: AnyTool, **arguments: object) -> ToolResult:
    outcome = await Agent(ScriptedModel([Call(made.name, **arguments)], "ok"), tools=[made]).run("go")
    assert isinstance(outcome, Completed)
    [result] = [message for message in outcome.value.messages if isinstance(message, ToolResult)]
    return result


# Callable objects


class Weather:
    """A client of a weather service."""

    def __init__(self, unit: str) -> None:
        self.unit = unit

    async def __call__(self, city: str, ctx: ToolContext, days: int = 1) -> str:
        """Look at the weather.

        Args:
            city: where
        """
        assert ctx.call_id
        return f"{city}: {days} {self.unit}"


class Adder:
    """Add two numbers."""

    def __call__(self, a: int, b: int) -> int:
        return a + b


class Reader:
    async def __call__(self, ctx: Context, page: Annotated[int, Field(ge=1)]) -> str:
        return f"page {page}"


class Doubler:
    def __call__(self, ctx: Context, number: int) -> int:
        return number * 2


async def test_a_callable_object_is_read_by_its_call():
    made = tool(Weather("C"), name="weather")
    assert made.description == "Look at the weather."
    assert properties(made) == {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer", "default": 1},
    }
    assert (await called(made, city="Ulm", days=2)).content == "Ulm: 2 C"


async def test_a_synchronous_object_is_described_by_its_class_and_runs_in_a_thread():
    made = tool(Adder())
    assert (made.name, made.description, made.kind) == ("Adder", "Add two numbers.", "thread")
    assert (await called(made, a=2, b="3")).content == "5"
    assert (await called(tool(Doubler()), number=4)).content == "8"


async def test_an_async_object_that_takes_a_context_and_one_value_is_work_with_the_name_of_its_value():
    made = tool(Reader())
    assert made.is_work
    assert properties(made) == {"page": {"type": "integer", "minimum": 1}}
    assert (await called(made, page=3)).content == "page 3"


async def test_a_cached_function_is_a_tool_like_the_function_in_it():
    @functools.lru_cache
    def square(number: int) -> int:
        """Square it."""
        return number * number

    made = tool(square)
    assert (made.description, properties(made)) == ("Square it.", {"number": {"type": "integer"}})
    assert (await called(made, number=3)).content == "9"


class Yielding:
    def __call__(self, word: str) -> Any:
        yield word


class Greedy:
    def __call__(self, *words: str) -> str:
        return ""


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: tool(Weather), r"Weather is a class: make a tool of an object, tool\(Weather\(…\)\)"),
        (lambda: tool(int), "int is a class"),
        (lambda: Agent(ScriptedModel(), tools=[Weather]), "Weather is a class"),
        (lambda: tool(Yielding()), "Yielding yields"),
        (lambda: tool(Greedy()), "parameters must have names"),
        (lambda: tool(max), "max has no signature|parameters must have names"),
    ],
)
def test_what_can_never_work_is_refused_when_the_tool_is_made(make: Callable[[], object], told: str):
    with pytest.raises(UsageError, match=told):
        make()


# Methods


@dataclass
class Shop:
    sold: list[str] = field(default_factory=list)

    @tool(effects="irreversible")
    async def sell(self, what: str, ctx: ToolContext) -> str:
        """Sell something.

        Args:
            what: what to sell
        """
        self.sold.append(what)
        return f"sold {what}"

    @tool
    def count(self) -> int:
        return len(self.sold)

    @tool
    @staticmethod
    async def greet(name: str) -> str:
        return f"hello {name}"

    @classmethod
    def open(cls, place: str) -> str:
        return f"{cls.__name__} in {place}"


async def test_a_method_that_was_decorated_in_its_class_is_a_tool_of_each_object():
    first, second = Shop(), Shop()
    assert properties(first.sell) == {"what": {"type": "string", "description": "what to sell"}}
    assert first.sell.spec.parameters["required"] == ["what"]
    assert (await called(first.sell, what="tea")).content == "sold tea"
    assert (first.sold, second.sold) == (["tea"], [])
    assert (first.count(), second.count()) == (1, 0), "it can still be called as it is"
    assert first.sell.effects == "irreversible"
    assert first.sell == first.sell


def test_the_method_of_a_class_without_an_object_is_refused_and_the_error_says_what_to_give():
    for make in (lambda: tool(Shop.sell), lambda: Agent(ScriptedModel(), tools=[Shop.sell])):
        with pytest.raises(UsageError, match=r"Shop.sell is a method: give the tool of an object, Shop\(…\).sell"):
            make()
    assert Shop.count(Shop(["tea"])) == 1


async def test_static_and_bound_class_methods_are_tools():
    assert (await called(Shop.greet, name="Ann")).content == "hello Ann"
    assert (await called(tool(Shop.open), place="Ulm")).content == "Shop in Ulm"


def test_a_class_method_cannot_be_decorated_and_the_error_says_what_to_do():
    def find(cls: type, word: str) -> str:
        return word

    with pytest.raises(UsageError, match="is a class method"):
        tool(classmethod(find))  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"Bad.find is a class method"):

        class Bad:
            @classmethod
            @tool
            def find(cls, word: str) -> str:
                return word


def test_a_tool_that_is_no_method_may_be_the_attribute_of_a_class():
    made = tool(plain)

    class Holder:
        held = made

    held: Any = Holder().held
    assert held is made


def plain(word: str) -> str:
    """Say it."""
    return word


# functools.partial


class Database:
    def find(self, word: str) -> str:
        return f"{word}!"


def search(database: Database, word: str, limit: int = 3) -> str:
    """Search.

    Args:
        word: what for
    """
    return database.find(word) * limit


async def test_what_a_partial_binds_and_no_model_can_give_is_not_shown():
    made = tool(functools.partial(search, database=Database(), limit=1))
    assert set(properties(made)) == {"word", "limit"}
    assert properties(made)["word"] == {"type": "string", "description": "what for"}
    assert (await called(made, word="owl")).content == "owl!"
    by_position = tool(functools.partial(search, Database(), limit=2))
    assert (await called(by_position, word="owl")).content == "owl!owl!"


def test_a_parameter_that_no_model_can_give_is_named():
    with pytest.raises(UsageError, match=r"search: no model can give 'database': bind it with functools.partial"):
        tool(search)


async def test_a_partial_of_an_object_or_of_a_method_is_a_tool():
    assert set(properties(tool(functools.partial(Adder(), b=1), name="next"))) == {"a", "b"}
    assert (await called(tool(functools.partial(Adder(), b=1), name="next"), a=1)).content == "2"
    assert (await called(tool(functools.partial(Database().find), name="find"), word="a")).content == "a!"


# Models of pydantic, and descriptions


class Line(BaseModel):
    article: str
    number: int = 1


class Order(BaseModel):
    """An order."""

    lines: list[Line] = Field(description="What is ordered.")


async def test_models_of_pydantic_are_arguments():
    @tool
    def place(order: Order, note: Annotated[str, "for the kitchen"] = "") -> int:
        assert isinstance(order.lines[0], Line)
        return sum(line.number for line in order.lines)

    definitions: Any = place.spec.parameters["$defs"]
    assert definitions["Order"]["properties"]["lines"]["description"] == "What is ordered."
    assert (await called(place, order={"lines": [{"article": "tea", "number": 2}]})).content == "2"
    wrong = await called(place, order={"lines": [{"number": 2}]})
    assert "order.lines.0.article: Field required" in wrong.content


def test_a_description_comes_from_the_annotation_and_then_from_the_docstring():
    class Doc:
        documentation = "from Doc"

    @tool
    def draw(
        a: Annotated[str, "from the text"],
        b: Annotated[int, Field(ge=1, description="from the field")],
        c: Annotated[int, Doc()],
        d: int = Field(3, le=9),
        e: int = Field(3, description="from the default"),
        f: Annotated[int, Field(ge=1)] = 2,
    ) -> None:
        """Draw.

        Args:
            a: no
            b: no
            c: no
            d: from the docstring
            e: no
            f: also from the docstring
        """

    shown = {name: text["description"] for name, text in properties(draw).items()}
    assert shown == {
        "a": "from the text",
        "b": "from the field",
        "c": "from Doc",
        "d": "from the docstring",
        "e": "from the default",
        "f": "also from the docstring",
    }
    assert (properties(draw)["d"]["maximum"], properties(draw)["f"]["minimum"]) == (9, 1)


GOOGLE = """Find books.

    In the whole library.

    Args:
        words (list[str], optional): What to look for,
            in any order:
            titles and names.
        limit: How many
        at most.

    Returns:
        The best ones.

    Raises:
        KeyError: There are none.
    """
NUMPY = """Find books.

    In the whole library.

    Parameters
    ----------
    words : list of str, optional
        What to look for,
        in any order: titles and names.
    limit : int
        How many
        at most.

    Returns
    -------
    str
        The best ones.
    """
SPHINX = """Find books.

    In the whole library.

    :param list[str] words: What to look for,
        in any order: titles and names.
    :param limit: How many at most.
    :type limit: int
    :returns: The best ones.
    :rtype: str
    """


@pytest.mark.parametrize(
    ("docstring", "rest"),
    [
        (GOOGLE, "Returns:\n    The best ones.\n\nRaises:\n    KeyError: There are none."),
        (NUMPY, "Returns\n-------\nstr\n    The best ones."),
        (SPHINX, ":returns: The best ones."),
    ],
)
def test_docstrings_of_every_style_describe_the_tool_and_its_parameters(docstring: str, rest: str):
    def find(words: list[str], limit: int = 5) -> str:
        return ""

    find.__doc__ = docstring
    made = tool(find)
    assert made.description == f"Find books.\n\nIn the whole library.\n\n{rest}"
    assert properties(made)["words"]["description"] == "What to look for, in any order: titles and names."
    assert properties(made)["limit"]["description"] == "How many at most."


def test_numpy_parameters_may_share_one_text_and_a_heading_without_items_stays():
    def add(a: int, b: int) -> None:
        """Add.

        Args:

        Parameters
        ----------
        a, b : int
            A number.
        """

    made = tool(add)
    assert made.description == "Add.\n\nArgs:"
    assert [each["description"] for each in properties(made).values()] == ["A number.", "A number."]


# Annotations that cannot be resolved


def test_an_annotation_that_cannot_be_resolved_is_named_and_costs_no_other_type():
    def pay(amount: "Decimal", to: "str", times: int, context: "agents.ToolContext | None") -> "Decimal":
        return amount

    with pytest.warns(UserWarning, match=r"pay: no type for amount: 'Decimal'") as warned:
        made = tool(pay)
    assert len(warned) == 1
    assert warned[0].filename == __file__, "it points to the line that makes the tool"
    assert "to:" not in str(warned[0].message)
    assert made.context_name == "context"
    assert properties(made) == {"amount": {}, "to": {"type": "string"}, "times": {"type": "integer"}}


def test_a_context_that_is_imported_for_type_checkers_only_needs_no_warning():
    def look(word: str, around: "agents.ToolContext") -> "Decimal | None":
        return None

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = tool(look)
    assert (made.context_name, properties(made)) == ("around", {"word": {"type": "string"}})
