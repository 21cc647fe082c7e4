"""Tools from a JSON schema: what the model sees, what is checked, and what is refused when the tool is made."""

from typing import Any

import pytest

from safepoint import Agent, Completed
from safepoint.agent import BadArguments, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$", "format": "word"},
        "pages": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10, "multipleOf": 2},
        "order": {"enum": ["up", "down", 1]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 1, "maxItems": 2},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "one": {"oneOf": [{"type": "number"}, {"type": "integer"}], "not": {"const": 3}},
        "pair": {"prefixItems": [{"const": "a"}, {"type": ["boolean", "null"]}], "items": False},
        "all": {"allOf": [{"type": "integer"}, {"maximum": 3}]},
    },
    "required": ["word"],
    "additionalProperties": {"type": "boolean"},
    "$defs": {
        "Line": {
            "type": "object",
            "properties": {"article": {"type": "string"}, "inner": {"$ref": "#/$defs/Line"}},
            "required": ["article"],
            "additionalProperties": False,
            "patternProperties": {"^x-": {"type": "string"}},
        }
    },
}


async def look(ctx: ToolContext, **arguments: object) -> str:
    """Look something up."""
    assert ctx.call_id
    return f"{sorted(arguments)}"


async def test_the_model_sees_the_schema_and_the_function_gets_what_fits_it():
    made = tool(look, schema=SCHEMA)
    assert (made.name, made.description) == ("look", "Look something up.")
    assert made.spec.parameters == SCHEMA
    arguments = {
        "word": "owl",
        "pages": 4.0,
        "order": "up",
        "lines": [{"article": "a", "inner": {"article": "b"}, "x-y": "z"}],
        "note": None,
        "one": 2.5,
        "pair": ["a", None],
        "all": 3,
        "more": True,
    }
    outcome = await Agent(ScriptedModel([Call("look", **arguments)], "ok"), tools=[made]).run("go")
    assert isinstance(outcome, Completed)
    [result] = [message for message in outcome.value.messages if isinstance(message, ToolResult)]
    assert result.content == str(sorted(arguments))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", "word: Field required"),
        ("[]", "arguments: must be of the type object"),
        ('{"word": 1}', "word: must be of the type string"),
        ('{"word": "a"}', "word: must have at least 2 characters"),
        ('{"word": "A1"}', "word: must match ^[a-z]+$"),
        ('{"word": "owl", "pages": true}', "pages: must be of the type integer"),
        ('{"word": "owl", "pages": 2.5}', "pages: must be of the type integer"),
        ('{"word": "owl", "pages": 0}', "pages: must be at least 1"),
        ('{"word": "owl", "pages": 10}', "pages: must be less than 10"),
        ('{"word": "owl", "pages": 3}', "pages: must be a multiple of 2"),
        ('{"word": "owl", "order": true}', "order: must be one of 'up', 'down', 1"),
        ('{"word": "owl", "lines": []}', "lines: must have at least 1 items"),
        ('{"word": "owl", "lines": [{}]}', "lines.0.article: Field required"),
        ('{"word": "owl", "lines": [{"article": "a", "inner": {"article": 1}}]}', "lines.0.inner.article: must be"),
        ('{"word": "owl", "lines": [{"article": "a", "b": 1}]}', "lines.0.b: there is no such parameter"),
        ('{"word": "owl", "lines": [{"article": "a", "x-b": 1}]}', "lines.0.x-b: must be of the type string"),
        ('{"word": "owl", "note": "long"}', "note: fits none of its forms"),
        ('{"word": "owl", "one": 2}', "one: fits 2 of its forms, and must fit one"),
        ('{"word": "owl", "one": 3}', "one: this value is not allowed"),
        ('{"word": "owl", "pair": ["b"]}', "pair.0: must be 'a'"),
        ('{"word": "owl", "pair": ["a", true, 1]}', "pair.2: nothing is allowed here"),
        ('{"word": "owl", "all": 4}', "all: must be at most 3"),
        ('{"word": "owl", "more": 1}', "more: must be of the type boolean"),
        ('{"word": ', "The arguments of look are wrong"),
        ('{"word": "owl", "pages": NaN}', "The arguments of look are wrong"),
    ],
)
def test_what_does_not_fit_the_schema_is_told_to_the_model(arguments: str, told: str):
    with pytest.raises(BadArguments) as wrong:
        tool(look, schema=SCHEMA).read(arguments)
    assert told in str(wrong.value)


def test_a_pattern_that_python_does_not_know_is_left_to_the_tool():
    made = tool(look, schema={"properties": {"word": {"type": "string", "pattern": r"^\p{L}+$"}}})
    assert made.read('{"word": "owl"}') == {"word": "owl"}


def test_a_schema_without_parameters_of_the_function_for_the_rest_takes_no_others():
    def find(word: str, pages: int = 1) -> str:
        return word

    made = tool(find, schema={"properties": {"word": {"type": "string"}}, "required": ["word"]})
    with pytest.raises(BadArguments, match="pages: there is no such parameter"):
        made.read('{"word": "a", "pages": 2}')
    assert made.read('{"word": "a"}') == {"word": "a"}


def find(word: str, ctx: ToolContext) -> str:
    return word


TEXT = {"type": "string"}
NO_SCHEMA: Any = []


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: tool(find, schema={"type": "string"}), 'must be a JSON schema of the type "object"'),
        (lambda: tool(find, schema=NO_SCHEMA), 'must be a JSON schema of the type "object"'),
        (lambda: tool(find, schema={"properties": []}), "properties of the schema must be a dict"),
        (lambda: tool(look, schema={"properties": {"a": {"type": "text"}}}), "has the type 'text'"),
        (lambda: tool(look, schema={"properties": {"a": {"$ref": "#/$defs/A"}}}), "refers to '#/\\$defs/A'"),
        (lambda: tool(look, schema={"properties": {"a": {"$ref": "http://b"}}}), "refers to 'http://b'"),
        (lambda: tool(look, schema={"properties": {"ctx": TEXT}}), "'ctx', which is the context"),
        (lambda: tool(find, schema={"properties": {"word": TEXT}}), "word has no default, and the schema does not"),
        (
            lambda: tool(find, schema={"properties": {"word": TEXT, "b": TEXT}, "required": ["word"]}),
            "does not take b: add",
        ),
        (lambda: tool(tool(look, schema=SCHEMA), schema=SCHEMA), "schema= goes with a function"),
        (lambda: tool(Agent(ScriptedModel()), schema=SCHEMA), "schema= goes with a function"),
    ],
)
def test_a_schema_that_does_not_go_with_the_function_is_refused(make: Any, told: str):
    with pytest.raises(UsageError, match=told):
        make()
