"""A turn as its caller holds it: one id for life, a status, a stop, a result."""

import asyncio
import threading
import time

from safepoint import AbortController, Completed, StopAt
from safepoint.agent import AgentResult
from safepoint.run import Context, StopRequest
from safepoint.session import SessionTurn, TurnResult
from safepoint.session.turn import TurnOptions
from safepoint.testing import FakeClock, drain_ready_tasks

DONE = TurnResult("t", "completed", Completed(AgentResult("ho")))


def turn(turn_id: str | None = "t", **options) -> SessionTurn:
    return SessionTurn(turn_id, (), lambda *_: None, options=TurnOptions(**options))  # type: ignore[arg-type]


def test_a_turn_has_its_id_at_once() -> None:
    assert turn("mine").id == "mine"
    assert turn(None).id != turn(None).id


def test_the_status_says_where_it_is_on_its_way() -> None:
    mine = turn()
    statuses = [mine.status]
    mine.begin(Context())
    statuses.append(mine.status)
    mine.request_stop(StopRequest(StopAt.SAFE_POINT))
    statuses.append(mine.status)
    mine.end(DONE)
    statuses.append(mine.status)
    assert statuses == ["queued", "running", "stopping", "completed"]
    controller = AbortController()
    stopped = turn(signal=controller.signal)
    controller.abort()
    assert stopped.status == "stopping"


def test_it_waits_until_it_begins_or_its_end_is_decided() -> None:
    begun, decided = turn(), turn()
    assert begun.queued
    begun.begin(Context())
    decided.outcome = Completed(AgentResult(""))
    assert not begun.queued
    assert not decided.queued


def test_a_queued_turn_that_is_stopped_has_nothing_to_finish_first() -> None:
    mine, later = turn(), turn()
    mine.request_stop(StopRequest(StopAt.AFTER_TOOLS))
    later.request_stop(StopRequest(StopAt.TURN_END))
    assert mine.signal.aborted
    assert not later.signal.aborted


def test_requests_from_before_and_after_its_beginning_are_one() -> None:
    mine = turn()
    mine.begin(Context())
    mine.request_stop(StopRequest(StopAt.AFTER_TOOLS))
    before = mine.live_stop.request.at
    mine.request_stop(StopRequest(StopAt.AFTER_MODEL))
    assert (before, mine.live_stop.request.at) == (StopAt.AFTER_TOOLS, StopAt.SAFE_POINT)
    assert not mine.signal.aborted


def test_of_many_threads_that_stop_it_one_is_the_first_and_no_request_is_lost() -> None:
    for _ in range(50):
        mine, firsts = turn(), list[bool]()
        gate = threading.Barrier(4)

        def ask(at: StopAt, mine=mine, firsts=firsts, gate=gate) -> None:
            gate.wait()
            firsts.append(mine.request_stop(StopRequest(at)))

        kinds = [StopAt.AFTER_TOOLS, StopAt.AFTER_MODEL, StopAt.NOW, StopAt.TURN_END]
        threads = [threading.Thread(target=ask, args=(at,)) for at in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(firsts) == [False, False, False, True]
        assert mine.stop_request.at is StopAt.NOW


async def test_everybody_who_waits_gets_the_result_and_one_who_leaves_stops_nothing() -> None:
    mine = turn()
    waiting = [asyncio.create_task(mine.wait()) for _ in range(3)]
    await drain_ready_tasks()
    waiting[0].cancel()
    await drain_ready_tasks()
    mine.end(DONE)
    assert [await waiter for waiter in waiting[1:]] == [DONE, DONE]
    assert await mine is DONE
    assert not mine.signal.aborted


def test_its_end_lets_go_of_what_it_held() -> None:
    controller = AbortController()
    mine = turn(signal=controller.signal)
    mine.begin(Context())
    mine.signal_listener = mine.signal.add_listener(lambda: None)
    assert controller.signal.observers
    mine.end(DONE)
    assert not controller.signal.observers
    assert mine.ctx is None


def test_a_deadline_counts_from_its_acceptance(clock: FakeClock) -> None:
    mine = turn(timeout=5)
    clock.advance(4.9)
    assert not mine.signal.aborted
    clock.advance(0.1)
    assert mine.signal.aborted
    assert mine.signal.reason is not None
    assert mine.signal.reason.kind == "deadline"


def test_its_end_wakes_those_who_wait_in_the_event_loops_of_other_threads() -> None:
    mine, waiting, woken = turn(), threading.Barrier(3), list[str]()

    async def waits() -> None:
        async with asyncio.timeout(20):
            task = asyncio.ensure_future(mine.wait())
            await asyncio.sleep(0)
            waiting.wait(20)
            woken.append((await task).status)

    threads = [threading.Thread(target=lambda: asyncio.run(waits())) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait(20)
    time.sleep(0.1)  # real time: the event loops of the two have nothing to do, and fall asleep
    mine.end(DONE)
    for thread in threads:
        thread.join(5)
    assert woken == ["completed"] * 2


def test_a_waiter_whose_event_loop_is_closed_does_not_keep_the_others_from_being_told() -> None:
    mine, loop = turn(), asyncio.new_event_loop()
    waiting = loop.create_task(mine.wait())
    loop.run_until_complete(asyncio.sleep(0))
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # that is what this is about
    loop.close()

    async def ends() -> None:
        other = asyncio.ensure_future(mine.wait())
        await asyncio.sleep(0)
        mine.end(DONE)
        async with asyncio.timeout(5):
            await other

    asyncio.run(ends())
