"""What is acquired at a statement, and would stay so if an exception came there."""

import ast
import textwrap

import pytest

from safepoint.run.interrupt.held_locks import AcquiredLocks


def acquired_after(source):
    """The calls of `work`, and the ends of the rounds of loops, after which something is acquired."""
    tree = ast.parse(textwrap.dedent(source))
    acquired = AcquiredLocks(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("work(") and acquired.after(node):
            found.append(ast.unparse(node))
        if isinstance(node, ast.For | ast.While) and acquired.after(node):
            found.append("round")
    return sorted(found)


def in_function(source):
    return "def tool(self):\n" + textwrap.indent(textwrap.dedent(source), "    ")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("work(0)\nlock.acquire()\nwork(1)\nlock.release()\nwork(2)", ["work(1)"]),
        ("lock.acquire()\nwork(1)\ntry:\n    work(2)\nfinally:\n    lock.release()\nwork(3)", ["work(1)"]),
        ("lock.acquire()\nwork(1)\nwith other:\n    work(2)\nwork(3)", ["work(1)"]),
        ("lock.acquire()\ntry:\n    work(1)\nfinally:\n    other()\nwork(2)\nlock.release()", ["work(1)", "work(2)"]),
        ("lock.acquire()\nwith file:\n    work(1)\nlock.release()", ["work(1)"]),
        ("try:\n    lock.acquire()\n    work(1)\nfinally:\n    lock.release()", []),
        ("try:\n    lock.acquire()\n    work(1)\nfinally:\n    other()\nwork(2)", ["work(1)", "work(2)"]),
        ("if lock.acquire():\n    try: work(1)\n    finally: lock.release()\nwork(2)", []),
        ("if not lock.acquire():\n    work(1)\n    return\nwork(2)\nlock.release()", ["work(2)"]),
        ("held = lock.acquire()\nif held:\n    work(1)\n    lock.release()\nwork(2)", ["work(1)"]),
        ("while lock.acquire():\n    try: work(1)\n    finally: lock.release()", []),
        ("while not lock.acquire():\n    work(1)\nwork(2)\nlock.release()", ["work(2)"]),
        ("while True:\n    work(1)\n    lock.acquire()\n    work(2)\n    lock.release()", ["work(2)"]),
        (
            "while True:\n    try:\n        lock.acquire()\n        break\n    except E: pass\n    work(1)\nwork(2)",
            ["work(2)"],
        ),
        ("for number in numbers:\n    work(number)", []),
        ("match lock.acquire():\n    case True: work(1)\n    case _: work(2)", ["work(1)", "work(2)"]),
    ],
)
def test_it_is_acquired_until_it_is_released_or_a_block_has_begun(source, expected):
    assert acquired_after(in_function(source)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            """
            held = False
            try:
                lock.acquire()
                work(1)
                held = True
                work(2)
            finally:
                if held: lock.release()
            work(3)
            """,
            ["work(1)"],
        ),
        (
            """
            try:
                for lock in locks:
                    lock.acquire()
                    work(1)
                    got.append(lock)
                work(2)
            finally:
                for each in got: each.release()
            work(3)
            """,
            ["work(1)"],
        ),
        (
            """
            with ExitStack() as stack:
                lock.acquire()
                work(1)
                stack.callback(lock.release)
                work(2)
            work(3)
            """,
            ["work(1)"],
        ),
        (
            """
            try:
                lock.acquire()
                work(1)
            finally:
                if lucky(): lock.release()
            work(2)
            """,
            ["work(1)"],
        ),
    ],
)
def test_what_a_clean_up_finds_only_later_is_held_until_then(source, expected):
    assert acquired_after(in_function(source)) == expected


@pytest.mark.parametrize("take", ["for lock in locks: lock.acquire()", "got = [lock.acquire() for lock in locks]"])
def test_several_are_held_until_all_are_released(take):
    rounds = ["round"] if take.startswith("for") else []
    released = f"{take}\nwork(1)\nfor each in reversed(locks):\n    each.release()\n    work(2)\nwork(3)"
    assert acquired_after(in_function(released)) == ["round", *rounds, "work(1)", "work(2)"]
    guarded = f"{take}\nwork(1)\ntry:\n    work(2)\nfinally:\n    for each in locks: each.release()\nwork(3)"
    assert acquired_after(in_function(guarded)) == [*rounds, "work(1)"]


def test_a_function_that_acquires_for_its_caller_makes_the_caller_hold_it():
    assert acquired_after("""
        class Tool:
            def take(self):
                self.lock.acquire()
                work(1)
            def take_twice(self):
                self.take()
            def give(self):
                self.lock.release()
                work(2)
            def tool(self):
                self.take_twice()
                work(3)
                try:
                    work(4)
                finally:
                    self.give()
                work(5)
                self.take()
                self.give()
                work(6)
        def take(lock):
            if not lock.acquire(): return False
            return True
        def tool():
            take(lock)
            work(7)
            lock.release()
            work(8)
    """) == ["work(1)", "work(3)", "work(7)"]


def test_a_method_of_the_same_name_in_another_class_does_not_matter():
    assert acquired_after("""
        class Lock:
            def take(self): self.lock.acquire()
        class Special(Lock):
            def tool(self):
                self.take()
                work(1)
        class Queue:
            def take(self): return self.queue.get()
            def tool(self):
                self.take()
                work(2)
    """) == ["work(1)"]


def test_while_a_statement_runs_it_holds_what_was_acquired_before_it_or_by_its_first_call():
    tree = ast.parse("work(1)\nlock.acquire()\nwork(2)\nlock.release()\nlock.acquire() and work(3)")
    acquired = AcquiredLocks(tree)
    assert [acquired.before(stmt) for stmt in tree.body] == [False, False, True, True, True]
    assert [acquired.by(stmt) for stmt in tree.body] == [False, True, False, False, True]
