"""Owns the proof that the tests notice a broken guard or signal: breaks them in one place at a time, and looks.

Nothing in src/ is touched: every break happens in a temporary copy of the package and its tests.
"""

import argparse
import ast
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYER = Path("src", "safepoint", "abort")
FILES = ("guard.py", "signal.py", "deadline.py")
# A broken file's own tests run first, for they notice most; the randomised schedules last, for they take longest.
SUITES = ("guard", "signal", "deadline", "ambient", "controller", "listeners", "stream", "guard_anyio")
LAST = "guard_interleavings"
AT_ONCE = 2
TEST_SECONDS = 20
RUN_SECONDS = 60.0  # or four times what the unchanged files take, on a busy machine
HUNG = "no answer in time"

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
OPPOSITES = {"min": "max", "max": "min"}
UNTOUCHED = {"annotation", "returns", "decorator_list", "bases"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Edit = tuple[ast.expr | ast.stmt, str]


@dataclass(frozen=True)
class Mutant:
    """A file with one change: the function and line it is in, what it is, and the whole changed text."""

    place: str
    number: int
    line: str
    change: str
    text: str = field(repr=False)

    @property
    def file(self) -> str:
        return self.place.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.line}\n    {self.change}"


@dataclass(frozen=True)
class Equivalent:
    """A change that changes no behaviour, and why. For this very line only: a line that changes is looked at again."""

    place: str
    line: str
    change: str
    why: str

    def covers(self, mutant: Mutant) -> bool:
        return (self.place, self.line, self.change) == (mutant.place, mutant.line, mutant.change)


NO_TASK = "a guard that was left has no task, and without one nothing is delivered, whatever its state"
NOT_READ = "the keys are what counts; nobody reads the values"

EQUIVALENT = (
    Equivalent("guard.py:Guard.__exit__", "self._state = LEFT", "self._state = LEFT → pass", NO_TASK),
    Equivalent("guard.py:Guard._leave_elsewhere", "self._state = LEFT", "self._state = LEFT → pass", NO_TASK),
    Equivalent(
        "guard.py:Guard._leave_aborted",
        "state, self._state = self._state, LEFT",
        "state, self._state = (self._state, LEFT) → state = self._state",
        NO_TASK,
    ),
    Equivalent(
        "guard.py:Guard._released_by",
        "return",
        "return → pass",
        "guards nest: one that another holds is armed, or served and then deaf, until that other one is left",
    ),
    Equivalent("deadline.py:Deadline._listen", "_kept[self] = True", "True → False", NOT_READ),
    Equivalent("deadline.py:Deadline._forget", "_kept[self] = True", "True → False", NOT_READ),
)


def mutants(file: str, text: str) -> list[Mutant]:
    """Every change of this file, in the order of its lines, none twice."""
    raw = text.encode()
    lines = raw.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    found: dict[str, Mutant] = {}
    for place, function, node in visited(ast.parse(text), file):
        for target, new in edits(node, function):
            begin = starts[target.lineno - 1] + target.col_offset
            end = starts[(target.end_lineno or 0) - 1] + (target.end_col_offset or 0)
            changed = (raw[:begin] + new.encode() + raw[end:]).decode()
            line = lines[target.lineno - 1].decode().strip()
            mutant = Mutant(place, target.lineno, line, f"{ast.unparse(target)} → {new}", changed)
            found.setdefault(ast.dump(ast.parse(changed)), mutant)
    return sorted(found.values(), key=lambda mutant: mutant.number)


