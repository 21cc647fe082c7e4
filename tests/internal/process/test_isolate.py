"""Owns the tests that look inside, beside those of `tests/internal/process/test_isolated_calls.py`.

Calls in processes of their own: what goes in, what comes out, and that nothing of them is left.
"""

import asyncio
import functools
import gc
import importlib
import inspect
import math
import os
import random
import signal as os_signals
import time

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, AbortTimeout
from safepoint.errors import RemoteError, UsageError
from safepoint.process import group as process_group
from safepoint.process.import_target import ImportTarget
from safepoint.process.isolate import IsolatedEnd, IsolationOptions, call_isolated
from safepoint.run import ChildDied
from tests.conftest import counts
from tests.internal.process import isolated_functions as functions
from tests.internal.process.isolated_functions import Counter, Folder, in_task, run_isolated, running
from tests.internal.process.test_isolated_calls import LONG, NEVER, aborted, both_loops
from tests.kit.programs import alive


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path) as folder:
        yield folder


HERE = "tests.internal.process.isolated_functions"


def not_started(pid: int) -> None:
    pytest.fail(f"process {pid} was started")


@both_loops
async def test_a_function_gets_its_arguments_and_gives_its_value():
    assert await run_isolated(functions.add, 1, b=2, signal=NEVER) == 3


@both_loops
async def test_a_coroutine_function_is_awaited_in_the_child():
    assert await run_isolated(functions.double, 4, signal=NEVER) == 8


async def test_arguments_may_have_the_names_of_the_options():
    given = {"fn": 1, "signal": 2, "kill": 3, "grace": 4, "linger": 5, "on_start": 6}
    assert await call_isolated(functions.keywords, [], given, IsolationOptions(signal=NEVER)) == given


async def test_five_megabytes_go_both_ways():
    given = os.urandom(5_000_000)
    assert await run_isolated(functions.same, given, signal=NEVER) == given


async def test_what_two_arguments_share_is_still_shared():
    shared: list[int] = []
    first, second = await run_isolated(functions.same, (shared, shared), signal=NEVER)
    assert first is second


async def test_a_function_of_the_standard_library_may_be_written_in_c():
    assert await run_isolated(math.sqrt, 9.0, signal=NEVER) == 3.0


@pytest.mark.parametrize(
    ("fn", "args", "value"),
    [
        (functions.bare_tool, ["a"], "a"),
        (functions.bare_tool.__wrapped__, ["a"], "a"),
        (functions.loud_tool, ["a"], "a!"),
        (inspect.unwrap(functions.tool_inside), ["a"], "a"),
        (functions.exclaiming(functions.same), ["a"], None),
        (Counter(5).plus, [2], 7),
        (Counter.stepped, [], 1),
        (functions.BigCounter.stepped, [], 10),
        (Counter.fixed, [], "fixed"),
        (Counter.plus, [Counter(1), 2], 3),
    ],
    ids=["tool", "in tool", "wrapped in tool", "two deep", "elsewhere", "method", "class", "subclass", "static", "raw"],
)
async def test_a_function_is_found_in_its_wrappers_and_a_method_by_its_owner(fn, args, value):
    if value is None:
        with pytest.raises(UsageError, match=r"is <function same at .*>, which does not lead to it by `__wrapped__`"):
            await run_isolated(fn, *args, signal=NEVER)
    else:
        assert await run_isolated(fn, *args, signal=NEVER) == value


@both_loops
async def test_an_exception_comes_out_as_it_was_with_the_traceback_of_the_child():
    with pytest.raises(LookupError) as caught:
        await run_isolated(functions.fail, "LookupError", "missing", signal=NEVER)
    assert str(caught.value) == "missing"
    [note] = caught.value.__notes__
    assert f"which ran {HERE}:fail" in note
    assert "in fail\n    raise ERRORS[name](text)" in note


@pytest.mark.parametrize("name", ["Broken", "Locked", "StopIteration", "KeyboardInterrupt", "CancelledError"])
async def test_an_exception_that_cannot_travel_comes_out_by_its_name(name):
    with pytest.raises(RemoteError) as caught:
        await run_isolated(functions.fail, name, "missing", signal=NEVER)
    assert (caught.value.type_name, caught.value.message) == (name, "missing")
    assert "in fail\n" in caught.value.__notes__[0]


