"""Interrupting a function in its thread: where nothing is held, at most once, never in what the thread does next."""

import asyncio
import itertools
import logging
import os
import queue
import random
import sys
import textwrap
import threading
import time
from collections import Counter
from functools import partial
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import pytest

from safepoint.errors import UsageError
from safepoint.run import AbortInterrupt
from safepoint.run.interrupt import InterruptibleCall
from tests.conftest import counts
from tests.kit.waiting import wait_until

SECONDS = 20.0
let_go = partial(time.sleep, 0)  # real time: none, it only lets other threads run
nap = partial(time.sleep, 0.01)  # real time: this is what naive tools do


class Gate:
    """A place to wait at in C, so that the innermost Python frame is the one that waits."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()
        self.wait, self.open = partial(self.lock.acquire, True, SECONDS), self.lock.release


class Worker:
    """A thread that makes one call, and keeps what came of it."""

    def __init__(self, fn, **options):
        self.call = InterruptibleCall(fn, **options)
        self.value = self.error = None
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            self.value = self.call.run()
        except BaseException as error:
            self.error = error

    def end(self):
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        assert self.call.ended
        return self.value if self.error is None else type(self.error)

    def is_at(self, text):
        """Wait until the thread waits at that place."""
        wait_until(lambda: text in (self.call.where() or ""))
        wait_until(lambda: all(text in (self.call.where() or "") for _ in range(20)))
        return self


@pytest.fixture
def library(tmp_path):
    """A module that is not the tool's own code."""
    path = tmp_path / "site-packages" / "library.py"
    path.parent.mkdir()
    path.write_text(
        textwrap.dedent("""
        import threading

        lock = threading.Lock()

        def wait(gate):
            gate.wait()
            return "waited"

        def under_lock(callback):
            with lock:
                callback()

        def loop(steps, over):
            while not over:
                steps[0] += 1
            return "left alone"
        """)
    )
    module = ModuleType("library")
    module.__file__ = str(path)
    SourceFileLoader("library", str(path)).exec_module(module)
    return module


# What the function sees


def test_a_naive_loop_ends_and_its_finally_blocks_run():
    effects = []

    def tool():
        try:
            while True:
                nap()
                effects.append("effect")
        finally:
            effects.append("finally")

    worker = Worker(tool)
    wait_until(lambda: effects)
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt
    assert effects.pop() == "finally"
    assert set(effects) == {"effect"}


def test_in_a_c_call_it_arrives_when_that_returns_and_before_the_next_effect():
    gate, steps = Gate(), []

    def tool():
        steps.append("before")
        gate.wait()
        steps.append("after")

    worker = Worker(tool).is_at("in tool")
    assert worker.call.interrupt()
    assert not worker.call.interrupted
    assert not worker.call.ended
    gate.open()
    assert worker.end() is AbortInterrupt
    assert worker.call.interrupted
    assert steps == ["before"]


def test_a_finally_block_runs_to_its_end_and_is_not_hit_again():
    gate, steps = Gate(), []

    def tool():
        try:
            while True:
                steps.append("work")
        finally:
            steps.append("begin")
            gate.wait()
            steps.append("end")

    worker = Worker(tool)
    wait_until(lambda: steps)
    assert worker.call.interrupt()
    wait_until(lambda: "begin" in steps)
    assert worker.call.interrupt()
    gate.open()
    assert worker.end() is AbortInterrupt
    assert steps[-2:] == ["begin", "end"]


def test_a_function_that_is_cleaning_up_already_is_left_alone():
    gate, steps = Gate(), []

    def tidy():
        gate.wait()
        steps.append("tidy")
        steps.append("up")

    def tool():
        try:
            steps.append("work")
        finally:
            tidy()
            steps.append("end")
        return "done"

    worker = Worker(tool).is_at("in tidy")
    assert worker.call.interrupt()
    gate.open()
    assert worker.end() == "done"
    assert steps == ["work", "tidy", "up", "end"]


