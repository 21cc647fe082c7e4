"""The controller: one abort, one winner; children follow their parent; Ctrl-C aborts, and a second one interrupts."""

import asyncio
import os
import select
import signal as os_signals
import subprocess
import sys
import textwrap
import threading
from functools import partial
from signal import SIGINT, SIGRTMIN, SIGTERM, SIGUSR1

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal
from safepoint.errors import UsageError
from tests.conftest import counts

SECONDS = 10.0


def test_abort_says_whether_this_call_did_it():
    controller = AbortController()
    assert controller.abort("first")
    assert not controller.abort("second")
    assert controller.signal.reason == AbortReason("user", "first")


def test_the_signal_is_the_same_object_before_and_after():
    controller = AbortController()
    signal = controller.signal
    controller.abort()
    assert controller.signal is signal
    assert signal.aborted


def test_all_listeners_have_run_when_abort_returns():
    controller = AbortController()
    heard: list[int] = []
    for number in range(3):
        controller.signal.add_listener(partial(heard.append, number))
    controller.abort()
    assert heard == [0, 1, 2]


def test_a_listener_that_aborts_again_does_nothing():
    controller, answers = AbortController(), []
    controller.signal.add_listener(lambda: answers.append(controller.abort("again")))
    assert controller.abort("first")
    assert answers == [False]
    assert controller.signal.reason == AbortReason("user", "first")


def test_of_many_threads_that_abort_at_once_exactly_one_did_it():
    rounds = counts(20, 2_000)
    for _ in range(rounds):
        controller = AbortController()
        heard: list[int] = []
        controller.signal.add_listener(partial(heard.append, 1))
        answers = in_threads(50, lambda number, controller=controller: (number, controller.abort(str(number))))
        [winner] = [number for number, did_it in answers if did_it]
        assert controller.signal.reason == AbortReason("user", str(winner))
        assert heard == [1]


def in_threads(number, function):
    """What the function gives in each of so many threads that begin at once."""
    barrier = threading.Barrier(number)
    results = []

    def run(index):
        barrier.wait(SECONDS)
        results.append(function(index))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == number
    return results


def test_a_losing_thread_sees_the_abort_when_its_call_returns():
    for _ in range(counts(20, 2_000)):
        controller = AbortController()
        seen = in_threads(8, lambda _, controller=controller: (controller.abort(), controller.signal.aborted))
        assert all(aborted for _, aborted in seen)


def test_a_destructor_may_abort():
    controller, heard = AbortController(), []
    controller.signal.add_listener(lambda: heard.append(1))

    class Owner:
        def __del__(self):
            controller.abort("owner gone")

    Owner()
    assert heard == [1]


def test_a_child_follows_its_parent_and_has_its_reason():
    parent = AbortController()
    child = AbortController(parent.signal)
    grandchild = AbortController(child.signal)
    heard = []
    grandchild.signal.add_listener(lambda: heard.append(child.signal.aborted))
    assert not grandchild.signal.aborted
    parent.abort("stop")
    assert heard == [True]
    assert parent.signal.reason is not None
    assert child.signal.reason is parent.signal.reason
    assert grandchild.signal.reason is parent.signal.reason


def test_a_parent_does_not_follow_its_child():
    parent = AbortController()
    child, sibling = AbortController(parent.signal), AbortController(parent.signal)
    assert child.abort("stop")
    assert child.signal.aborted
    assert not parent.signal.aborted
    assert not sibling.signal.aborted


def test_aborting_the_child_of_an_aborted_parent_changes_nothing():
    parent = AbortController()
    child = AbortController(parent.signal)
    parent.abort("parent")
    assert not child.abort("child")
    assert child.signal.reason == AbortReason("user", "parent")


def test_the_child_of_an_aborted_parent_is_born_aborted():
    parent = AbortSignal.already("before")
    child = AbortController(parent)
    assert child.signal.aborted
    assert child.signal.reason is parent.reason
    assert not child.abort("child")


def test_a_child_that_was_aborted_first_keeps_its_reason_and_is_not_told_again():
    parent = AbortController()
    child, heard = AbortController(parent.signal), []
    child.signal.add_listener(lambda: heard.append(1))
    child.abort("child")
    parent.abort("parent")
    assert child.signal.reason == AbortReason("user", "child")
    assert heard == [1]


