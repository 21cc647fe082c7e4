"""Interrupting a function in its thread: only in its own file, at most once, never in what the thread does next."""

import functools
import io
import itertools
import logging
import operator
import os
import queue
import random
import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict, deque
from functools import partial
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import pytest

from safepoint.errors import UsageError
from safepoint.run import interrupt
from safepoint.run.interrupt import AbortInterrupt, InterruptibleCall
from tests.abort.programs import printed, wait_until
from tests.conftest import counts

SECONDS = 20.0
LOOKS = 30
drifts = pytest.mark.skipif(interrupt.EXACT, reason="on this Python a call raises it where the thread was seen")


class Gate:
    """A place to wait at in C, so that the innermost Python frame is the one that waits."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()
        self.wait, self.open = partial(self.lock.acquire, True, SECONDS), self.lock.release


def stands(call, text):
    """Whether the thread waits at that place."""
    looks = []
    for _ in range(3):
        frame = sys._current_frames().get(call.thread_id)
        looks.append((frame and frame.f_lasti, call.where() or ""))
        threading.Event().wait(0.001)
    return text in looks[0][1] and len(set(looks)) == 1


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
        wait_until(lambda: stands(self.call, text))
        return self

    def refuses(self):
        """Whether it is not interrupted, however often it is tried."""
        return [self.call.interrupt() for _ in range(LOOKS)] == [False] * LOOKS


@pytest.fixture
def library(tmp_path):
    """A module that is not the tool's own file."""
    path = tmp_path / "library.py"
    path.write_text(
        textwrap.dedent('''
        import json, logging, threading

        def wait(gate):
            gate.wait()
            return "waited"

        def parse(gate):
            json.loads('{"a": 1}', object_hook=lambda found: gate.wait())

        def under_lock(callback):
            with lock:
                callback()

        class Handler(logging.Handler):
            gate = None
            def emit(self, record):
                self.gate.wait()

        class Block:
            """What `with` calls is Python code."""
            def __init__(self):
                self.lock = threading.Lock()
            def __enter__(self):
                self.lock.acquire()
            def __exit__(self, *_):
                self.lock.release()

        lock = threading.Lock()
        ''')
    )
    loader = SourceFileLoader("library", str(path))
    module = ModuleType("library")
    module.__file__ = str(path)
    loader.exec_module(module)
    return module


# What the function sees


def test_a_naive_loop_ends_and_its_finally_blocks_run():
    effects = []

    def tool():
        try:
            while True:
                time.sleep(0.01)  # real time: this is what naive tools do
                effects.append("effect")
        finally:
            effects.append("finally")

    worker = Worker(tool)
    wait_until(lambda: effects)
    wait_until(worker.call.interrupt)
    assert worker.end() is AbortInterrupt
    assert effects.pop() == "finally"
    assert set(effects) == {"effect"}


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
    wait_until(worker.call.interrupt)
    wait_until(lambda: "begin" in steps)
    assert worker.refuses()
    gate.open()
    assert worker.end() is AbortInterrupt
    assert steps[-2:] == ["begin", "end"]


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
                        break
            except AbortInterrupt:
                hits.append("hit")
        return "done"

    worker = Worker(tool)
    wait_until(worker.call.interrupt)
    wait_until(lambda: hits)
    assert worker.refuses()
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


def test_in_a_c_call_it_arrives_when_that_returns():
    gate, steps = Gate(), []

    def tool():
        steps.append("before")
        gate.wait()
        steps.append("after")

    worker = Worker(tool).is_at("in tool")
    wait_until(worker.call.interrupt)
    assert worker.call.interrupted
    assert not worker.call.ended
    gate.open()
    assert worker.end() is AbortInterrupt
    assert steps == ["before"]


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


# Where it is sent


def own_generator(gate):
    return list(gate.wait() for _ in range(1))  # noqa: C400


def own_comprehension(gate):
    return [gate.wait() for _ in range(1)]


def own_nested(gate):
    def nested():
        return gate.wait()

    return nested()


def own_class(gate):
    class Body:
        value = gate.wait()

    return Body