def test_a_function_may_catch_it_and_return_a_value():
    def tool():
        try:
            while True:
                pass
        except AbortInterrupt:
            return "what there was"

    worker = Worker(tool)
    wait_until(worker.call.interrupt)
    assert worker.end() == "what there was"
    assert worker.call.interrupted


def test_a_function_that_swallows_it_goes_on_and_is_not_hit_again():
    gate, hits = Gate(), []

    def tool():
        for _ in range(2):
            try:
                while True:
                    if hits:
                        gate.wait()
                        nap()
                        break
            except AbortInterrupt:
                hits.append("hit")
        return "done"

    worker = Worker(tool)
    wait_until(worker.call.interrupt)
    wait_until(lambda: hits)
    assert worker.call.interrupt()
    gate.open()
    assert worker.end() == "done"
    assert hits == ["hit"]


def test_no_except_exception_catches_it():
    def tool():
        while True:
            try:
                for _ in range(100):
                    pass
            except Exception:
                return "caught"

    worker = Worker(tool)
    wait_until(worker.call.interrupt)
    assert worker.end() is AbortInterrupt


def test_what_is_not_interrupted_returns_and_raises_as_ever():
    error = ValueError("wrong")

    def fail():
        raise error

    call = InterruptibleCall(fail)
    with pytest.raises(ValueError, match="wrong") as caught:
        call.run()
    assert caught.value is error
    assert (call.ended, call.interrupted, call.thread_id) == (True, False, threading.get_ident())
    assert InterruptibleCall(lambda: None).run() is None
    with pytest.raises(StopIteration):
        InterruptibleCall(partial(next, iter(()))).run()


# Naive tools, all of which must end


def spin():
    while True: pass  # fmt: skip  # noqa: E701


def compute():
    number = 0
    for turn in itertools.count():
        number += turn


def sleep_in_a_loop():
    while True:
        nap()


def assign_in_a_loop():
    while True:
        value = nap()  # noqa: F841


def check_in_a_loop():
    begun = time.monotonic()
    while time.monotonic() > begun - 1:
        value = nap()  # noqa: F841


def comprehend():
    return [nap() for _ in itertools.count()]


def generate():
    return sum(number for number in itertools.count())


def deep_recursion():
    def down(left):
        nap()
        return down(left - 1) if left else 0

    while True:
        down(900)


def wide_recursion():
    def fibonacci(number):
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    return fibonacci(100)


def log_in_a_loop():
    logger = logging.Logger("naive")
    logger.addHandler(logging.NullHandler())
    while True:
        logger.warning("hello")


def put_in_a_loop():
    inbox = queue.Queue(1)
    while True:
        inbox.put(1)
        value = inbox.get()  # noqa: F841


def retry_in_a_loop():
    while True:
        try:
            os.stat("/missing")
        except OSError:
            nap()


def loop_beside_its_block():
    number = 0
    try:
        while True:
            number += 1
            if number:
                continue
            while number > 0:
                number += 1
    finally:
        nap()


def asynchronous():
    async def main():
        while True:
            await asyncio.sleep(0.01)  # real time: this is what naive tools do

    asyncio.run(main())


class Tool:
    def __call__(self):
        while True:
            self.step()

    def step(self):
        nap()


NAIVE = [
    spin,
    compute,
    sleep_in_a_loop,
    assign_in_a_loop,
    check_in_a_loop,
    comprehend,
    generate,
    deep_recursion,
    wide_recursion,
    log_in_a_loop,
    put_in_a_loop,
    retry_in_a_loop,
    loop_beside_its_block,
    asynchronous,
    Tool(),
]


@pytest.mark.parametrize("tool", NAIVE, ids=lambda tool: getattr(tool, "__name__", "object"))
def test_naive_tools_are_stopped(tool):
    for _ in range(counts(3, 30)):
        worker = Worker(tool)
        wait_until(lambda: worker.call.thread_id is not None)  # noqa: B023
        nap()
        wait_until(worker.call.interrupt)
        assert worker.end() is AbortInterrupt


# Whose code it is


