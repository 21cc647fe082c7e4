"""Where a thread may be interrupted: sources with marks are run, and every instruction is asked about."""

import dis
import linecache
import queue
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from safepoint.run.interrupt import positions, safety
from safepoint.run.interrupt.safety import safe_to_interrupt

files = count()
sys._getframe().f_trace_opcodes = True  # Python 3.12 traces instructions if a frame wanted it before tracing began


def found_in(source, *, cut=False):
    """Run `tool()` of the source. Which places were safe: `after` a line, the end of a `round`, the `start` of one."""
    file = f"<source {next(files)}>"
    source = textwrap.dedent(source)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "__name__": "tools",
        "queue": queue,
        "threading": threading,
        "contextmanager": contextmanager,
    }
    exec(compile(source, file, "exec"), names)
    found = set()

    def is_own(frame):
        return frame.f_code.co_filename == file

    def trace(frame, event, arg):
        if not is_own(frame):
            return None
        frame.f_trace_opcodes = True
        if event in ("call", "opcode") and safe_to_interrupt(frame, is_own, cut=cut, outermost=here):
            found.add(kind(frame))
        return trace

    here = sys._getframe().f_code
    old = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(ZeroDivisionError):
            names["tool"]()
    finally:
        sys.settrace(old)
    return found


def kind(frame):
    code = frame.f_code
    if safety._is_at_start(frame):
        return f"start of {code.co_name}"
    if code.co_code[frame.f_lasti] == dis.opmap["POP_TOP"]:
        return f"after {linecache.getline(code.co_filename, frame.f_lineno).strip()}"
    return "round"


def test_after_a_call_whose_value_is_thrown_away_it_is_safe():
    assert found_in("""
        def tool():
            print(end="")
            abs(1)
            return abs(2)
    """) == {"start of tool", 'after print(end="")'}


@pytest.mark.parametrize(
    "before_the_block",
    [
        "lock.acquire()",
        "lock.acquire(); number = 0",
        "lock.acquire(); abs(1); number = 0",
        "if lock.acquire(): pass",
        "held = lock.acquire()",
        "for each in [lock]: each.acquire()",
        "lock.acquire(); number = 0; number += 1; abs(number)",
    ],
)
def test_between_taking_a_lock_and_the_block_that_gives_it_back_it_is_not(before_the_block):
    assert found_in(f"""
        lock = threading.Lock()
        def tool():
            each = lock
            {before_the_block}
            try:
                abs(5)
                abs(6)
            finally:
                each.release(); lock.locked()
    """) - {"start of tool"} <= {"after abs(5)"}


def test_an_unprotected_lock_is_given_back_too():
    assert found_in("""
        lock = threading.Lock()
        def tool():
            lock.acquire()
            abs(1)
            lock.release()
            abs(2)
            abs(3)
    """) == {"start of tool", "after lock.release()", "after abs(2)"}


def test_before_a_block_that_gives_nothing_back_it_is_safe():
    assert found_in("""
        def tool():
            abs(1)
            try:
                abs(2)
                abs(3)
            except ValueError:
                pass
    """) == {"start of tool", "after abs(1)", "after abs(2)"}


def test_what_was_received_is_handed_on_first():
    assert found_in("""
        inbox = queue.SimpleQueue(); inbox.put(1); inbox.put(2)
        done = []
        def tool():
            item = inbox.get()
            number = 0
            done.append(item)
            with threading.Lock():
                other = inbox.get()
            handle(other)
            handle(abs(1))
        def handle(item):
            keep(item)
            abs(2)
        def keep(item):
            done.append(item)
            abs(3)
    """) == {"start of tool", "after done.append(item)", "after keep(item)", "after handle(other)"}


def test_a_function_that_is_given_nothing_new_is_interrupted_at_its_start():
    assert found_in("""
        def tool():
            item = abs(1)
            first(item)
            second()
            return None
        def first(item):
            third()
        def second():
            return 1
        def third():
            return 1
    """) == {"start of tool", "start of second", "after first(item)"}


@pytest.mark.parametrize(
    ("loop", "safe"),
    [
        ("for number in range(2): pass", True),
        ("for number in range(2): item = abs(number)", True),
        ("numbers = [abs(number) for number in range(2)]", True),
        ("numbers = sum(number for number in range(2))", True),
        ("while len(numbers) < 2: numbers.append(1)", True),
        ("while numbers != [1, 1]: numbers += [abs(1)]", False),
        ("while item is None: item = abs(1)", False),
        ("while item != 3: item += 1", True),
    ],
)
def test_the_end_of_a_round_is_safe_unless_the_condition_reads_what_was_received(loop, safe):
    assert (
        "round"
        in found_in(f"""
        def tool():
            numbers = []; item = 0
            {loop}
    """)
    ) is safe