def visited(
    node: ast.AST, place: str, function: Function | None = None
) -> Iterator[tuple[str, Function | None, ast.AST]]:
    """Every node that may be changed, with the function it stands in."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Expr(ast.Constant()) | ast.If(test=ast.Name("TYPE_CHECKING")):
            return  # what is said to people and to the type checker
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            place = f"{place}{'.' if ':' in place else ':'}{name}"
        case _:
            pass
    function = node if isinstance(node, Function) else function
    yield place, function, node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNTOUCHED:
                yield from visited(child, place, function)


def edits(node: ast.AST, function: Function | None) -> Iterator[Edit]:
    """The changes this node allows: what becomes what."""
    match node:
        case ast.Compare(left, ops, comparators):
            for index, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield expression(node, ast.Compare(left, [*ops[:index], other(), *ops[index + 1 :]], comparators))
        case ast.BoolOp(ast.And() | ast.Or() as op, values):
            yield expression(node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
            yield from chain.from_iterable(map(negated, values))
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            yield expression(node, ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right))
        case ast.UnaryOp(ast.Not(), operand):
            yield expression(node, operand)
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield from negated(test)
        case ast.comprehension(ifs=ifs):
            yield from chain.from_iterable(map(negated, ifs))
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() | float() as value):
            yield node, str(value + 1)
        case ast.Call(ast.Name(name) as called) if name in OPPOSITES:
            yield called, OPPOSITES[name]
        case ast.keyword(value=ast.Constant(None) as given):
            yield given, "0"
        case ast.arguments(defaults=defaults, kw_defaults=kw_defaults):
            for default in [*defaults, *kw_defaults]:
                if isinstance(default, ast.Constant) and default.value is None:
                    yield default, "0"
        case ast.stmt() if function:
            yield from weakened(node, function)
        case _:
            pass


def expression(old: ast.expr, new: ast.expr) -> Edit:
    return old, f"({ast.unparse(new)})"


def negated(condition: ast.expr) -> Iterator[Edit]:
    """With `not`, unless another change amounts to the same."""
    if not isinstance(condition, ast.Compare | ast.Constant | ast.UnaryOp):
        yield expression(condition, ast.UnaryOp(ast.Not(), condition))


def weakened(node: ast.stmt, function: Function) -> Iterator[Edit]:
    """The statement left out, or doing less; not where that leaves a variable without a value, which anybody sees."""
    match node:
        case ast.Expr() | ast.Raise() | ast.Break() | ast.Continue() | ast.Return(None) | ast.AugAssign():
            yield node, "pass"
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            if isinstance(function.returns, ast.Name) and function.returns.id == "bool":
                yield from negated(value)
            else:
                yield node, "return None"
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            for target, value in zip(targets, values, strict=True):
                yield node, f"{ast.unparse(target)} = {ast.unparse(value)}"
        case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name), value=ast.expr()):
            stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            if sum(store.id == name for store in stores) > 1:
                yield node, "pass"
        case ast.Assign([_]) | ast.AnnAssign(value=ast.expr()):
            yield node, "pass"
        case ast.Assign(targets, value):
            for target in targets:
                if not isinstance(target, ast.Name):
                    yield node, ast.unparse(ast.Assign([t for t in targets if t is not target], value, lineno=0))
        case _:
            pass


def unused(equivalents: Iterable[Equivalent], made: Iterable[Mutant]) -> list[Equivalent]:
    """Those that cover no mutant any more: their line has changed or is gone."""
    made = list(made)
    return [equivalent for equivalent in equivalents if not any(map(equivalent.covers, made))]


def chosen(mutant: Mutant, only: list[str]) -> bool:
    """Whether `--only` asks for it: `guard.py` or `guard.py:120`; nothing asked means all."""
    return not only or mutant.file in only or f"{mutant.file}:{mutant.number}" in only


class Copy:
    """A temporary copy of the package and its tests, in which mutants are tried one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 10 * RUN_SECONDS
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    async def try_out(self, mutant: Mutant) -> str:
        """The test that noticed; empty when none did."""
        path = self.folder / LAYER / mutant.file
        whole = path.read_text(encoding="utf-8")
        self.write(path, mutant.text)
        try:
            return await self.run_tests(mutant.file)
        finally:
            self.write(path, whole)

    def write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # of the same second, hence taken for fresh
            compiled.unlink()

    async def run_tests(self, file: str) -> str:
        suites = sorted(SUITES, key=lambda suite: f"{suite}.py" != file)
        files = [
            f"tests/{folder}/test_{suite}.py" for suite in (*suites, LAST) for folder in ("abort", "internal/abort")
        ]
        paths = [name for name in files if (self.folder / name).exists()]
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "pytest_timeout", f"--timeout={TEST_SECONDS}"]
        try:
            code, printed = await self.run("-m", "pytest", *options, *paths)
        except TimeoutError:
            return HUNG
        noticed = re.search(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
        return "" if code == 0 else noticed[1] if noticed else printed.strip() or f"exit code {code}"

    async def run(self, *arguments: str) -> tuple[int | None, str]:
        """Run Python in this copy; after the time, or when we are interrupted, all that it started is killed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self.seconds):
                printed, _ = await process.communicate()
            return process.returncode, printed.decode(errors="replace")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def check(copy: Copy) -> str:
    """What makes a verdict worthless: the tests import something else than the copy, or fail without any change."""
    _, imported = await copy.run("-c", "import safepoint.abort; print(safepoint.abort.__path__[0])")
    if Path(imported.strip()) != copy.folder / LAYER:
        return f"The tests would import {imported.strip()}, not {copy.folder / LAYER}"
    noticed = await copy.run_tests(FILES[0])
    return noticed and f"Nothing was changed, and still this fails: {noticed}"


async def survivors(tried: list[Mutant], folder: Path, *, verbose: bool) -> list[Mutant]:
    """The mutants that no test notices.

    Raises: SystemExit when the tests cannot be trusted to notice anything.
    """
    copies = [Copy(folder / str(number)) for number in range(AT_ONCE)]
    began = time.monotonic()
    if wrong := await check(copies[0]):
        raise SystemExit(wrong)
    for copy in copies:
        copy.seconds = max(RUN_SECONDS, 4 * (time.monotonic() - began))
    alive: list[Mutant] = []
    waiting = enumerate(tried, 1)

    async def work(copy: Copy) -> None:
        for number, mutant in waiting:
            noticed = await copy.try_out(mutant)
            if not noticed:
                alive.append(mutant)
            if verbose or noticed in ("", HUNG):
                print(f"{mutant}\n    {'noticed by ' + noticed if noticed else 'SURVIVES'}", flush=True)
            if sys.stderr.isatty() or number % 10 == 0 or number == len(tried):
                end = "\r" if sys.stderr.isatty() else "\n"
                print(f"{number}/{len(tried)} tried, {len(alive)} survive", end=end, file=sys.stderr, flush=True)

    async with asyncio.TaskGroup() as group:
        for copy in copies:
            group.create_task(work(copy))
    return alive


def main() -> int:
    parser = argparse.ArgumentParser(
        description=f"Change {', '.join(FILES)} in one place at a time, in a copy, and see whether a test notices.",
        epilog="The exit code is 1 when a change survives that is not listed in EQUIVALENT, with its reason, in this "
        "file. About ten minutes on two idle cores.",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="FILE[:LINE]", help="such as guard.py:120; again for more"
    )
    parser.add_argument(
        "--equivalents", action="store_true", help="try those in EQUIVALENT instead: none may be noticed"
    )
    parser.add_argument("--verbose", action="store_true", help="print every change with the test that noticed it")
    options = parser.parse_args()

    made = [mutant for file in FILES for mutant in mutants(file, (ROOT / LAYER / file).read_text(encoding="utf-8"))]
    known = [mutant for mutant in made if any(equivalent.covers(mutant) for equivalent in EQUIVALENT)]
    tried = [m for m in made if (m in known) == options.equivalents and chosen(m, options.only)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        alive = asyncio.run(survivors(tried, Path(folder), verbose=options.verbose))
    seconds = time.monotonic() - began
    print(f"{len(tried)} changes in {seconds:.0f} s: {len(tried) - len(alive)} noticed, {len(alive)} not.")
    if options.equivalents:
        return int(len(alive) < len(tried))
    for old in unused(EQUIVALENT, made):
        print(f"EQUIVALENT lists what is not there any more: {old.place}: {old.line}\n    {old.change}")
    return int(bool(alive or unused(EQUIVALENT, made)))


if __name__ == "__main__":
    sys.exit(main())