def test_in_a_library_it_waits_until_the_library_returns(library):
    gate, steps = Gate(), []

    def tool():
        value = library.wait(gate)
        steps.append(value)
        steps.append("after")
        return "untouched"

    worker = Worker(tool).is_at("(in ")
    assert worker.call.interrupt()
    gate.open()
    assert worker.end() is AbortInterrupt
    assert steps == ["waited"]  # what the library had given was handed on first


def test_a_loop_in_a_library_is_left_alone_unless_the_package_is_named(library):
    steps, over = [0], []

    def tool():
        return library.loop(steps, over)

    worker = Worker(tool).is_at("(in ")
    assert worker.call.interrupt()
    seen = steps[0]
    wait_until(lambda: steps[0] > seen + 1000)
    over.append("over")
    assert worker.end() == "left alone"
    over.clear()
    worker = Worker(tool, interruptible=("library",)).is_at("in loop")
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt


def test_a_function_of_the_same_project_in_another_file_is_its_own(tmp_path):
    path = tmp_path / "beside.py"
    path.write_text("import time\n\ndef work():\n    while True:\n        time.sleep(0.01)\n")
    beside = ModuleType("beside")
    SourceFileLoader("beside", str(path)).exec_module(beside)

    def tool():
        return beside.work()

    worker = Worker(tool).is_at("in work")
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt


def test_a_callback_under_a_librarys_lock_gives_the_lock_back(library):
    def callback():
        while True:
            nap()

    worker = Worker(lambda: library.under_lock(callback)).is_at("in callback")
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt
    assert not library.lock.locked()


def test_what_is_written_in_c_is_never_interrupted():
    gate = Gate()
    worker = Worker(gate.wait)
    wait_until(lambda: worker.call.thread_id is not None)
    assert worker.call.interrupt()
    assert worker.call.where() is None
    gate.open()
    assert worker.end() is True
    assert not worker.call.interrupted


# What was cut


def test_what_was_cut_is_not_used():
    gate, written = Gate(), []

    def tool():
        data = gate.wait()
        written.append(data)

    worker = Worker(tool).is_at("in tool")
    assert worker.call.interrupt(cut=True)
    gate.open()
    assert worker.end() is AbortInterrupt
    assert written == []


def test_without_the_cut_what_was_received_is_handed_on():
    gate = Gate()
    written: list[object] = []

    def tool():
        data = gate.wait()
        written.append(data)
        written.append("next")

    worker = Worker(tool).is_at("in tool")
    assert worker.call.interrupt()
    gate.open()
    assert worker.end() is AbortInterrupt
    assert written == [True]  # and no more than that


def test_a_cut_may_come_after_an_ordinary_interrupt():
    gate, written = Gate(), []

    def tool():
        written.append(gate.wait())

    worker = Worker(tool).is_at("in tool")
    assert worker.call.interrupt()
    assert worker.call.interrupt(cut=True)
    gate.open()
    assert worker.end() is AbortInterrupt
    assert written == []


class Uses:
    """Tools that use in many ways what they have waited for."""

    def __init__(self, wait):
        self.wait = wait
        self.written: list[object] = []

    def write(self, data):
        return self.written.append(data)

    def fetch(self):
        return self.wait()

    def in_except(self):
        try:
            raise KeyError("missing")
        except KeyError:
            data = self.wait()
            self.write(data)

    def in_except_through_a_helper(self):
        try:
            raise KeyError("missing")
        except KeyError:
            data = self.fetch()
            self.write(data)

    def next_line_in_except(self):
        try:
            raise KeyError("missing")
        except KeyError:
            self.wait()
            self.written.append("uploaded")

    def in_if(self):
        if self.write(self.wait()):
            pass

    def in_for(self):
        for _ in [self.write(self.wait())]:
            pass

    def in_while(self):
        while self.write(self.wait()):
            pass

    def in_match(self):
        match self.write(self.wait()):
            case 1:
                pass
            case _:
                pass

    def in_generator(self):
        def parts():
            yield self.wait()

        return list(map(self.written.append, parts()))