def test_the_condition_of_a_loop_may_take_a_lock():
    assert found_in("""
        lock = threading.Lock()
        def tool():
            rounds = 0
            while lock.acquire(timeout=1):
                try:
                    rounds += 1
                    1 / (2 - rounds)
                finally:
                    lock.release()
    """) == {"start of tool", "round"}


@pytest.mark.parametrize("clean_up", ["finally", "except ZeroDivisionError"])
def test_clean_up_code_and_what_it_calls_is_left_alone(clean_up):
    found = found_in(f"""
        def tool():
            abs(0)
            try:
                1 / 0
            {clean_up}:
                abs(1)
                tidy()
                for _ in range(3): abs(2)
                abs(3)
        def tidy():
            abs(4)
            abs(5)
    """)
    assert not {place for place in found if "tidy" in place or place == "round" or any(c in place for c in "12345")}


def test_context_managers_of_its_own_are_left_alone():
    assert found_in("""
        lock = threading.Lock()
        class Own:
            def __enter__(self):
                abs(1)
                step()
                abs(2)
            def leave(self, *_):
                abs(13)
                abs(14)
            __exit__ = leave
        @contextmanager
        def made():
            abs(3)
            abs(4)
            yield
            abs(5)
            abs(6)
        def step():
            abs(7)
            abs(8)
        def tool():
            with Own():
                abs(9)
                abs(10)
            with made():
                abs(11)
                abs(12)
            return None
    """) == {"start of tool", "after abs(9)", "after abs(11)"}


def test_what_runs_while_a_caller_holds_something_without_a_block_is_left_alone():
    assert found_in("""
        lock = threading.Lock()
        def tool():
            lock.acquire()
            step()
            try:
                step()
                abs(1)
            finally:
                lock.release()
        def step():
            abs(2)
            abs(3)
    """) == {"start of tool", "after step()", "start of step", "after abs(2)"}


def test_recursion_is_interrupted_however_deep_it_is():
    assert "start of down" in found_in("""
        def down(number):
            return down(number - 1) if number else 0
        def tool():
            return down(50)
    """)


def test_what_is_only_defined_in_clean_up_is_no_clean_up_where_it_is_called():
    assert "after abs(1)" in found_in("""
        def tool():
            try:
                1 / 0
            except ZeroDivisionError:
                def later():
                    abs(1)
                    abs(2)
                kept = later
            kept()
    """)


def test_without_a_source_nothing_is_safe_but_the_start():
    names: dict[str, Any] = {}
    exec(compile("def tool():\n    abs(1)\n    abs(2)\n", "<no source>", "exec"), names)
    asked = []

    def trace(frame, event, arg):
        if frame.f_code is names["tool"].__code__:
            frame.f_trace_opcodes = True
            if event == "opcode":
                asked.append(safe_to_interrupt(frame, outermost=here))
        return trace

    here, old = sys._getframe().f_code, sys.gettrace()
    sys.settrace(trace)
    try:
        names["tool"]()
    finally:
        sys.settrace(old)
    assert asked
    assert not any(asked)


def test_a_source_that_has_changed_since_it_was_loaded_is_not_believed():
    file = "<changed source>"
    lines = ["# a new line\n", "def tool():\n", "    abs(1)\n", "    abs(2)\n"]
    linecache.cache[file] = (1, None, lines, file)
    names: dict[str, Any] = {"__name__": "tools"}
    exec(compile("".join(lines[1:]), file, "exec"), names)
    frames = []

    def trace(frame, event, arg):
        if frame.f_code is names["tool"].__code__:
            frames.append(frame)

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        names["tool"]()
    finally:
        sys.settrace(old)
    assert positions.safe_positions(frames[0]) == (frozenset(), frozenset())


# What was cut


def test_what_was_cut_is_not_used_by_the_same_line_nor_by_the_next():
    found = found_in(
        """
        def tool():
            data = abs(1)
            abs(data)
        """,
        cut=True,
    )
    assert {"start of tool", "round"} <= found


def test_a_cut_passes_over_clean_up_code_and_the_end_of_a_lock():
    found = found_in(
        """
        lock = threading.Lock()
        def tool():
            lock.acquire()
            try:
                1 / 0
            finally:
                abs(1)
                lock.release()
        """,
        cut=True,
    )
    assert "after lock.acquire()" not in found
    assert "after abs(1)" not in found
