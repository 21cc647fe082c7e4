"""Fields of a JSON object: the right type comes back, everything else is refused by name."""

from typing import Any

import pytest

from safepoint.errors import WireError
from safepoint.json_fields import Fields, parse

WRONG: list[tuple[str, Any]] = [
    ("text", 5),
    ("optional_text", 5),
    ("number", "5"),
    ("number", True),
    ("number", float("nan")),
    ("number", float("inf")),
    ("number", 10**400),
    ("optional_number", []),
    ("count", -1),
    ("count", 1.5),
    ("count", True),
    ("optional_count", "1"),
    ("flag", 1),
    ("items", {}),
    ("items", None),
    ("texts", ["a", 5]),
    ("texts", "ab"),
    ("object", []),
    ("optional_object", "x"),
]


def test_each_kind_of_field_comes_back():
    fields = Fields(
        "thing", {"text": "a", "number": 1, "count": 2, "flag": True, "items": [1], "texts": ["b"], "o": {}}
    )
    assert (fields.text("text"), fields.number("number"), fields.count("count")) == ("a", 1.0, 2)
    assert (fields.flag("flag"), fields.items("items"), fields.texts("texts")) == (True, [1], ("b",))
    assert fields.object("o") == fields.optional_object("o") == {}
    assert (fields.optional_text("text"), fields.optional_number("number"), fields.optional_count("count")) == (
        "a",
        1,
        2,
    )


def test_what_is_missing_is_the_default_or_nothing():
    fields = Fields("thing", {"null": None})
    assert (fields.text("x", "a"), fields.count("x", 3), fields.flag("x", True)) == ("a", 3, True)
    assert (fields.items("x"), fields.texts("x"), fields.object("x", {})) == ([], (), {})
    for name in ("x", "null"):
        optional = (fields.optional_text, fields.optional_number, fields.optional_count, fields.optional_object)
        assert [read(name) for read in optional] == [None] * 4


@pytest.mark.parametrize("kind", ["text", "number", "count", "flag", "object"])
def test_a_field_without_a_default_must_be_there(kind: str):
    with pytest.raises(WireError, match="this thing cannot be read: it has no 'name'"):
        getattr(Fields("thing", {}), kind)("name")


@pytest.mark.parametrize(("kind", "value"), WRONG, ids=lambda given: repr(given)[:20])
def test_a_field_of_another_type_is_refused_by_name(kind: str, value: Any):
    with pytest.raises(WireError, match="this thing cannot be read: 'name' must be"):
        getattr(Fields("thing", {"name": value}), kind)("name")


@pytest.mark.parametrize("data", [None, [], "x", 5])
def test_what_is_no_object_is_refused(data: object):
    with pytest.raises(WireError, match="this thing is not a JSON object but"):
        Fields("thing", data)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5_000], ids=["empty", "open", "deep", "long"])
def test_what_is_no_json_is_refused(text: str):
    with pytest.raises(WireError, match="this thing is not JSON"):
        parse("thing", text)
    assert parse("thing", "[1]") == [1]