def test_a_parent_does_not_grow_with_its_children():
    parent = AbortController()
    for _ in range(100):
        child = AbortController(parent.signal)
        with child.signal.add_listener(print):
            assert parent.signal.observers == 1
    assert parent.signal.observers == 0


def test_a_child_aborted_together_with_its_parent_tells_its_listeners_once():
    for _ in range(counts(100, 5_000)):
        parent = AbortController()
        child = AbortController(parent.signal)
        heard: list[int] = []
        child.signal.add_listener(partial(heard.append, 1))
        answers = in_threads(2, lambda number, pair=(parent, child): pair[number].abort(str(number)))
        assert any(answers)
        assert heard == [1]
        assert child.signal.reason is child.signal.reason


@pytest.mark.parametrize("parent", [AbortController(), "parent", 7], ids=lambda parent: type(parent).__name__)
def test_a_parent_must_be_a_signal(parent):
    with pytest.raises(TypeError, match=f"^parent must be an AbortSignal, not {type(parent).__name__}$"):
        AbortController(parent)


def send(number):
    """Send this process a signal; its handler has run when this returns, or what it raised comes out."""
    os.kill(os.getpid(), number)
    threading.Event().wait(0.001)  # whichever thread the system chose, the main thread looks now


def test_the_first_ctrl_c_aborts_and_the_second_raises():
    before = os_signals.getsignal(SIGINT)
    controller = AbortController()
    with pytest.raises(KeyboardInterrupt), controller.on_signals(SIGINT):
        send(SIGINT)
        assert controller.signal.wait(SECONDS)
        assert controller.signal.reason == AbortReason("user", "SIGINT")
        send(SIGINT)
        pytest.fail("the second one raises")
    assert os_signals.getsignal(SIGINT) is before


def test_the_origin_is_the_line_that_was_interrupted():
    controller = AbortController()
    with controller.on_signals(SIGUSR1):
        os_signals.raise_signal(SIGUSR1)
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin is not None
    assert controller.signal.reason.origin.startswith(f"{__file__}:")


def test_a_ctrl_c_while_the_event_loop_waits_comes_from_the_line_that_runs_the_loop():
    """The interrupted frame is the selector's; what runs the loop is the innermost line of the user's."""
    controller = AbortController()

    async def main():
        threading.Timer(0.05, os.kill, (os.getpid(), SIGUSR1)).start()  # when the loop waits in its selector
        await asyncio.wait_for(controller.signal.wait_async(), SECONDS)

    with controller.on_signals(SIGUSR1):
        line = sys._getframe().f_lineno + 1
        asyncio.run(main())
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin == f"{__file__}:{line}"


def test_a_handler_called_without_a_frame_has_no_origin():
    controller = AbortController()
    with controller.on_signals(SIGUSR1):
        handler = os_signals.getsignal(SIGUSR1)
        assert callable(handler)
        handler(SIGUSR1, None)
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin is None


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (SIGINT, AbortReason("user", "SIGINT")),
        (SIGTERM, AbortReason("shutdown", "SIGTERM")),
        (SIGUSR1, AbortReason("shutdown", "SIGUSR1")),
        (SIGRTMIN + 1, AbortReason("shutdown", f"signal {SIGRTMIN + 1}")),
    ],
    ids=lambda value: str(value),
)
def test_ctrl_c_is_a_users_reason_and_every_other_signal_a_shutdown(number, expected):
    controller = AbortController()
    with controller.on_signals(SIGINT, SIGTERM, SIGUSR1, SIGRTMIN + 1):
        send(number)
        assert controller.signal.wait(SECONDS)
    assert controller.signal.reason == expected


def test_two_different_signals_count_as_two():
    controller = AbortController()
    with pytest.raises(KeyboardInterrupt), controller.on_signals(SIGINT, SIGTERM):
        send(SIGTERM)
        assert controller.signal.wait(SECONDS)
        send(SIGINT)
        pytest.fail("the second one raises")
    assert controller.signal.reason == AbortReason("shutdown", "SIGTERM")


def test_a_signal_after_another_abort_does_not_change_the_reason():
    controller = AbortController()
    controller.abort("before")
    with controller.on_signals(SIGUSR1):
        send(SIGUSR1)
    assert controller.signal.reason == AbortReason("user", "before")


