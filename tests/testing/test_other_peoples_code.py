"""abort_everywhere over code as people write it: threads, servers and programs inside one scenario, on both clocks."""

import asyncio
import threading
import time

import pytest

from safepoint.abort import AbortError, current_clock, current_signal, run_in_thread
from safepoint.run import Context, leaf, settle
from safepoint.testing import FakeClock, Ignore, abort_everywhere

CLOCKS = pytest.mark.parametrize("clock", [FakeClock, None], ids=["fake", "real"])


# asyncio leaves a listening socket open when create_server() is cancelled in its last `sleep(0)`: a true defect.
KNOWN_LEAK = Ignore(law="no_descriptor_left", at="asyncio/base_events.py:* BaseEventLoop.create_server")


# The sockets that asyncio itself forgets, in the two cases above and when a server is closed while it accepts.
SOCKETS_OF_ASYNCIO = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def in_a_leaf(probe, tool):
    async def work(ctx, value):
        return await leaf(ctx, tool)

    return await settle(Context(signal=probe.signal), work, None)


@CLOCKS
def test_a_synchronous_leaf_may_wait_for_the_signal_as_the_page_on_stopping_advises(clock):
    def polls(ctx, value):
        for _ in range(20):
            if ctx.signal.wait(0.01):
                return "stopped"
        return "done"

    report = abort_everywhere(lambda probe: in_a_leaf(probe, polls), clock=clock)
    assert report.aborted >= 4


def test_a_thread_may_wait_for_fake_time_hundreds_of_times():
    def polls():
        began = current_clock().monotonic()
        for _ in range(300):
            current_signal().wait(10)
        return round(current_clock().monotonic() - began)

    async def scenario(probe):
        return await run_in_thread(polls, signal=probe.signal)

    report = abort_everywhere(scenario, clock=FakeClock, seconds=5, modes=["abort"])
    assert report.violations == ()


def test_several_threads_and_a_task_wait_for_fake_time_each_in_its_turn():
    async def scenario(probe):
        story = []

        def waits(seconds):
            current_signal().wait(seconds)
            story.append(seconds)

        async with asyncio.TaskGroup() as group:
            for seconds in (3, 1):
                group.create_task(run_in_thread(waits, seconds, signal=probe.signal))
            await probe.signal.sleep(2)
            story.append(2)
        return story if probe.signal.aborted else [*story, current_clock().monotonic()]

    report = abort_everywhere(scenario, clock=FakeClock, laws=[])
    assert report.unfinished == ""
    values = []

    async def seen(probe):
        values.append(await scenario(probe))

    abort_everywhere(seen, clock=FakeClock, laws=[], modes=["cancel"])
    assert values[0] == values[1] == [1, 2, 3, 1003]


def test_a_thread_that_waits_without_a_limit_does_not_hold_up_fake_time():
    async def scenario(probe):
        def waits_for_the_stop():
            return current_signal().wait()

        with pytest.raises(AbortError):
            async with asyncio.timeout(1000):  # it never comes to that
                await asyncio.gather(
                    run_in_thread(waits_for_the_stop, signal=probe.signal), stops_later(probe), return_exceptions=False
                )
        probe.signal.raise_if_aborted()

    async def stops_later(probe):
        await current_clock().sleep(60)
        probe.abort("after a minute")

    report = abort_everywhere(scenario, clock=FakeClock, laws=[], check=False)
    assert len(report.points) >= 2
    assert report.unfinished == ""


async def serve(reader, writer):
    """A server of lines that takes its time."""
    try:
        while line := await reader.readline():
            await asyncio.sleep(0.01)  # real time: the work of a server, on whichever clock
            writer.write(line.upper())
            await writer.drain()
    finally:
        writer.close()


async def line_client(probe):
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        with probe.signal.guard():
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                for number in range(3):
                    writer.write(b"line %d\n" % number)
                    assert await reader.readline() == b"LINE %d\n" % number
            finally:
                writer.close()
    return "served"


@SOCKETS_OF_ASYNCIO
@CLOCKS
def test_a_server_whose_handler_sleeps_and_its_client_share_a_scenario(clock):
    report = abort_everywhere(line_client, clock=clock, ignore=[KNOWN_LEAK])
    assert report.stable
    assert report.not_reached == ()
    assert report.aborted > 40


@SOCKETS_OF_ASYNCIO
def test_two_campaigns_over_a_server_have_the_same_counts():
    first, second = (abort_everywhere(line_client, clock=FakeClock, ignore=[KNOWN_LEAK]) for _ in range(2))
    assert (len(first.points), first.runs, first.aborted) == (len(second.points), second.runs, second.aborted)


@SOCKETS_OF_ASYNCIO
def test_only_the_known_leak_of_asyncio_is_reported_of_a_server():
    report = abort_everywhere(line_client, clock=FakeClock, check=False)
    assert {found.law for found in report.violations} <= {"no_descriptor_left"}
    for found in report.violations:
        assert found.point is not None
        assert any("create_server" in line for line in found.point.chain)


@SOCKETS_OF_ASYNCIO
@CLOCKS
def test_an_http_client_and_its_server_share_a_scenario(clock):
    httpx = pytest.importorskip("httpx")

    async def answer(reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def scenario(probe):
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = "http://{}:{}/".format(*server.sockets[0].getsockname())
            with probe.signal.guard():
                async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                    for _ in range(2):
                        assert (await client.get(url)).text == "hello"
        return "done"

    report = abort_everywhere(scenario, clock=clock, ignore=[KNOWN_LEAK])
    assert report.aborted > 40


@SOCKETS_OF_ASYNCIO
def test_a_server_task_that_really_stays_is_still_reported():
    async def stays(reader, writer):
        try:
            await asyncio.Event().wait()
        finally:
            writer.close()

    async def scenario(probe):
        server = await asyncio.start_server(stays, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await probe.signal.sleep(1)
        server.close()

    report = abort_everywhere(scenario, clock=FakeClock, check=False)
    assert {(found.law, found.point) for found in report.violations} == {
        ("no_task_left", None),
        ("no_descriptor_left", None),
    }


def test_a_run_that_hangs_because_fake_time_stands_still_says_what_holds_it_up():
    over = threading.Event()

    def never_rests():
        while not over.is_set():
            time.sleep(0.002)  # real time: a thread that goes on, which is what holds up the clock

    async def scenario(probe):
        thread = threading.Thread(target=never_rests, name="restless", daemon=True)
        thread.start()
        await asyncio.sleep(60)  # real time: none, the loop's clock is fake

    try:
        report = abort_everywhere(scenario, clock=FakeClock, seconds=0.3, check=False)
    finally:
        over.set()
    (hang,) = report.violations
    assert "it did not end within 0.3 s" in hang.message
    assert "fake time stood still" in hang.message
    assert "thread restless at tests/testing/test_other_peoples_code.py:" in hang.message


def test_a_thread_that_is_ignored_neither_counts_nor_holds_up_fake_time():
    over, threads = threading.Event(), []

    def never_rests():
        while not over.is_set():
            time.sleep(0.002)  # real time: a thread that goes on, which is what holds up the clock

    async def scenario(probe):
        threads.append(threading.Thread(target=never_rests, name=f"exporter-{len(threads)}", daemon=True))
        threads[-1].start()
        await probe.signal.sleep(60)

    try:
        report = abort_everywhere(scenario, clock=FakeClock, modes=["abort"], ignore=[Ignore(name="exporter-*")])
    finally:
        over.set()
    assert report.violations == ()
    assert report.ignored[0][1] >= 2