async def test_a_value_that_cannot_be_sent_is_named():
    with pytest.raises(
        UsageError, match=f"^{HERE}:give_lock returned a lock, which cannot be sent .*return plain data"
    ):
        await run_isolated(functions.give_lock, signal=NEVER)


async def test_a_value_that_cannot_be_read_is_named():
    with pytest.raises(UsageError, match=f"^the value of {HERE}:give_one_way cannot be read .*on arrival.*plain data"):
        await run_isolated(functions.give_one_way, signal=NEVER)


@pytest.mark.parametrize(
    ("args", "kwargs", "which"),
    [
        ([1, gc], {}, "argument b"),
        ([gc], {"b": 2}, "argument a"),
        ([1], {"b": gc}, "argument b"),
        ([gc, gc], {}, "arguments a, b"),
        ([1, 2, gc], {}, "argument number 2"),
    ],
    ids=["second", "first", "by name", "both", "one too many"],
)
async def test_an_argument_that_cannot_be_sent_is_named_and_nothing_is_started(args, kwargs, which):
    with pytest.raises(UsageError, match=f"^{which} of {HERE}:add cannot be sent .*module.*pass plain data$"):
        await run_isolated(functions.add, *args, signal=NEVER, on_start=not_started, **kwargs)


async def test_a_module_that_the_child_cannot_import_is_reported_as_what_it_is(tmp_path, monkeypatch):
    path = tmp_path / "passing_module.py"
    path.write_text("def fn(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("passing_module")
    assert await run_isolated(module.fn, signal=NEVER) == 1
    path.write_text("def fn(: return 1\n")
    with pytest.raises(SyntaxError):
        await run_isolated(module.fn, signal=NEVER)
    path.unlink()
    with pytest.raises(ModuleNotFoundError, match="passing_module"):
        await run_isolated(module.fn, signal=NEVER)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda: None, "a lambda has no name to import it by. Use `def`"),
        (functions.opaque(functions.same), "a lambda has no name"),
        (functions.exclaiming, None),
        (functools.partial(functions.same, 1), "it is no function with a name of its own. Use a function"),
        ("abc".upper, "it is no function with a name of its own"),
        (functions.Unsendable().method, "it is a method of a Unsendable, which cannot be pickled (TypeError"),
    ],
    ids=["lambda", "hidden", "fine", "partial", "method of a value", "unpicklable owner"],
)
def test_a_function_that_no_child_could_import_is_refused(fn, words):
    if words is None:
        assert ImportTarget.of(fn).name == f"{HERE}:{fn.__qualname__}"
    else:
        with pytest.raises(UsageError) as caught:
            ImportTarget.of(fn)
        assert words in str(caught.value)
        assert "cannot run in a child process" in str(caught.value)


def test_a_local_function_is_refused_with_its_place():
    def local():
        pass

    with pytest.raises(UsageError, match=r"<locals>.local \(.*test_isolate.py:\d+\) cannot run .* inside a function"):
        ImportTarget.of(local)


async def test_a_function_whose_name_stands_for_another_is_refused_by_the_call():
    with pytest.raises(UsageError, match=r"replaced .* is <function replaced at .*functools.wraps"):
        await run_isolated(functions.first_replaced, signal=NEVER, on_start=not_started)


def test_a_function_that_left_its_module_is_refused(monkeypatch):
    add = functions.add
    monkeypatch.delattr(functions, "add")
    with pytest.raises(UsageError, match=f"{HERE}:add, by which a process would import it, does not exist"):
        ImportTarget.of(add)
    monkeypatch.setattr(functions, "add", 5, raising=False)
    with pytest.raises(UsageError, match=f"{HERE}:add, by which a process would import it, is 5"):
        ImportTarget.of(add)


def test_an_object_that_claims_to_wrap_for_ever_is_refused():
    class Endless:
        @property
        def __wrapped__(self):
            return Endless()

        def __call__(self): ...

    with pytest.raises(UsageError, match="no function with a name"):
        ImportTarget.of(Endless())