@pytest.mark.parametrize("name", [name for name in vars(Uses) if name.startswith(("in_", "next_"))])
def test_what_was_cut_is_not_used_wherever_the_tool_waits_for_it(name):
    gate = Gate()
    uses = Uses(gate.wait)
    worker = Worker(getattr(uses, name))
    wait_until(lambda: (worker.call.where() or "").endswith(("in " + name, "in fetch", "in parts")))
    worker.is_at(" in ")
    assert worker.call.interrupt(cut=True)
    gate.open()
    assert worker.end() is AbortInterrupt
    assert uses.written == []


@pytest.mark.parametrize(
    ("clean_up", "expected"),
    [("finally", True), ("except BaseException", True), ("except", True), ("except KeyError", False), ("else", False)],
)
def test_another_thread_can_ask_whether_it_is_cleaning_up(tmp_path, clean_up, expected):
    gate = Gate()
    path = tmp_path / "tool.py"
    begin = "pass" if clean_up in ("finally", "else") else "raise KeyError"
    handler = "    except ValueError: pass\n" if clean_up == "else" else ""
    path.write_text(f"def tool(wait):\n    try: {begin}\n{handler}    {clean_up}:\n        wait()\n")
    module = ModuleType("tool")
    SourceFileLoader("tool", str(path)).exec_module(module)
    worker = Worker(partial(module.tool, gate.wait)).is_at("in tool")
    assert worker.call.cleaning_up() is expected
    gate.open()
    worker.end()
    assert not worker.call.cleaning_up()


def test_a_cut_in_clean_up_code_lets_it_end():
    gate = Gate()
    steps: list[object] = []

    def tool():
        try:
            steps.append("work")
        finally:
            steps.append(gate.wait())
            steps.append("end")
        steps.append("after")

    worker = Worker(tool).is_at("in tool")
    assert worker.call.interrupt(cut=True)
    gate.open()
    assert worker.end() is AbortInterrupt
    assert steps == ["work", True, "end"]


# Raised by somebody who knows that the function must not go on


def test_what_is_owed_is_raised_at_once_and_only_once():
    gate, calls = Gate(), []

    def tool():
        value: object = gate.wait()
        try:
            value = calls[0].raise_if_requested()
        except AbortInterrupt:
            value = "raised"
        return value, calls[0].raise_if_requested()

    worker = Worker(tool).is_at("in tool")
    calls.append(worker.call)
    assert worker.call.interrupt()
    gate.open()
    assert worker.end() == ("raised", None)
    assert worker.call.interrupted


def test_nothing_is_owed_before_it_is_asked_for_nor_in_clean_up_nor_elsewhere():
    gate, calls = Gate(), []

    def tool():
        try:
            calls[0].raise_if_requested()
        finally:
            gate.wait()
            calls[0].raise_if_requested()
        return "done"

    calls.append(InterruptibleCall(tool))
    worker = Worker(partial(InterruptibleCall.run, calls[0]))
    wait_until(lambda: "in tool" in (calls[0].where() or ""))
    assert calls[0].interrupt()
    calls[0].raise_if_requested()  # this is not its thread
    gate.open()
    assert worker.end() == "done"
    calls[0].raise_if_requested()  # it has ended
    assert not calls[0].interrupted


# At most once, and nobody else


def test_before_the_beginning_and_after_the_end_it_is_not_raised():
    call = InterruptibleCall(lambda: "value")
    assert not call.interrupt()
    assert (call.thread_id, call.where()) == (None, None)
    assert call.run() == "value"
    assert call.interrupt()
    assert call.where() is None
    assert not call.interrupted


def test_a_call_runs_once():
    call = InterruptibleCall(lambda: "value")
    call.run()
    with pytest.raises(UsageError, match="runs once"):
        call.run()


def test_the_next_call_in_the_same_thread_is_not_interrupted():
    gates = [Gate(), Gate()]

    def tool(gate):
        gate.wait()
        return "value"

    calls = [InterruptibleCall(partial(tool, gate)) for gate in gates]
    pool = Worker(lambda: [call.run() for call in calls])
    wait_until(lambda: "in tool" in (calls[0].where() or ""))
    assert calls[0].interrupt()
    gates[0].open()  # the only statement left is a return: it ends without being interrupted
    wait_until(lambda: "in tool" in (calls[1].where() or ""))
    gates[1].open()
    assert pool.end() == ["value", "value"]
    assert not calls[0].interrupted


