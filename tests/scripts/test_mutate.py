"""Which changes the mutation tester makes, and which of them it takes for equivalent. Nothing is run here."""

import ast
from textwrap import dedent

import pytest

from scripts.mutate import EQUIVALENT, Equivalent, Mutant, chosen, mutants, unused


def changes(text: str) -> list[str]:
    return [mutant.change for mutant in mutants("file.py", dedent(text))]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a == b", ["a == b → (a != b)"]),
        ("a is b", ["a is b → (a is not b)"]),
        ("a is not b", ["a is not b → (a is b)"]),
        ("a in b", ["a in b → (a not in b)"]),
        ("a < b", ["a < b → (a <= b)", "a < b → (a >= b)"]),
        ("a >= b", ["a >= b → (a > b)", "a >= b → (a < b)"]),
        ("a == b == c", ["a == b == c → (a != b == c)", "a == b == c → (a == b != c)"]),
        ("a and b", ["a and b → (a or b)", "a → (not a)", "b → (not b)"]),
        ("a or not b", ["a or not b → (a and (not b))", "a → (not a)", "not b → (b)"]),
        ("not a", ["not a → (a)"]),
        ("a + b", ["a + b → (a - b)"]),
        ("a - b", ["a - b → (a + b)"]),
        ("True", ["True → False"]),
        ("7", ["7 → 8"]),
        ("0.5", ["0.5 → 1.5"]),
        ("max(a, b)", ["max → min"]),
        ("f(a, key=None)", ["None → 0"]),
        ("a if b else c", ["b → (not b)"]),
        ("[a for a in b if a]", ["a → (not a)"]),
    ],
)
def test_an_expression_is_changed_in_each_of_its_places(expression: str, expected: list[str]):
    assert changes(f"x = {expression}\n") == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("f()", ["f() → pass"]),
        ("yield a", ["yield a → pass"]),
        ("raise a", ["raise a → pass"]),
        ("return", ["return → pass"]),
        ("return a", ["return a → return None"]),
        ("return None", []),
        ("self.a = b", ["self.a = b → pass"]),
        ("self.a: int = b", ["self.a: int = b → pass"]),
        ("self.a: int", []),
        ("a[b] = c", ["a[b] = c → pass"]),
        ("a += b", ["a += b → pass"]),
        ("a = b", []),
        ("a = self.a = b", ["a = self.a = b → a = b"]),
        ("a, self.b = c, d", ["a, self.b = (c, d) → a = c", "a, self.b = (c, d) → self.b = d"]),
        ("while a: break", ["a → (not a)", "break → pass"]),
        ("for a in b: continue", ["continue → pass"]),
        ("if a: pass", ["a → (not a)"]),
        ("if a == b: pass", ["a == b → (a != b)"]),
        ("global a", []),
    ],
)
def test_a_statement_is_left_out_or_does_less(statement: str, expected: list[str]):
    assert changes(f"def f(self):\n    {statement}\n") == expected


def test_a_variable_is_not_left_without_its_first_value_but_may_keep_an_old_one():
    assert changes("def f():\n    a = b\n    a = c\n") == ["a = b → pass", "a = c → pass"]


def test_a_truth_value_that_is_returned_is_turned_round():
    assert changes("def f() -> bool:\n    return a\n") == ["a → (not a)"]
    assert changes("def f() -> bool:\n    return a is b\n") == ["a is b → (a is not b)"]


def test_defaults_of_parameters_are_changed():
    made = mutants("file.py", "def f(a=None, b=1, *, c=None, d=True, e): ...\n")
    assert [mutant.text.partition(":")[0] for mutant in made] == [
        "def f(a=0, b=1, *, c=None, d=True, e)",
        "def f(a=None, b=1, *, c=0, d=True, e)",
        "def f(a=None, b=1, *, c=None, d=False, e)",
        "def f(a=None, b=2, *, c=None, d=True, e)",
    ]


def test_what_people_and_the_type_checker_read_is_left_alone():
    text = '''
        """Text."""
        from typing import TYPE_CHECKING
        __all__ = ["f"]
        if TYPE_CHECKING:
            from a import b
        @property
        def f(a: Literal[True] | None) -> Literal[False]:
            """Text."""
            assert a is not None, "text"
            b: Literal[1]
            ...
        class C(D[1]):
            text = f"{a is b}"
    '''
    assert changes(text) == []


def test_a_mutant_is_the_whole_file_with_only_that_change_and_says_where_it_is():
    text = dedent("""
        class C:
            async def f(self) -> None:
                # ünïcödé before the place
                "ü"; await self.g(  # kept
                    1
                )
    """)
    removed, changed = mutants("file.py", text)
    assert (changed.place, changed.number, changed.line, changed.file) == ("file.py:C.f", 6, "1", "file.py")
    assert changed.text == text.replace("1", "2")
    assert removed.text == text.replace("await self.g(  # kept\n            1\n        )", "pass")
    assert str(changed) == "file.py:6: 1\n    1 → 2"


def test_every_mutant_parses_differs_from_the_file_and_comes_once():
    text = "def f(a) -> bool:\n    if not (a and a.b) or a.c < 3:\n        return not a\n    return a.d\n"
    made = {ast.dump(ast.parse(mutant.text)) for mutant in mutants("file.py", text)}
    assert ast.dump(ast.parse(text)) not in made
    assert len(made) == len(mutants("file.py", text)) == len(changes(text))


def test_functions_inside_functions_have_their_own_place_and_are_changed_once():
    made = mutants("file.py", "def f():\n    def g():\n        h()\n")
    assert [(mutant.place, mutant.change) for mutant in made] == [("file.py:f.g", "h() → pass")]


def mutant(place: str = "file.py:f", line: str = "return a", change: str = "a → b", number: int = 3) -> Mutant:
    return Mutant(place, number, line, change, "text")


def test_an_equivalent_covers_its_change_of_its_line_in_its_function_wherever_that_stands_in_the_file():
    equivalent = Equivalent("file.py:f", "return a", "a → b", "why")
    assert equivalent.covers(mutant())
    assert equivalent.covers(mutant(number=300))
    assert not equivalent.covers(mutant(place="other.py:f"))
    assert not equivalent.covers(mutant(line="return a  # changed"))
    assert not equivalent.covers(mutant(change="a → c"))


def test_an_equivalent_whose_line_is_gone_is_found():
    here, gone = Equivalent("file.py:f", "return a", "a → b", "why"), Equivalent("file.py:f", "gone", "a → b", "why")
    assert unused([here, gone], [mutant()]) == [gone]
    assert unused([here], [mutant(), mutant()]) == []


def test_every_equivalent_has_its_reason_and_stands_once():
    assert all(equivalent.why for equivalent in EQUIVALENT)
    assert len({(e.place, e.line, e.change) for e in EQUIVALENT}) == len(EQUIVALENT)


@pytest.mark.parametrize(
    ("only", "expected"),
    [([], True), (["file.py"], True), (["file.py:3"], True), (["file.py:30"], False), (["a.py", "file.py:3"], True)],
)
def test_only_chooses_files_and_lines(only: list[str], expected: bool):
    assert chosen(mutant(), only) is expected
