"""May fake time jump? What waits for it, or cannot be woken by anybody, does not hold it up; what moves does."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from safepoint.abort import run_in_thread, use_clock
from safepoint.testing import FakeClock
from safepoint.testing.inject.loop import RunLoop
from safepoint.testing.inject.pending import STILL_SECONDS, DescriptorEnd, OutsideActivity

SECONDS = 20.0
COMPUTES = "while True: pass"
STILL = 0.2  # how long something must be still: short, so that tests need not wait for long


def wait_until(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.001)  # real time: what is waited for happens in another thread or process


@contextmanager
def thread(function, *args, name="other"):
    """A thread that began after what is outside was first looked at; `function` ends when the block does."""
    begun, over = threading.Event(), threading.Event()

    def body():
        begun.set()
        function(over, *args)

    started = threading.Thread(target=body, name=name, daemon=True)
    started.start()
    assert begun.wait(SECONDS)
    try:
        yield started
    finally:
        over.set()
        started.join(SECONDS)


def moves(over):
    while not over.wait(0.001):
        pass


def rests(over):
    over.wait()


def test_nothing_outside_holds_up_time():
    outside = OutsideActivity()
    assert not outside.pending([])
    assert outside.moving == outside.resting == []


def test_threads_from_before_the_run_hold_up_nothing():
    with thread(moves):
        assert not OutsideActivity().pending([])


def test_a_thread_that_moves_holds_up_time_for_as_long_as_it_does():
    outside = OutsideActivity(still=STILL)
    with thread(moves):
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert outside.pending([])
        (held,) = outside.moving
        assert held.describe().startswith("thread other at tests/internal/testing/test_inject_pending.py:")
    wait_until(lambda: not outside.pending([]))


def test_a_thread_that_rests_holds_up_time_for_a_moment_only():
    outside = OutsideActivity(still=STILL)
    with thread(rests):
        began = time.monotonic()
        assert outside.pending([])
        wait_until(lambda: not outside.pending([]))
        assert time.monotonic() - began >= STILL
        assert [each.describe().startswith("thread other at ") for each in outside.resting] == [True]
        assert not outside.pending([])  # it has not moved since, so that it need not be waited for again


def test_a_thread_that_moves_again_holds_up_time_again():
    outside, steps, taken = OutsideActivity(still=STILL), threading.Semaphore(0), threading.Semaphore(0)

    def step(over):
        for _ in range(2):
            steps.acquire()
            taken.release()

    with thread(step):
        wait_until(lambda: not outside.pending([]))
        steps.release()
        assert taken.acquire(timeout=SECONDS)
        assert outside.pending([])
        steps.release()


def test_where_the_system_does_not_tell_a_thread_always_holds_up_time(tmp_path):
    outside = OutsideActivity(still=STILL, proc=str(tmp_path))
    with thread(rests):
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            assert outside.pending([])


def test_a_thread_that_is_ignored_holds_up_nothing():
    outside = OutsideActivity(lambda thing: thing.name == "exporter")
    with thread(moves, name="exporter"):
        assert not outside.pending([])
        with thread(moves):
            assert outside.pending([])


@pytest.mark.parametrize("seconds", [None, 60])
def test_a_thread_that_waits_for_fake_time_holds_up_nothing_until_it_is_woken(seconds):
    outside, clock, lock, woken = OutsideActivity(), FakeClock(), threading.Lock(), threading.Event()
    lock.acquire()

    def waits(over):
        clock.acquire(lock, seconds)
        woken.set()
        moves(over)

    with thread(waits):
        wait_until(lambda: not outside.pending([]))
        assert [text.startswith("thread other at ") for text in outside.waiting()] in ([True], [])
        lock.release()
        while not woken.is_set():  # from the release on, also while it is still about to wake
            assert outside.pending([])
        assert outside.pending([])


def test_a_thread_whose_fake_time_has_come_holds_up_time_at_once():
    outside, clock, lock, woken = OutsideActivity(), FakeClock(), threading.Lock(), threading.Event()
    lock.acquire()

    def waits(over):
        clock.acquire(lock, 60)
        woken.set()
        moves(over)

    with thread(waits):
        wait_until(lambda: not outside.pending([]))
        clock.advance(60)
        while not woken.is_set():
            assert outside.pending([])
        assert outside.pending([])


def in_loop(main, *, still=STILL_SECONDS):
    """Run it on fake time, where it can see what is outside of its loop."""
    with use_clock(FakeClock()) as clock:
        with asyncio.Runner(loop_factory=lambda: RunLoop(clock, SECONDS, still=still)) as runner:
            return runner.run(main())


def this_loop() -> RunLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RunLoop)
    return loop


def test_a_call_in_a_thread_of_our_pool_holds_up_time_from_the_moment_it_is_handed_over():
    async def main():
        over, loop = threading.Event(), this_loop()
        call = asyncio.create_task(run_in_thread(moves, over))
        await asyncio.sleep(0)
        for _ in range(100):
            assert loop.others_pending()
        wait_until(lambda: loop.others_pending() and "test_inject_pending" in loop.outside.moving[0].describe())
        over.set()
        await call
        wait_until(lambda: not loop.others_pending())

    in_loop(main)


def test_a_call_in_an_executor_holds_up_time_until_it_ends_or_is_withdrawn():
    async def main():
        over, loop = threading.Event(), this_loop()
        call = loop.run_in_executor(None, moves, over)
        assert loop.others_pending()
        assert loop.in_executor == 1
        over.set()
        await call
        assert loop.in_executor == 0
        assert not loop.others_pending()

    in_loop(main, still=STILL)


def test_a_queued_call_that_is_withdrawn_holds_up_nothing():
    from concurrent.futures import ThreadPoolExecutor

    async def main():
        over, loop = threading.Event(), this_loop()
        with ThreadPoolExecutor(1) as executor:
            first = loop.run_in_executor(executor, moves, over)
            second = loop.run_in_executor(executor, print)
            assert loop.in_executor == 2
            assert "a call in an executor that has not begun" in queued_words(loop)
            second.cancel()
            await asyncio.sleep(0)
            assert loop.in_executor == 1
            over.set()
            await first
        assert loop.in_executor == 0

    def queued_words(loop):
        loop.others_pending()
        return [each.describe() for each in loop.outside.moving]

    in_loop(main, still=STILL)


@contextmanager
def connection():
    """A listening socket and the two ends of a connection to it."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        accepted = stack.enter_context(server.accept()[0])
        yield server, client, accepted