def test_of_many_who_interrupt_at_once_it_is_raised_once():
    hits, over = [], threading.Event()

    def tool():
        while not over.is_set():
            try:
                while not over.is_set():
                    nap()
            except AbortInterrupt:
                hits.append("hit")

    worker = Worker(tool).is_at("in tool")
    start = threading.Barrier(8)

    def sender():
        start.wait(SECONDS)
        for _ in range(100):
            worker.call.interrupt()

    senders = [threading.Thread(target=sender) for _ in range(8)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join(SECONDS)
    wait_until(lambda: hits)
    over.set()
    assert worker.end() is None
    assert hits == ["hit"]


def test_a_tool_that_runs_another_one_in_its_thread_is_interrupted_too():
    def inner():
        while True:
            nap()

    worker = Worker(lambda: InterruptibleCall(inner).run()).is_at("in inner")
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt


def ends(how):
    if how == "raises":
        raise ZeroDivisionError
    return 1


class Races:
    """One thread makes many calls in a row, another one interrupts whatever runs."""

    def __init__(self, number):
        self.number = number
        self.random = random.Random(number)
        self.now = InterruptibleCall(let_go)
        self.hits: Counter[int] = Counter()
        self.calls: list[InterruptibleCall[Any]] = []
        self.ends: list[Any] = []
        self.errors: list[BaseException] = []

    def tool(self, number, how, turns):
        try:
            for turn in range(turns):
                if turn % 8 == 0:
                    let_go()
            return ends(how)
        except AbortInterrupt:
            self.hits[number] += 1
            if how == "swallows":
                return 1
            raise

    def pool(self):
        for number in range(self.number):
            how = self.random.choice(["returns", "raises", "swallows"])
            self.now = InterruptibleCall(partial(self.tool, number, how, self.random.randrange(32)))
            self.calls.append(self.now)
            try:
                self.ends.append(self.now.run())
            except (ZeroDivisionError, AbortInterrupt) as error:
                self.ends.append(type(error))
            let_go()

    def work(self):
        try:
            self.pool()
        except BaseException as error:
            self.errors.append(error)

    def run(self):
        thread = threading.Thread(target=self.work, daemon=True)
        thread.start()
        until = time.monotonic() + 10 * SECONDS
        while thread.is_alive() and time.monotonic() < until:
            call = self.now
            for _ in range(self.random.randrange(4)):
                let_go()
            call.interrupt()
        thread.join(SECONDS)


@pytest.fixture
def restless():
    """Threads take turns more often than they usually do."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


def test_an_interrupt_that_races_with_the_end_hits_its_own_call_once_or_nothing(restless):
    races = Races(counts(3_000, 10_000))
    races.run()
    assert races.errors == []
    assert len(races.ends) == races.number
    fates: Counter[str] = Counter()
    for number, (call, end) in enumerate(zip(races.calls, races.ends, strict=True)):
        assert races.hits[number] == call.interrupted
        assert (end is AbortInterrupt) <= call.interrupted
        fates["interrupted" if call.interrupted else "asked in vain" if call.requested else "not at all"] += 1
    assert len(fates) == 3, f"these races have not been all there are: {fates}"


# Where it is


def test_where_names_the_line_and_the_function():
    gate = Gate()

    def tool():
        gate.wait()

    line = tool.__code__.co_firstlineno + 1
    worker = Worker(tool).is_at("in tool")
    assert worker.call.where() == f"{__file__}:{line} in tool"
    gate.open()
    worker.end()
    assert worker.call.where() is None


def test_where_also_names_the_library_it_has_called(library):
    gate = Gate()

    def tool():
        library.wait(gate)

    line = tool.__code__.co_firstlineno + 1
    inner = library.wait.__code__.co_firstlineno + 1
    worker = Worker(tool).is_at("(in ")
    wait_until(lambda: worker.call.where() == f"{__file__}:{line} in tool (in {library.__file__}:{inner})")
    gate.open()
    worker.end()