@both_loops
async def test_an_abort_ends_the_process_and_says_how(folder):
    controller = AbortController()
    async with running(functions.hold, folder, signal=controller.signal, grace=LONG) as task:
        [pid] = await folder.ready()
        controller.abort("stop")
        error = await aborted(task)
    assert error.reason is controller.signal.reason
    assert error.partial == IsolatedEnd(pid, -os_signals.SIGTERM, ())
    assert not alive(pid)


@both_loops
async def test_a_tree_that_ignores_term_is_gone_after_the_grace(folder):
    controller = AbortController()
    async with running(functions.stubborn_tree, folder, signal=controller.signal, grace=0.2) as task:
        pids = await folder.ready(3)
        start = time.monotonic()
        controller.abort("stop")
        error = await aborted(task)
    assert time.monotonic() - start >= 0.2
    assert error.partial == IsolatedEnd(error.partial.pid, -os_signals.SIGKILL, ())
    assert error.partial.pid in pids
    assert folder.alive() == []
    assert process_group.members(error.partial.pid) == []


async def test_the_abort_that_a_function_raises_comes_back_as_ours(folder):
    controller = AbortController()
    async with running(functions.obey, folder, signal=controller.signal, kill=NEVER) as task:
        [pid] = await folder.ready()
        controller.abort(LookupError("why"))
        error = await aborted(task)
    assert error.reason is controller.signal.reason
    assert error.partial == IsolatedEnd(pid, 0, ())


@both_loops
async def test_at_its_deadline_a_call_is_killed(folder, clock):
    signal = AbortSignal.timeout(30)
    async with running(functions.hold, folder, signal=signal, grace=LONG) as task:
        [pid] = await folder.ready()
        clock.advance(30)
        error = await aborted(task)
    assert type(error) is AbortTimeout
    assert error.reason is signal.reason
    assert error.partial == IsolatedEnd(pid, -os_signals.SIGTERM, ())
    assert clock.pending == 0


@pytest.mark.parametrize("which", ["signal", "kill"])
async def test_under_an_aborted_signal_nothing_is_started(which):
    signal, kill = (AbortSignal.already("before") if which == name else NEVER for name in ("signal", "kill"))
    with pytest.raises(AbortError, match="before"):
        await run_isolated(functions.add, 1, signal=signal, kill=kill, on_start=not_started)


async def test_an_abort_while_the_child_starts_keeps_the_function_from_beginning(folder):
    controller = AbortController()
    with pytest.raises(AbortError) as caught:
        await run_isolated(
            functions.hold, folder, signal=controller.signal, kill=NEVER, on_start=lambda _: controller.abort("early")
        )
    assert caught.value.reason is controller.signal.reason
    assert folder.pids() == []


def test_the_process_ends_also_when_the_loop_ends(folder):
    async def start():
        task = asyncio.create_task(run_isolated(functions.stubborn_tree, folder, signal=NEVER, grace=0.1))
        await folder.ready(3)
        return task

    with asyncio.Runner() as runner:
        task = runner.run(start())
    assert task.cancelled()
    assert folder.alive() == []


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("exit", 3, "exit code 3"),
        ("sys.exit", 4, "exit code 4"),
        ("crash", -os_signals.SIGSEGV, "killed by SIGSEGV"),
        ("memory", -os_signals.SIGKILL, "killed by SIGKILL (by a user, or by the system for lack of memory)"),
        ("other", -os_signals.SIGRTMIN - 1, f"killed by signal {os_signals.SIGRTMIN + 1}"),
    ],
)
async def test_a_child_that_dies_without_an_answer_is_reported_with_its_end(how, code, words):
    with pytest.raises(ChildDied) as caught:
        await run_isolated(functions.leave, how, signal=NEVER)
    assert str(caught.value) == f"the process of {HERE}:leave ended without an answer: {words}"
    assert (caught.value.function, caught.value.returncode) == (f"{HERE}:leave", code)


