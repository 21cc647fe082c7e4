"""What is acquired at a statement (`lock.acquire()`), and would stay acquired if an exception came there.

An exception between `lock.acquire()` and the block that releases the lock leaves the lock held for ever, and every
other thread that needs it waits for ever. So each function of a file is followed from its first statement to its last,
with the set of what is acquired and neither released nor certain to be released by a block around it (`State`). Two
cases make this more than a search for names:

- A lock may be acquired inside the `try`. Then the `finally` protects it only if it certainly releases it:
  `finally: if held: lock.release()` does so only after `held = True` (`_without_covered`).
- A function may acquire for its caller. It then counts as `acquire` where it is called, so the functions of a file are
  followed repeatedly, until what is known about them no longer changes (`LockEffect`).

In doubt something counts as acquired: then the thread is interrupted later, which is harmless. Bytecode and threads are
not known here.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["AcquiredLocks"]

ACQUIRE = {"acquire", "acquire_lock", "lock", "__enter__", "__aenter__"}
RELEASE = {"release", "release_lock", "unlock", "__exit__", "__aexit__"}
REGISTER = {"append", "add", "appendleft", "push", "callback"}  # put an object where clean-up code finds it
UNKNOWN = "?"
MAX_CALL_DEPTH = 5  # how deep functions that acquire for their callers may call each other

AnyTry = ast.Try | ast.TryStar
AnyWith = ast.With | ast.AsyncWith
AnyFor = ast.For | ast.AsyncFor
Jump = ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Pass


class Held(NamedTuple):
    """Something that is acquired.

    Attributes:
        name: The object as it is written in the source; `*locks` for each of `locks`.
        flag: The variable that is true if it was acquired: `held = lock.acquire()`.
    """

    name: str
    flag: str = ""


State = frozenset[Held]
NOTHING: State = frozenset()


class LockEffect(NamedTuple):
    """What a function has acquired and released for its caller when it returns."""

    acquires: frozenset[str]
    releases: frozenset[str]


class AcquiredLocks:
    """What is acquired at each statement of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._flow = _LockFlow({}, {})
        named = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        if ACQUIRE.isdisjoint(named):
            return
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        owners = {id(stmt): name for name, node in classes.items() for stmt in node.body}
        effects: dict[str, LockEffect] = {}
        for _ in range(MAX_CALL_DEPTH):
            self._flow, known = _LockFlow(effects, classes), dict[str, LockEffect]()
            for function in functions:
                owner = owners.get(id(function), "")
                effect = self._flow.follow(function, owner)
                names = {function.name if function.name != "__init__" else owner, f"{owner}.{function.name}"}
                for name in names:
                    # Functions with the same name count as one: what any of them acquires, and all of them release.
                    other = known.get(name, effect)
                    known[name] = LockEffect(effect.acquires | other.acquires, effect.releases & other.releases)
            if known == effects:
                break
            effects = known
        self._flow.block(tree.body, NOTHING)

    def before(self, stmt: ast.stmt) -> bool:
        """Whether something is acquired while the statement calls other functions."""
        return bool(self._flow.before[stmt])

    def after(self, stmt: ast.stmt) -> bool:
        """Whether something is acquired when the statement is over; for a loop, when an iteration is over."""
        return bool(self._flow.after[stmt])

    def by(self, stmt: ast.stmt) -> bool:
        """Whether the statement itself acquires something."""
        return stmt in self._flow.acquiring


