"""The statements of a source file: found by position, with what surrounds them."""

import ast
import textwrap

import pytest

from safepoint.run.interrupt.statements import (
    StatementPosition,
    Statements,
    calls_in,
    condition_reads_body_values,
    read_statements,
)


def read(source):
    tree = ast.parse(textwrap.dedent(source))
    return Statements(tree), tree


def line(statements, number, column=0):
    """The innermost statement at a place."""
    return statements.at(StatementPosition(number, number, column, column))


def test_a_position_finds_the_innermost_statement():
    statements, _ = read("""\
        def tool():
            if ready:
                first(); second()
            last(
                1)
        """)
    assert ast.unparse(line(statements, 3, 8)) == "first()"
    assert ast.unparse(line(statements, 3, 17)) == "second()"
    assert ast.unparse(line(statements, 5, 8)) == "last(1)"
    assert isinstance(line(statements, 2, 4), ast.If)
    assert isinstance(statements.at(StatementPosition(2, 4, 4, 9)), ast.FunctionDef)
    assert statements.at(StatementPosition(9, 9, 0, 0)) is None


def test_clean_up_code_ends_at_the_function_that_it_is_in():
    statements, _ = read("""\
        try:
            body()
        except ValueError:
            handler()
        else:
            other()
        finally:
            last()
            def inner():
                fresh()
        """)
    assert [statements.in_clean_up(line(statements, at, 8 if at == 10 else 4)) for at in (2, 4, 6, 8, 10)] == [
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("clean_up", "taken", "held"),
    [
        ("file.close()", "file = open(path)", True),
        ("os.close(file)", "file = open(path)", True),
        ("self.lock.release()", "self.lock.acquire()", True),
        ("self.lock.release()", "self.other.acquire()", True),
        ("self.lock.release()", "self.other.read()", False),
        ("self.close()", "self.open()", False),
        ("os.remove(path)", "os.stat(name)", False),
        ("log.info('over')", "log.info('begin')", False),
        ("file.close()", "file = None", False),
    ],
)
def test_what_a_clean_up_gives_back_is_held_from_where_it_was_got(clean_up, taken, held):
    statements, _ = read(f"""\
        import os
        def tool():
            {taken}
            between(1)
            try:
                body()
            finally:
                {clean_up}
        """)
    assert statements.between_hold_and_block(line(statements, 4, 4), inside=True) is held
    assert statements.between_hold_and_block(line(statements, 4, 4), inside=False) is held
    assert statements.between_hold_and_block(line(statements, 3, 4), inside=True) is False
    assert statements.between_hold_and_block(line(statements, 6, 8), inside=False) is False


def test_a_loop_that_tries_again_and_again_holds_nothing():
    statements, _ = read("""\
        while True:
            try:
                link = connect()
                break
            except OSError:
                pass
            wait()
        try:
            use(link)
        finally:
            link.close()
        """)
    assert not statements.between_hold_and_block(line(statements, 7, 4), inside=False)


@pytest.mark.parametrize(
    ("after", "safe"),
    [
        ("try:\n    x()\nfinally:\n    y()", False),
        ("try:\n    x()\nexcept BaseException:\n    y()", False),
        ("try:\n    x()\nexcept:\n    y()", False),
        ("try:\n    x()\nexcept ValueError:\n    y()", True),
        ("with lock:\n    x()", False),
        ("with closing(file):\n    x()", False),
        ("number = 1\nwith lock:\n    x()", False),
        ("if number:\n    with lock: x()", False),
        ("if check():\n    with lock: x()", True),
        ("while number:\n    with lock: x()", False),
        ("if number:\n    x()\nelse:\n    with lock: x()", False),
        ("pass", False),
        ("return", False),
        ("raise ValueError", True),
        ("x()", True),
    ],
)
def test_what_follows_a_call_decides_whether_it_is_over_for_good(after, safe):
    source = "def tool():\n    first()\n" + textwrap.indent(after, "    ")
    statements, _ = read(source)
    assert statements.ends_without_handing_over(line(statements, 2, 4)) is safe


def test_a_call_at_the_end_of_a_block_is_followed_by_what_follows_the_block():
    statements, _ = read("""\
        def tool():
            while one:
                if two:
                    first()
            while one:
                first()
                break
            with lock: pass
            try:
                first()
            except ValueError: pass
            else:
                with lock: pass
            match three:
                case 1:
                    first()
            x()
        """)
    calls = [(4, 12), (6, 8), (10, 8), (16, 12)]
    assert [statements.ends_without_handing_over(line(statements, *at)) for at in calls] == [True, False, False, True]


def test_the_condition_of_a_loop_may_read_what_its_body_has_received():
    reads = "while item is None: item = get()"
    for source, expected in ((reads, True), ("while True: item = get()", False), ("for item in items: get()", False)):
        assert condition_reads_body_values(ast.parse(source).body[0]) is expected


def test_what_is_only_defined_calls_nothing():
    assert not calls_in(ast.parse("def later(): now()\nf = lambda: now()").body)
    assert calls_in(ast.parse("@now()\ndef later(): pass").body)
    assert calls_in(ast.parse("async def f(): pass\nx = [now() for _ in y]").body)


def test_a_file_without_a_source_or_with_another_language_has_no_statements(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("no Python at all!")
    assert read_statements(str(wrong), {}) is None
    assert read_statements(str(tmp_path / "missing.py"), {}) is None
