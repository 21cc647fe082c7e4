"""The check whether running code was compiled from the present text of its source file, and the parsing of source.

The file may have been edited since it was loaded, even inside a function, so names and line numbers prove nothing. The
text is compiled again, and the code must be the same, at the same positions.
"""

import ast
import dis
from types import CodeType

__all__ = ["LoadedSource", "parse_source"]

PARSE_ATTEMPTS = 5


def parse_source(text: str) -> ast.Module | None:
    """Parse the text of a file. None if it is not Python, or too deeply nested.

    Until Python 3.11.7 and 3.12.1 two threads that parse at the same time count the depth of their trees in one
    variable, and one of them may fail with a SystemError. The text is fine then, so it is parsed again.
    """
    for _ in range(PARSE_ATTEMPTS):
        try:
            return ast.parse(text)
        except SystemError:
            continue
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return None


class LoadedSource:
    """The code objects that the text of a file compiles to.

    Args:
        text: The text.
        file: The name of the file.
    """

    def __init__(self, text: str, file: str) -> None:
        self._codes: dict[tuple[str, int], list[CodeType]] = {}
        self._asserts: set[int] = set()  # the lines of all `assert` statements
        tree = parse_source(text)
        if tree is None:
            return
        try:
            todo = [compile(text, file, "exec", dont_inherit=True)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # what only the compiler sees
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                self._asserts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        while todo:
            code = todo.pop()
            self._codes.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
            todo += [each for each in code.co_consts if isinstance(each, CodeType)]

    def has(self, code: CodeType) -> bool:
        """Whether the code was compiled from this text."""
        return any(self._same(code, each) for each in self._codes.get((code.co_qualname, code.co_firstlineno), ()))

    def _same(self, code: CodeType, other: CodeType) -> bool:
        if (code.co_code, code.co_linetable) == (other.co_code, other.co_linetable):
            return True
        # Test runners replace `assert` statements by other code. The calls in all other lines must be the same.
        if self._asserts.isdisjoint(entry for _, _, entry in other.co_lines() if entry is not None):
            return False
        return self._other(_positions(code)) == self._other(_positions(other))

    def _other(self, positions: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [position for position in positions if position[0] not in self._asserts]


def _positions(code: CodeType) -> list[tuple[int, ...]]:
    """The positions of all calls, each as often as it occurs: the code of a `finally` is compiled several times.

    The implicit return at the end of a function is left out: its position is that of the last statement, which may be
    an `assert`.
    """
    steps = zip(code.co_code[::2], code.co_positions(), strict=True)
    return sorted(tuple(part or 0 for part in at) for opcode, at in steps if dis.opname[opcode].startswith("CALL"))