class _LockFlow:
    """Follows the statements of one function after the other.

    Args:
        effects: What is known about the functions of the file, by `function`, `.function` (outside a class) and
            `Class.method`.
        classes: The classes of the file by name.
    """

    def __init__(self, effects: dict[str, LockEffect], classes: dict[str, ast.ClassDef]) -> None:
        self.before: defaultdict[ast.stmt, State] = defaultdict(lambda: NOTHING)
        self.after: defaultdict[ast.stmt, State] = defaultdict(lambda: NOTHING)
        self.acquiring: set[ast.stmt] = set()
        self._effects, self._classes, self._class = effects, classes, ""
        self._begin([])

    def follow(self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> LockEffect:
        self._class = owner
        self._begin(function.body)
        end = self.block(function.body, NOTHING)
        kept = {held.name for held in self._at_return | (end or NOTHING)}
        return LockEffect(frozenset(kept), frozenset(self._released_for_caller))

    def _begin(self, body: list[ast.stmt]) -> None:
        self._aliases: dict[str, str] = {}  # of the variables of loops
        self._at_return: State = NOTHING
        self._released_for_caller: set[str] = set()
        self._loops: list[tuple[set[Held], set[Held]]] = []  # what is held at a `continue`, and at a `break`
        self._clean_ups: list[list[ast.stmt]] = []  # the clean-up code around the statement
        self._releases = [
            (self._name(node.func.value), (node.lineno, node.col_offset))
            for node in _nodes(body)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RELEASE
        ]

    def block(self, stmts: list[ast.stmt], state: State | None) -> State | None:
        """What is acquired after these statements. None if they are always left by a jump."""
        for stmt in stmts:
            if state is None:
                return None
            state = self._statement(stmt, state)
        return state

    def _statement(self, stmt: ast.stmt, state: State) -> State | None:
        self.before[stmt] |= state
        out: State | None
        match stmt:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return state
            case ast.If():
                out = self._if(stmt, state)
            case ast.While():
                return self._loop(stmt, state)
            case ast.For() | ast.AsyncFor():
                return self._for(stmt, self._execute(stmt, [stmt.iter], state))
            case ast.With() | ast.AsyncWith():
                out = self._with(stmt, self._execute(stmt, stmt.items, state))
            case ast.Try() | ast.TryStar():
                out = self._try(stmt, state)
            case ast.Match():
                state = self._execute(stmt, [stmt.subject], state)
                out = _either(state, *(self.block(case.body, state) for case in stmt.cases))
            case _:
                state = self._execute(stmt, [stmt], state)
                out = self._jump(stmt, state)
        self.after[stmt] |= state if out is None else out
        return out

    def _jump(self, stmt: ast.stmt, state: State) -> State | None:
        if isinstance(stmt, ast.Return):
            self._at_return |= state
        elif isinstance(stmt, ast.Break | ast.Continue) and self._loops:
            self._loops[-1][isinstance(stmt, ast.Break)].update(state)
        return None if isinstance(stmt, ast.Return | ast.Raise | ast.Break | ast.Continue) else state

    def _if(self, stmt: ast.If, state: State) -> State | None:
        yes, no = self._branches(stmt, stmt.test, state)
        return _either(self.block(stmt.body, yes), self.block(stmt.orelse, no))

    def _branches(self, stmt: ast.stmt, test: ast.expr, state: State) -> tuple[State, State]:
        """What is acquired if the condition is true, and if not: `if lock.acquire(timeout=1):`, `if held:`."""
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        condition = test.operand if isinstance(test, ast.UnaryOp) and negated else test
        after = self._execute(stmt, [test], state)
        yes = no = after
        if isinstance(condition, ast.Call):
            no = state & after
        elif isinstance(condition, ast.Name | ast.NamedExpr):
            flag = condition.id if isinstance(condition, ast.Name) else _text(condition.target)
            no = frozenset(held for held in after if held.flag != flag)
        return (no, yes) if negated else (yes, no)

    def _for(self, stmt: ast.For | ast.AsyncFor, state: State) -> State | None:
        """Follow a loop: `for lock in locks: lock.release()` has released all of them only when it is over."""
        aliases = _aliases(stmt.target, stmt.iter)
        self._aliases |= aliases
        all_of = next(iter(aliases.values()))
        others = frozenset(held for held in state if held.name != all_of)
        kept = frozenset(Held(f"all {held.name}", held.flag) for held in state - others)
        out = self._loop(stmt, others | kept)
        if out is None or not kept:
            return out
        return out - kept if all_of in self._released_names(stmt.body) else out - kept | (state - others)

    def _loop(self, stmt: ast.For | ast.AsyncFor | ast.While, state: State) -> State | None:
        forever = isinstance(stmt, ast.While) and isinstance(stmt.test, ast.Constant) and bool(stmt.test.value)
        head, leave, breaks = state, state, set[Held]()
        for _ in range(3):  # what an iteration leaves acquired is acquired at the start of the next one
            self.before[stmt] |= head
            yes = leave = head
            if isinstance(stmt, ast.While):
                yes, leave = self._branches(stmt, stmt.test, head)
            self._loops.append((set(), set()))
            end = self.block(stmt.body, yes)
            continues, broken = self._loops.pop()
            breaks |= broken
            again = continues | (end or NOTHING)
            self.after[stmt] |= again
            if again <= head:
                break
            head |= again
        normal = None if forever else self.block(stmt.orelse, leave)
        return _either(normal, frozenset(breaks) if breaks or _has_break(stmt) else None)

    def _with(self, stmt: AnyWith, state: State) -> State | None:
        mentioned = [ast.Expr(item.context_expr) for item in stmt.items]
        open_ = frozenset(held for held in state if not self._released_by_block(held, stmt, mentioned))
        return self.block(stmt.body, open_)

    def _try(self, stmt: AnyTry, state: State) -> State | None:
        clean_up = [*stmt.finalbody, *(each for h in stmt.handlers if _catches_all(h) for each in h.body)]
        inner = state
        if clean_up:
            inner = frozenset(held for held in state if not self._released_by_block(held, stmt, clean_up))
            self._clean_ups.append(clean_up)
        end = self.block(stmt.body, inner)
        raised = inner.union(
            *(self.before[n] for n in _nodes(stmt.body) if isinstance(n, ast.stmt) and not isinstance(n, Jump))
        )
        out = _either(self.block(stmt.orelse, end), *(self.block(h.body, frozenset(raised)) for h in stmt.handlers))
        if clean_up:
            self._clean_ups.pop()
            released = self._releases_something(clean_up)
            out = None if out is None else frozenset(held for held in out if held in inner or not released)
            self._at_return = frozenset(held for held in self._at_return if held in inner or not released)
        after = self.block(stmt.finalbody, out or NOTHING)
        return None if out is None else after

    def _released_by_block(self, held: Held, block: ast.stmt, clean_up: Iterable[ast.AST]) -> bool:
        """Whether a block that begins after the acquisition releases it, and not a later statement by its name."""
        names = self._released_names(clean_up)
        inside = {(n.lineno, n.col_offset) for n in _nodes(clean_up) if isinstance(n, ast.Call)}
        later = any(
            name == held.name and at >= (block.lineno, block.col_offset) and at not in inside
            for name, at in self._releases
        )
        return held.name in names or not later

    def _execute(self, stmt: ast.stmt, parts: Iterable[ast.AST], state: State) -> State:
        """What is acquired after these expressions of the statement."""
        calls = [node for node in _nodes(parts) if isinstance(node, ast.Call)]
        for node in _nodes(parts):
            if isinstance(node, ast.comprehension):
                self._aliases |= _aliases(node.target, node.iter)
        flag = ""
        if isinstance(stmt, ast.Assign | ast.AnnAssign) or (
            calls and any(isinstance(n, ast.NamedExpr) for n in _nodes(parts))
        ):
            flag = next((n.id for n in _nodes(parts) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)), "")
        acquired = set[str]()
        for call in calls:
            state = self._call(call, state, acquired)
        new = frozenset(Held(name, flag) for name in acquired)
        if new:
            self.acquiring.add(stmt)
            if len(calls) > 1:
                self.before[stmt] |= new
        return self._without_covered(stmt, state | new)

    def _call(self, call: ast.Call, state: State, acquired: set[str]) -> State:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else _text(call.func)
        receiver = self._name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if receiver and method in ACQUIRE:
            acquired.add(receiver)
            return state
        if receiver and method in RELEASE:
            if all(held.name != receiver for held in state):
                self._released_for_caller.add(receiver)
            return frozenset(held for held in state if held.name not in (receiver, UNKNOWN))
        arguments = {self._name(part) for part in call.args}
        if method in REGISTER:  # `stack.callback(lock.release)`
            state = frozenset(h for h in state if not {f"{h.name}.{name}" for name in RELEASE} & arguments)
        effect = self._effect(call)
        if effect is not None:
            freed = {UNKNOWN, *arguments, *effect.releases} if effect.releases else set()
            state = frozenset(held for held in state if held.name not in freed)
            same = {name for name in effect.acquires if receiver == "self" and name.startswith("self.")}
            acquired |= same
            if effect.acquires - same:
                acquired.add(arguments.pop() if len(arguments) == 1 else UNKNOWN)
        return state

    def _without_covered(self, stmt: ast.stmt, state: State) -> State:
        """Leave out what the clean-up code around the statement is now certain to release.

        `finally: lock.release()` is certain from the beginning, `finally: if held: lock.release()` after `held = True`,
        and `finally: for each in got: each.release()` after `got.append(lock)`.
        """
        for clean_up in self._clean_ups:
            certain = self._released_names(part for part in clean_up if _is_unconditional(part))
            for part in clean_up:
                match stmt, part:
                    case ast.Assign(targets=[flag], value=ast.Constant(True)), ast.If() if _text(flag) == _text(
                        part.test
                    ):
                        certain |= self._released_names(part.body)
                    case ast.Expr(ast.Call(func=ast.Attribute(to, attr), args=arguments)), ast.For() if (
                        attr in REGISTER
                    ):
                        if _text(to) == _iterated(part.iter) and self._releases_something([part]):
                            certain |= {self._name(each) for each in arguments}
            state = frozenset(held for held in state if held.name not in certain)
        return state

    def _released_names(self, parts: Iterable[ast.AST]) -> set[str]:
        """The names of what is released, or passed to a call, or released by a function that is called."""
        found = set[str]()
        parts = list(parts)
        aliases = dict(self._aliases)
        for node in _nodes(parts):
            if isinstance(node, AnyFor | ast.comprehension):
                self._aliases |= _aliases(node.target, node.iter)
        for node in _nodes(parts):
            if isinstance(node, ast.Call):
                found |= {self._name(each) for each in node.args}
                if isinstance(node.func, ast.Attribute) and node.func.attr in RELEASE:
                    found.add(self._name(node.func.value))
                effect = self._effect(node)
                found |= effect.releases if effect is not None else set()
        self._aliases = aliases
        return found | {UNKNOWN} if found else found

    def _releases_something(self, parts: Iterable[ast.AST]) -> bool:
        """Whether these statements release anything."""
        for call in (node for node in _nodes(parts) if isinstance(node, ast.Call)):
            effect = self._effect(call)
            if (isinstance(call.func, ast.Attribute) and call.func.attr in RELEASE) or (effect and effect.releases):
                return True
        return False

    def _effect(self, call: ast.Call) -> LockEffect | None:
        """What is known about the called function. Methods of other objects are found by their name only."""
        match call.func:
            case ast.Name(name):
                return self._effects.get(name if name in self._classes else f".{name}")
            case ast.Attribute(ast.Name("self" | "cls"), method) if self._class:
                todo, seen = [self._class], set[str]()
                while todo:
                    name = todo.pop(0)
                    if f"{name}.{method}" in self._effects:
                        return self._effects[f"{name}.{method}"]
                    if name in self._classes and name not in seen:
                        seen.add(name)
                        todo += [_text(base) for base in self._classes[name].bases]
                return None
            case ast.Attribute(_, method):
                return self._effects.get(method)
            case _:
                return None

    def _name(self, node: ast.AST) -> str:
        text = _text(node)
        return self._aliases.get(text, text)


def _aliases(target: ast.expr, items: ast.expr) -> dict[str, str]:
    return {_text(target): f"*{_iterated(items)}"}


def _iterated(items: ast.expr) -> str:
    match items:
        case ast.Call(func=ast.Name("reversed" | "sorted" | "list" | "tuple" | "iter"), args=[inner]):
            return _iterated(inner)
        case _:
            return _text(items)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _nodes(parts: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These nodes and all inside them that are executed with them, in the order of the text."""
    for part in parts:
        yield part
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _nodes(ast.iter_child_nodes(part))


def _either(*states: State | None) -> State | None:
    there = [state for state in states if state is not None]
    return frozenset().union(*there) if there else None


def _is_unconditional(stmt: ast.stmt) -> bool:
    return not isinstance(stmt, ast.If | ast.While | ast.Match)


def _has_break(loop: ast.stmt) -> bool:
    return any(isinstance(node, ast.Break) for node in _nodes([loop]))


def _catches_all(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    return not kinds or any(_text(kind).rpartition(".")[2] in ("BaseException", "AbortInterrupt") for kind in kinds)
