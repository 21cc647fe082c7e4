"""Owns the tests of the queue: in order, from any thread, each item in one hand."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from safepoint.testing import drain_ready_tasks
from safepoint.turns.inbox import Inbox, Put
from tests.conftest import counts

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def inbox(max_items: int | None = None, on_change: Callable[[], object] = lambda: None) -> Inbox[str]:
    return Inbox(on_change, max_items)


def filled(*items: str, max_items: int | None = None) -> Inbox[str]:
    box = inbox(max_items)
    for item in items:
        assert box.put(item) == "accepted"
    return box


def test_items_come_out_in_the_order_of_their_pushes() -> None:
    box = filled("a", "b", "c")
    assert (len(box), box.peek(), box.take(2), box.take(), box.take()) == (3, ["a", "b", "c"], ["a", "b"], ["c"], [])


def test_what_is_given_back_comes_before_all_others_in_its_order() -> None:
    box = filled("c", "d")
    box.put_front(["a", "b"])
    box.put_front([])
    assert box.peek() == ["a", "b", "c", "d"]


def test_every_put_and_the_closing_wake_the_reader() -> None:
    woken: list[str] = []
    box: Inbox[str] = Inbox(lambda: woken.append("woken"))
    box.put("a")
    box.put("a")
    box.close()
    box.close()
    assert len(woken) == 4
    box.put("late")
    assert len(woken) == 4


def test_a_closed_queue_takes_nothing_and_stays_readable() -> None:
    box = filled("a")
    box.close()
    assert box.put("late") == "closed"
    box.put_front(["given back"])
    assert box.take() == ["given back", "a"]


def test_a_full_queue_refuses_and_has_room_again_when_something_was_taken_or_removed() -> None:
    box = filled("a", "b", max_items=2)
    assert box.full
    assert box.put("c") == "full"
    assert box.remove("a")
    assert box.put("c") == "accepted"
    box.take(1)
    assert not box.full


def test_what_is_given_back_may_exceed_the_limit() -> None:
    box = filled("b", max_items=1)
    box.put_front(["a"])
    assert box.full
    assert box.peek() == ["a", "b"]


def test_removing_takes_the_very_item_before_an_equal_one() -> None:
    first, second = ["same"], ["same"]
    box: Inbox[list[str]] = Inbox(lambda: None)
    box.put(first)
    box.put(second)
    assert box.remove(second)
    assert box.peek()[0] is first
    assert box.remove(["same"]), "an equal one will do"
    assert not box.remove(first), "it does not wait here any more"


async def test_whoever_waits_for_room_gets_it_in_the_order_of_asking() -> None:
    box = filled("x", max_items=1)
    came: list[str] = []

    async def put(item: str) -> None:
        while box.put(item) == "full":
            await box.wait_for_space()
        came.append(item)

    async with asyncio.TaskGroup() as group:
        for item in ("a", "b", "c"):
            group.create_task(put(item))
        for _ in range(4):
            await drain_ready_tasks()
            box.take(1)
    assert came == ["a", "b", "c"]


async def test_room_that_somebody_no_longer_wants_goes_to_the_next() -> None:
    box = filled("x", max_items=1)
    first, second = (asyncio.ensure_future(box.wait_for_space()) for _ in range(2))
    await drain_ready_tasks()
    box.take(1)
    first.cancel()  # it was just told, and goes without using it
    async with asyncio.timeout(5):
        await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_room_that_came_before_the_wait_is_seen() -> None:
    async with asyncio.timeout(5):
        await filled("a", max_items=2).wait_for_space()
        closed = filled("a", max_items=1)
        closed.close()
        await closed.wait_for_space()


async def test_whoever_gives_up_waiting_for_room_leaves_nothing_behind() -> None:
    box = filled("x", max_items=1)
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await box.wait_for_space()
    assert len(box._waiters) == 0


async def test_room_is_told_to_as_many_as_there_is_room_for() -> None:
    box = filled("x", "y", max_items=2)
    waiting = [asyncio.ensure_future(box.wait_for_space()) for _ in range(5)]
    await drain_ready_tasks()
    box.take(1)
    await drain_ready_tasks()
    assert [task.done() for task in waiting] == [True, False, False, False, False]
    box.close()
    await asyncio.gather(*waiting)


def test_a_waiter_whose_loop_is_gone_does_not_break_the_reader() -> None:
    box = filled("x", max_items=1)
    gone = asyncio.new_event_loop()
    box._waiters.append(gone.create_future())
    gone.close()
    assert box.take() == ["x"]


def test_threads_that_push_while_it_closes_know_exactly_what_was_accepted() -> None:
    for _ in range(counts(50, 2000)):
        box = inbox()
        answers: list[dict[str, Put]] = [{} for _ in range(8)]
        start = threading.Barrier(9)
        threads = [threading.Thread(target=produce, args=(box, start, 20, answer)) for answer in answers]
        for thread in threads:
            thread.start()
        start.wait()
        taken = box.take()
        box.close()
        taken += box.take()
        for thread in threads:
            thread.join()
        taken += box.take()
        accepted = [item for answer in answers for item, put in answer.items() if put == "accepted"]
        assert sorted(taken) == sorted(accepted)


def produce(box: Inbox[str], start: threading.Barrier, count: int, answers: dict[str, Put]) -> None:
    start.wait()
    for number in range(count):
        item = f"{id(answers)}:{number}"
        answers[item] = box.put(item)


def test_threads_never_fill_it_beyond_its_limit() -> None:
    for _ in range(counts(50, 2000)):
        box = inbox(max_items=5)
        answers: list[dict[str, Put]] = [{} for _ in range(4)]
        start = threading.Barrier(4)
        threads = [threading.Thread(target=produce, args=(box, start, 5, answer)) for answer in answers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        accepted = [item for answer in answers for item, put in answer.items() if put == "accepted"]
        assert sorted(box.peek()) == sorted(accepted)
        assert len(accepted) <= 5


@pytest.mark.parametrize("taken", [False, True], ids=["left", "taken"])
def test_a_put_that_is_overtaken_by_the_closing_is_refused_unless_the_reader_has_the_item(taken: bool) -> None:
    """The one moment that counts, made to happen: between the look at the door and the answer."""
    hand: list[str] = []

    class Overtaken(deque[Any]):
        def append(self, entry: Any) -> None:
            super().append(entry)
            box.close()
            if taken:
                hand.extend(box.take())

    box = inbox()
    box._entries = Overtaken()
    assert (box.put("a"), box.take(), hand) == (("accepted", [], ["a"]) if taken else ("closed", [], []))


def test_two_puts_for_the_last_place_do_not_both_get_it() -> None:
    class Overtaken(deque[Any]):
        def append(self, entry: Any) -> None:
            super().append(entry)
            if len(self) == 1:
                answers.append(box.put("b"))

    answers: list[Put] = []
    box = inbox(max_items=1)
    box._entries = Overtaken()
    answers.append(box.put("a"))
    assert answers == ["full", "accepted"]
    assert box.peek() == ["a"]
