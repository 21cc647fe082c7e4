"""Whether a source still says what code was compiled from."""

from types import CodeType

import pytest

from safepoint.run.loaded_source import LoadedSource

TEXT = "def tool(x):\n    try:\n        x(1)\n    finally:\n        [x(n) for n in x]\n        assert x, 1\n"


def code_of(text):
    return next(each for each in compile(text, "<file>", "exec").co_consts if isinstance(each, CodeType))


def test_the_text_that_it_was_compiled_from_fits():
    source = LoadedSource(TEXT, "<file>")
    assert source.has(compile(TEXT, "<file>", "exec"))
    assert source.has(code_of(TEXT))
    assert all(source.has(each) for each in code_of(TEXT).co_consts if isinstance(each, CodeType))


@pytest.mark.parametrize(
    "edited",
    [
        "\n" + TEXT,
        TEXT.replace("tool(x):", "tool(x):\n    # a note"),
        TEXT.replace("x(1)", "pass"),
        TEXT.replace("finally", "except"),
        TEXT.replace("x(1)", "x(22)"),
        TEXT.replace("tool", "other"),
        "no Python at all!",
    ],
)
def test_an_edited_text_does_not_fit(edited):
    assert not LoadedSource(edited, "<file>").has(code_of(TEXT))


def test_other_code_in_the_place_of_an_assert_fits():
    rewritten = code_of(TEXT.replace("assert x, 1", "if not x: raise x"))
    assert LoadedSource(TEXT, "<file>").has(rewritten)


def test_code_in_the_place_of_an_assert_does_not_hide_another_edit():
    rewritten = code_of(TEXT.replace("assert x, 1", "if not x: raise x").replace("x(1)", "x(22)"))
    assert not LoadedSource(TEXT, "<file>").has(rewritten)
