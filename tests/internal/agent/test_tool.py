"""Owns the tests that look inside, beside those of `tests/agent/test_tool.py`.

Tools: schema, validation, policy and context, from a function or any Work.
"""

import functools

import pytest

from safepoint.agent.value_text import as_text
from tests.agent.test_tool import Colour, Place, Span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("words", "words"),
        ("", "(no output)"),
        (" \n", "(no output)"),
        (None, "(no output)"),
        (3, "3"),
        (True, "true"),
        ([1, "zwölf"], '[1,"zwölf"]'),
        ({"a": None}, '{"a":null}'),
        (Span(1), '{"start":1,"end":10}'),
        ([Place(city="Ulm")], '[{"city":"Ulm","zip_code":0}]'),
        (Colour.RED, '"red"'),
        ({1}, "[1]"),
        ({"at": functools.partial(len)}, None),
        ("half \udc80 a character", "half ? a character"),
        (float("nan"), "NaN"),
        (b"\xff", "b'\\xff'"),
    ],
)
def test_whatever_a_tool_returns_becomes_text_that_can_be_sent(value: object, text: str | None):
    written = as_text(value)
    written.encode()
    assert text is None or written == text


def test_a_value_that_contains_itself_becomes_text():
    endless: list[object] = []
    endless.append(endless)
    assert as_text(endless) == "[[...]]"