def test_a_listening_socket_and_a_connection_with_both_ends_here_hold_up_nothing():
    with connection() as (server, client, accepted):
        descriptors = [server.fileno(), client.fileno(), accepted.fileno()]
        assert not OutsideActivity().pending(descriptors)
        assert not OutsideActivity().pending(
            [client.fileno()], [accepted.fileno()]
        )  # the other end is not read at the moment


def test_bytes_that_have_arrived_hold_up_nothing_even_if_that_is_not_confirmed_yet():
    with connection() as (_, client, accepted):
        for _ in range(20):
            client.sendall(b"ping")
            assert accepted.recv(10) == b"ping"
            outside = OutsideActivity()
            wait_until(lambda: not outside.pending([client.fileno(), accepted.fileno()]))  # noqa: B023
            assert outside.resting == []
            accepted.sendall(b"pong")
            assert client.recv(10) == b"pong"


def test_bytes_that_cannot_arrive_hold_up_time_for_a_moment_only():
    with connection() as (_, client, accepted):
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                client.send(b"x" * 100_000)
        outside = OutsideActivity(still=STILL)
        assert outside.pending([client.fileno(), accepted.fileno()])
        wait_until(lambda: not outside.pending([client.fileno(), accepted.fileno()]))


def test_a_connection_to_elsewhere_holds_up_time_for_a_moment_after_whatever_the_loop_did():
    with connection() as (_, client, _):
        outside = OutsideActivity(still=STILL)
        host, port = client.getpeername()
        for _ in range(2):
            assert outside.pending([client.fileno()])
            assert [each.describe() for each in outside.moving] == [f"a connection to {host}:{port}"]
            wait_until(lambda: not outside.pending([client.fileno()]))
            outside.activity += 1


def test_a_pipe_and_a_pair_of_unnamed_sockets_may_lead_anywhere():
    here, there = socket.socketpair()
    with here, there:
        outside = OutsideActivity(still=STILL)
        assert outside.pending([here.fileno(), there.fileno()])
        assert [each.describe() for each in outside.moving] == [
            f"descriptor {each.fileno()} (socket)" for each in (here, there)
        ]


def test_ends_are_described_for_people():
    with connection() as (server, client, _):
        host, port = server.getsockname()
        assert DescriptorEnd(server.fileno()).describe() == f"a socket that listens at {host}:{port}"
        assert DescriptorEnd(client.fileno()).describe() == f"a connection to {host}:{port}"
    assert DescriptorEnd(10_000).describe() == "descriptor 10000 (?)"


@contextmanager
def program(*command, stdin=None):
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_program_that_computes_holds_up_time_for_those_that_may_wait_for_it():
    here, there = socket.socketpair()
    with here, there:
        outside = OutsideActivity(still=STILL)
        with program(sys.executable, "-S", "-c", COMPUTES):
            assert not outside.pending([])  # nobody waits for anything
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                assert outside.pending([here.fileno()])
            assert any(each.describe().startswith("child process ") for each in outside.moving)


def test_a_program_holds_up_time_also_while_only_its_child_computes():
    here, there = socket.socketpair()
    with here, there:
        outside = OutsideActivity(still=STILL)
        with program("sh", "-c", f"{sys.executable} -S -c '{COMPUTES}' & echo $!; wait") as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            try:
                until = time.monotonic() + 0.6
                while time.monotonic() < until:
                    assert outside.pending([here.fileno()])
            finally:
                subprocess.run(["kill", "-9", str(child)], check=True)


def test_a_program_that_waits_holds_up_time_for_a_moment_only():
    here, there = socket.socketpair()
    with here, there:
        outside = OutsideActivity(still=STILL)
        with program("cat", stdin=subprocess.PIPE):
            assert outside.pending([here.fileno()])
            wait_until(lambda: not outside.pending([here.fileno()]))
            assert "child process cat" in [each.describe() for each in outside.resting]


def test_a_thread_that_a_process_woke_while_that_was_looked_at_holds_up_time(monkeypatch):
    """The thread is seen resting, the process is gone by the time it is looked at: and yet the thread goes on."""
    ended, heard = threading.Event(), threading.Event()

    def waits_for_the_process(over):
        ended.wait()
        heard.set()
        over.wait()

    outside = OutsideActivity(still=STILL)
    with thread(waits_for_the_process):
        wait_until(lambda: not outside.pending([]))

        def processes():
            ended.set()
            assert heard.wait(SECONDS)
            return iter(())

        monkeypatch.setattr(outside, "_processes", processes)
        assert outside.pending([])
        assert [each.describe().split(" at ")[0] for each in outside.moving] == ["thread other"]