def own_method(gate):
    class Tool:
        def wait(self):
            gate.wait()

    Tool().wait()


def own_callback(gate):
    return sorted([1, 2], key=lambda _: gate.wait())


def own_block(gate):
    with threading.Lock():
        gate.wait()


@pytest.mark.parametrize(
    "tool",
    [own_generator, own_comprehension, own_nested, own_class, own_method, own_callback, own_block],
    ids=lambda tool: tool.__name__,
)
def test_everything_in_the_file_is_the_functions_own(tool):
    gate = Gate()
    worker = Worker(partial(tool, gate))
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is AbortInterrupt


def log_slowly(library, gate):
    handler = library.Handler()
    handler.gate = gate
    logger = logging.Logger("slow")
    logger.addHandler(handler)
    logger.error("message")
    assert handler.lock.acquire(timeout=SECONDS)


def take_from_a_queue(library, gate):
    inbox: queue.Queue[None] = queue.Queue()

    def put():
        gate.wait()
        inbox.put(None)

    threading.Thread(target=put, daemon=True).start()
    inbox.get(timeout=SECONDS)
    assert inbox.mutex.acquire(timeout=SECONDS)


@pytest.mark.parametrize(
    "use",
    [
        lambda library, gate: library.wait(gate),
        lambda library, gate: library.parse(gate),
        log_slowly,
        take_from_a_queue,
    ],
    ids=["function", "called back from C", "logging", "queue"],
)
def test_in_a_library_it_is_never_sent(use, library):
    gate = Gate()

    def tool():
        use(library, gate)
        return "untouched"

    worker = Worker(tool).is_at("(in ")
    assert worker.refuses()
    gate.open()
    assert worker.end() == "untouched"
    assert not worker.call.interrupted


def test_back_from_the_library_it_is_sent(library):
    first, second = Gate(), Gate()

    def tool():
        library.wait(first)
        second.wait()

    worker = Worker(tool).is_at("(in ")
    assert worker.refuses()
    first.open()
    wait_until(worker.call.interrupt)
    second.open()
    assert worker.end() is AbortInterrupt


def test_a_callback_under_a_librarys_lock_gives_the_lock_back(library):
    gate = Gate()

    def callback():
        gate.wait()

    worker = Worker(lambda: library.under_lock(callback))
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is AbortInterrupt
    assert not library.lock.locked()


def test_what_is_written_in_c_is_never_interrupted():
    gate = Gate()
    worker = Worker(gate.wait)
    assert worker.refuses()
    assert worker.call.where() is None
    gate.open()
    assert worker.end() is True


