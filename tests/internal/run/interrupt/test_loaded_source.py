"""Whether a source still says what code was compiled from."""

import ast
import gc
import threading
import time
from types import CodeType

import pytest

from safepoint.run.interrupt.loaded_source import LoadedSource, parse_source

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


def test_threads_that_parse_at_the_same_time_all_get_the_tree(request: pytest.FixtureRequest) -> None:
    """Until Python 3.11.7 one of them may get a SystemError, which a callback of the garbage collector brings about."""
    text = "\n".join(f"def f{number}(a, b): return [a, b, (a + b) * {number}]" for number in range(600))

    def give_way(phase: str, info: object) -> None:
        time.sleep(0)

    gc.callbacks.append(give_way)
    request.addfinalizer(lambda: gc.callbacks.remove(give_way))
    trees: list[ast.Module | None] = []
    threads = [threading.Thread(target=lambda: trees.extend(parse_source(text) for _ in range(20))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(trees) == 60
    assert None not in trees


@pytest.mark.parametrize("text", ["def", "x = 1\0", "(" * 500 + ")" * 500, "-" * 200_000 + "1"])
def test_what_cannot_be_parsed_is_no_source(text: str) -> None:
    assert parse_source(text) is None