def test_the_handlers_from_before_are_back_afterwards_also_after_an_error():
    def mine(number, frame):
        pytest.fail("not inside the block")

    system = os_signals.signal(SIGUSR1, mine)
    try:
        controller = AbortController()
        with pytest.raises(ZeroDivisionError), controller.on_signals(SIGUSR1, SIGTERM):
            assert os_signals.getsignal(SIGUSR1) is not mine
            send(SIGUSR1)
            assert controller.signal.aborted
            raise ZeroDivisionError
        assert os_signals.getsignal(SIGUSR1) is mine
        assert os_signals.getsignal(SIGTERM) is os_signals.SIG_DFL
    finally:
        os_signals.signal(SIGUSR1, system)


def test_of_nested_blocks_the_inner_one_hears():
    outer, inner = AbortController(), AbortController()
    with outer.on_signals(SIGUSR1):
        with inner.on_signals(SIGUSR1):
            send(SIGUSR1)
            assert inner.signal.wait(SECONDS)
        assert not outer.signal.aborted
        send(SIGUSR1)
        assert outer.signal.wait(SECONDS)


def test_without_numbers_there_is_nothing_to_hear():
    with pytest.raises(UsageError, match="at least one signal number"), AbortController().on_signals():
        pytest.fail("not entered")


@pytest.mark.parametrize(("wrong", "error"), [(9_999, ValueError), (os_signals.SIGKILL, OSError)])
def test_a_number_that_cannot_be_handled_is_refused_and_the_others_are_given_back(wrong, error):
    before = os_signals.getsignal(SIGUSR1)
    with pytest.raises(error), AbortController().on_signals(SIGUSR1, wrong):
        pytest.fail("not entered")
    assert os_signals.getsignal(SIGUSR1) is before


def test_in_another_thread_signals_cannot_be_heard():
    def enter(_):
        with pytest.raises(UsageError, match="main thread"), AbortController().on_signals(SIGUSR1):
            pytest.fail("not entered")

    before = os_signals.getsignal(SIGUSR1)
    in_threads(1, enter)
    assert os_signals.getsignal(SIGUSR1) is before


@pytest.mark.backends("asyncio", "uvloop", "eager")
async def test_ctrl_c_interrupts_the_guarded_await():
    controller = AbortController()
    sender = threading.Timer(0.02, os.kill, (os.getpid(), SIGINT))
    with controller.on_signals(SIGINT):
        sender.start()  # its thread sends while the loop sleeps
        with pytest.raises(AbortError) as caught:
            with controller.signal.guard():
                await controller.signal.wait_async()
                await AbortSignal.never().wait_async()
    sender.join(SECONDS)
    assert caught.value.reason == AbortReason("user", "SIGINT")


PROGRAM = """
    import asyncio, signal, sys
    from safepoint.abort import AbortController, AbortError

    def new_event_loop():
        if sys.argv[1] == "uvloop":
            import uvloop
            return uvloop.new_event_loop()
        return asyncio.new_event_loop()

    async def main():
        controller = AbortController()
        with controller.on_signals(signal.SIGINT, signal.SIGTERM):
            print("waiting", flush=True)
            try:
                with controller.signal.guard():
                    await asyncio.Event().wait()
            except AbortError as error:
                print(error.reason.kind, error.reason.message, flush=True)
            await asyncio.Event().wait()

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("number", "expected"), [(SIGINT, "user SIGINT"), (SIGTERM, "shutdown SIGTERM")], ids=["SIGINT", "SIGTERM"]
)
def test_a_program_is_aborted_by_the_first_signal_and_interrupted_by_the_second(loop, number, expected):
    command = [sys.executable, "-u", "-c", textwrap.dedent(PROGRAM), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert line_of(process) == "waiting"
            process.send_signal(number)
            assert line_of(process) == expected
            process.send_signal(number)
            assert line_of(process) == "interrupted"
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def line_of(process):
    """The next line it prints, waited for not longer than a bounded time."""
    readable, _, _ = select.select([process.stdout], [], [], 30)
    assert readable, "the program says nothing"
    return process.stdout.readline().decode().strip()