def test_without_a_gil_the_rules_cannot_be_kept_and_it_is_never_sent(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(interrupt, "_gil", lambda: False)
    worker = Worker(partial(own_nested, gate)).is_at("in nested")
    assert worker.refuses()
    gate.open()
    assert worker.end() is True


# Whose file it is


class Tools:
    def method(self, gate):
        gate.wait()

    def __call__(self, gate):
        gate.wait()

    @staticmethod
    def static(gate):
        gate.wait()


class Made:
    def __init__(self, gate):
        gate.wait()


@functools.lru_cache
def cached(gate):
    gate.wait()


@pytest.mark.parametrize(
    "find",
    [
        lambda gate: lambda: own_nested(gate),
        lambda gate: partial(partial(own_nested), gate),
        lambda gate: partial(Tools().method, gate),
        lambda gate: partial(Tools(), gate),
        lambda gate: partial(Tools.static, gate),
        lambda gate: partial(Made, gate),
        lambda gate: partial(cached, gate),
        lambda gate: partial(functools.singledispatch(own_nested), gate),
    ],
    ids=["lambda", "partial", "method", "object", "static", "class", "decorated in C", "decorated"],
)
def test_the_file_is_found_beneath_what_a_function_is_wrapped_in(find):
    gate = Gate()
    worker = Worker(find(gate))
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is AbortInterrupt


def test_another_file_can_be_given(library):
    gate = Gate()
    worker = Worker(lambda: library.wait(gate), file=library.__file__).is_at("in wait")
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is AbortInterrupt


@pytest.mark.parametrize("fn", [os.getpid, partial(len, ()), int, type("Empty", (int,), {})])
def test_a_function_without_a_file_runs(fn):
    assert InterruptibleCall(fn).run() == fn()


def test_a_function_that_wraps_itself_has_no_file():
    def fn():
        return "value"

    fn.__wrapped__ = fn  # type: ignore[attr-defined]
    assert InterruptibleCall(fn).run() == "value"


# At most once, and nobody else


def test_before_the_beginning_and_after_the_end_it_is_not_sent():
    call = InterruptibleCall(lambda: "value")
    assert not call.interrupt()
    assert (call.thread_id, call.where()) == (None, None)
    assert call.run() == "value"
    assert not call.interrupt()
    assert call.where() is None
    assert not call.interrupted


def test_a_call_runs_once():
    call = InterruptibleCall(lambda: "value")
    call.run()
    with pytest.raises(UsageError, match="runs once"):
        call.run()


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something happen between the look at the thread and the sending."""

    def happens(event):
        monkeypatch.setattr(InterruptibleCall, "_slips", lambda *_: event())

    return happens


def test_a_thread_that_has_entered_a_library_since_the_look_is_left_alone(library, meanwhile):
    first, second = Gate(), Gate()

    def wait(gate):
        gate.wait()
        return "waited"

    assert wait.__code__.co_code == library.wait.__code__.co_code
    worker = Worker(lambda: (wait(first), library.wait(second))).is_at("in wait")

    def enters_the_library():
        first.open()
        worker.is_at("(in ")

    meanwhile(enters_the_library)
    assert not worker.call.interrupt()
    second.open()
    assert worker.end() == ("waited", "waited")


def test_a_thread_that_has_moved_on_in_its_own_file_since_the_look_is_left_alone(meanwhile):
    first, second = Gate(), Gate()

    def tool():
        first.wait()
        return second.wait()

    worker = Worker(tool).is_at("in tool")

    def moves_on():
        first.open()
        worker.is_at(f":{tool.__code__.co_firstlineno + 2} in tool")

    meanwhile(moves_on)
    assert not worker.call.interrupt()
    second.open()
    assert worker.end() is True


def test_a_call_that_has_ended_since_the_look_does_not_hand_it_to_the_next(meanwhile):
    gates = [Gate(), Gate()]

    def tool():
        for gate in gates:
            gate.wait()
            yield "value"

    # Both calls run in one thread, go on in the same frame, and wait at the same instruction.
    resume = tool().__next__
    calls = [InterruptibleCall(resume, file=__file__) for _ in gates]
    pool = Worker(lambda: [call.run() for call in calls])
    wait_until(lambda: stands(calls[0], "in tool"))

    def goes_on_to_the_next():
        gates[0].open()
        wait_until(lambda: stands(calls[1], "in tool"))

    meanwhile(goes_on_to_the_next)
    assert not calls[0].interrupt()
    gates[1].open()
    assert pool.end() == ["value", "value"]
    assert not calls[0].interrupted


def test_what_is_not_sent_to_the_function_is_sent_to_nobody():
    nobody, _ = interrupt._NOBODY
    assert nobody.value not in {0, *sys._current_frames()}
    assert interrupt._raise_in(*interrupt._NOBODY) == 0


def test_of_many_who_interrupt_at_once_one_does_it():
    gate = Gate()
    worker = Worker(partial(own_nested, gate)).is_at("in nested")
    start, answers = threading.Barrier(8), []

    def sender():
        start.wait(SECONDS)
        until = time.monotonic() + SECONDS
        while not worker.call.interrupted and time.monotonic() < until:
            answers.append(worker.call.interrupt())

    senders = [threading.Thread(target=sender) for _ in range(8)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join(SECONDS)
    assert answers.count(True) == 1
    gate.open()
    assert worker.end() is AbortInterrupt


def returns_late(wait):
    # A subscript waits in C and then returns without a check: what is pending arrives in the wrapper.
    waiting: defaultdict[None, bool] = defaultdict(wait)
    return waiting[None]


def raises_late(wait):
    divide = map(operator.truediv, iter(wait, "no end"), itertools.repeat(0))
    failing: defaultdict[None, bool] = defaultdict(partial(next, divide))
    return failing[None]


@pytest.mark.parametrize(("tool", "end"), [(returns_late, True), (raises_late, ZeroDivisionError)])
@pytest.mark.parametrize("wrap", [partial, lambda tool, wait: lambda: tool(wait)], ids=["partial", "function"])
def test_what_arrives_after_the_function_is_consumed_and_its_end_kept(tool, end, wrap):
    gate = Gate()
    worker = Worker(wrap(tool, gate.wait)).is_at("_late")
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is end
    assert worker.call.interrupted


def test_nothing_is_left_for_the_interpreter_to_check():
    # Python 3.11 does not enter a traced function while an exception is pending anywhere.
    program = """
        import sys, threading, time
        from safepoint.run.interrupt import AbortInterrupt, InterruptibleCall

        def tool():
            try:
                while True:
                    time.sleep(0.001)
            except AbortInterrupt:
                pass

        call = InterruptibleCall(tool)
        thread = threading.Thread(target=call.run)
        thread.start()
        while not call.interrupt():
            time.sleep(0.001)
        thread.join()
        sys.settrace(lambda *event: None)
        print((lambda: "entered")())
    """
    assert printed(program) == "entered"


let_go = partial(time.sleep, 0)  # real time: none, it only lets other threads run


ENDS = {"returns": 1, "returns late": None, "raises": ZeroDivisionError, "raises late": TypeError, "swallows": 1}


class Races:
    """One thread makes many calls in a row, another one interrupts whatever runs."""

    def __init__(self, number):
        self.number = number
        self.random = random.Random(number)
        self.now = InterruptibleCall(let_go)
        self.sent: Counter[InterruptibleCall[Any]] = Counter()
        self.hits: Counter[int] = Counter()
        self.calls, self.ends, self.errors = [], [], []

    def tool(self, number, how, turns):
        for turn in range(turns):
            if turn % 8 == 0:
                let_go()
        if how == "returns late":
            return returns_late(let_go)
        if how == "raises late":
            return raises_late(let_go)
        try:
            let_go()
            return 1 // (how != "raises")
        except AbortInterrupt:
            self.hits[number] += 1
            if how == "swallows":
                return 1
            raise

    def pool(self):
        for number in range(self.number):
            how = self.random.choice(list(ENDS))
            self.now = InterruptibleCall(partial(self.tool, number, how, self.random.randrange(32)))
            self.calls.append((self.now, ENDS[how]))
            try:
                self.ends.append(self.now.run())
            except (ZeroDivisionError, TypeError, AbortInterrupt) as error:
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
            self.sent[call] += call.interrupt()
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
    for number, ((call, own_end), end) in enumerate(zip(races.calls, races.ends, strict=True)):
        assert races.sent[call] == call.interrupted
        assert races.hits[number] <= call.interrupted
        if end is AbortInterrupt or races.hits[number]:
            assert call.interrupted
            fates["in the function"] += 1
        else:
            assert end is own_end
            fates["in the wrapper" if call.interrupted else "not at all"] += 1
    assert len(fates) == 3, f"these races have not been all there are: {fates}"


# Locks


def chatter(logger, inbox, locks):
    """Uses locks of libraries all the time."""

    def say(number):
        logger.warning("%s of %s", number, sum(n * n for n in range(number % 50)))

    for number in itertools.count():
        say(number)
        inbox.put(number)
        locks.append(threading.Lock())
        with threading.Condition(locks[0]):
            say(inbox.get())


def test_no_lock_is_left_held(restless):
    logger, handler = logging.Logger("chatter"), logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    for _ in range(counts(200, 1_000)):
        inbox, locks = queue.Queue[int](), deque[threading.Lock](maxlen=10)
        worker = Worker(partial(chatter, logger, inbox, locks))
        until = time.monotonic() + SECONDS
        while not worker.call.interrupt():
            assert time.monotonic() < until
            let_go()
        assert worker.end() is AbortInterrupt
        for lock in (logging._lock, handler.lock, inbox.mutex, *locks):  # type: ignore[attr-defined]
            assert lock.acquire(timeout=1.0)
            lock.release()


def busy_in_a_block(block):
    while True:
        with block:
            time.time()


def busy_loop_in_a_block(block):
    with block:
        for number in itertools.count():
            number += 1


def busy_calls_in_a_block(block):
    def step(number):
        return number + 1

    number = 0
    with block:
        while True:
            number = step(number)


def busy_recursion(block):
    def fibonacci(number):
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    with block:
        fibonacci(100)


def sleepy_in_a_block(block):
    while True:
        with block:
            time.sleep(0.01)  # real time: this is what naive tools do


@pytest.mark.parametrize(
    "tool",
    [
        busy_in_a_block,
        busy_loop_in_a_block,
        busy_calls_in_a_block,
        busy_recursion,
        sleepy_in_a_block,
    ],
    ids=lambda tool: tool.__name__,
)
def test_a_block_is_left_by_its_exit(tool, library):
    for _ in range(counts(5, 50)):
        block = library.Block()
        worker = Worker(partial(tool, block))
        wait_until(worker.call.interrupt)
        assert worker.end() is AbortInterrupt
        assert not block.lock.locked()


def loop_beside_its_block(effects):
    # The jump of the loop is outside the block: of the first up to Python 3.12, of the second from 3.13 on.
    number = 0
    try:
        while True:
            number += 1
            if interrupt.EXACT:
                continue
            while number > 0:
                number += 1
    finally:
        effects.append("finally")


def test_a_jump_outside_its_block_is_a_last_resort(monkeypatch):
    monkeypatch.setattr(interrupt, "SLIPPERY_SECONDS", 0.2)
    worker = Worker(partial(loop_beside_its_block, []))
    wait_until(lambda: worker.call.interrupt() or worker.call._slippery)
    assert worker.refuses()
    wait_until(worker.call.interrupt)
    assert worker.end() is AbortInterrupt


def read_in_a_block(block, file):
    with block:
        for _ in file:
            pass
    return "read"


def test_where_it_would_slip_out_of_its_block_it_is_not_sent_at_first(library):
    block = library.Block()
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as file, open(writing, "wb", buffering=0) as pen:
        worker = Worker(partial(read_in_a_block, block, file)).is_at("in read_in_a_block")
        wait_until(block.lock.locked)
        assert worker.refuses()
        pen.close()
        assert worker.end() == "read"
    assert not block.lock.locked()


def test_where_it_might_slip_it_is_sent_in_the_end(library, monkeypatch):
    monkeypatch.setattr(interrupt, "SLIPPERY_SECONDS", 0.05)
    block = library.Block()
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as file, open(writing, "wb", buffering=0) as pen:
        worker = Worker(partial(read_in_a_block, block, file)).is_at("in read_in_a_block")
        wait_until(worker.call.interrupt)
        pen.write(b"line\n")
        assert worker.end() is AbortInterrupt
    assert not block.lock.locked()


@drifts
def test_a_call_at_the_end_of_a_block_is_interrupted_once_it_is_seen_to_wait(library, monkeypatch):
    gate, block = Gate(), library.Block()

    def tool():
        with block:
            gate.wait()

    worker = Worker(tool).is_at("in tool")
    wait_until(block.lock.locked)
    assert worker.refuses()
    monkeypatch.setattr(interrupt, "SLIPPERY_SECONDS", SECONDS)
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is AbortInterrupt
    assert not block.lock.locked()


@drifts
def test_a_system_without_processor_clocks_of_threads_takes_longer(monkeypatch):
    monkeypatch.setattr(interrupt, "_processor_clock", lambda thread_id: -1)
    monkeypatch.setattr(interrupt, "WAITING_SECONDS", 0.0)
    monkeypatch.setattr(interrupt, "SLIPPERY_SECONDS", 0.2)
    gate = Gate()
    worker = Worker(partial(own_block, gate)).is_at("in own_block")
    assert worker.refuses()
    wait_until(worker.call.interrupt)
    gate.open()
    assert worker.end() is AbortInterrupt


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