async def test_a_child_that_cannot_answer_ends_itself():
    with pytest.raises(ChildDied, match="SIGKILL"):
        await run_isolated(functions.tear_the_line, signal=NEVER)


@pytest.mark.parametrize("fn", [functions.linger, functions.leave_running], ids=["a thread", "a process"])
async def test_a_call_that_leaves_something_running_gives_its_value_and_is_ended(fn, folder):
    options = IsolationOptions(signal=NEVER, grace=LONG, linger=0.1)
    assert await call_isolated(fn, [folder], {}, options) == "done"
    assert folder.alive() == []


async def test_a_value_that_came_before_the_abort_is_kept(folder):
    controller = AbortController()
    options = IsolationOptions(signal=controller.signal, grace=LONG, linger=LONG)
    async with in_task(call_isolated(functions.linger, [folder], {}, options)) as task:
        await folder.ready()  # written by what is left when the answer has been sent
        controller.abort("too late")
        assert await task == "done"
    assert folder.alive() == []


async def test_a_call_that_ends_in_the_moment_of_the_abort_has_a_value_or_is_aborted(folder):
    chance = random.Random(5)
    for number in range(counts(8, 40)):
        controller, gate = AbortController(), str(folder.path / str(number))
        async with running(functions.return_at, folder, gate, signal=controller.signal, grace=LONG) as task:
            await folder.ready(number + 1)
            open(gate, "x").close()
            await asyncio.sleep(chance.random() / 200)  # real time: the end and the abort are to meet
            controller.abort("stop")
            await asyncio.wait([task])
        ended = task.exception() or task.result()
        if isinstance(ended, AbortError):
            assert ended.reason is controller.signal.reason
            assert ended.partial == IsolatedEnd(folder.pids()[-1], -os_signals.SIGTERM, ())
        else:
            assert ended == "done"
        assert folder.alive() == []


async def test_a_failure_in_on_start_comes_out_and_the_process_does_not_go_on(folder):
    def fail(pid):
        folder.note_pid(pid)
        raise LookupError("no place for it")

    with pytest.raises(LookupError, match="no place for it"):
        await run_isolated(functions.hold, folder, signal=NEVER, on_start=fail)
    await folder.gone()


async def test_the_grace_is_a_duration():
    with pytest.raises(UsageError, match=r"^grace must be"):
        await run_isolated(functions.add, 1, signal=NEVER, grace=-1)


async def test_where_the_system_cannot_tell_of_an_end_one_looks_again_and_again(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    assert await run_isolated(functions.add, 1, signal=NEVER) == 1
    with pytest.raises(ChildDied):
        await run_isolated(functions.leave, "exit", signal=NEVER)


@both_loops
async def test_twenty_calls_run_side_by_side():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_isolated(functions.add, number, 1, signal=NEVER)) for number in range(20)]
    assert [task.result() for task in tasks] == list(range(1, 21))


async def test_nothing_is_left_open_after_many_calls():
    async def one(number):
        controller = AbortController()
        if number % 3 == 0:
            asyncio.get_running_loop().call_later(number / 100, controller.abort)
        try:
            await run_isolated(functions.leave if number % 3 == 1 else functions.add, "exit", signal=controller.signal)
        except (AbortError, ChildDied, TypeError):
            pass

    await one(0)
    before = sorted(os.listdir("/proc/self/fd"))
    for batch in range(6):
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(one(5 * batch + number))
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_a_call_may_make_calls():
    pids = await run_isolated(functions.nest, 2, signal=NEVER)
    assert len({*pids, os.getpid()}) == 4
    assert not any(alive(pid) for pid in pids)


async def test_an_isolated_call_inside_the_aborted_one_ends_too(folder):
    controller = AbortController()
    async with running(run_inside, folder, signal=controller.signal, grace=LONG) as task:
        [pid] = await folder.ready()
        controller.abort("stop")
        error = await aborted(task)
    assert error.partial.pid != pid
    assert error.partial.survivors in ((), (pid,))  # it has a group of its own, and ends because its parent has
    await folder.gone()


async def run_inside(folder):
    await run_isolated(functions.hold, folder, signal=NEVER)
