"""Owns the tests that look inside, beside those of `tests/internal/testing/test_inject_points.py`.

Points: what is one, how it is recognised in another run, and that something is done there exactly once.
"""

import asyncio
import functools
import threading

import pytest

from safepoint.abort import Stream
from safepoint.testing import point
from safepoint.testing.inject.loop import RunLoop
from safepoint.testing.inject.points import AWAIT, Points, chunks_are_points, recording


def run(main, points):
    loop = RunLoop(None, 5.0)
    loop.show_suspensions(points.suspension)
    with recording(points), chunks_are_points(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


def collected(main):
    points = Points()
    run(main, points)
    return points.collected


async def three_waits():
    for _ in range(3):
        await asyncio.sleep(0)


def test_points_are_numbered_in_the_order_of_the_run():
    points = collected(three_waits)
    line = three_waits.__code__.co_firstlineno + 2
    assert [(each.number, each.what, each.nth, each.line) for each in points] == [
        (1, AWAIT, 1, line),
        (2, AWAIT, 2, line),
        (3, AWAIT, 3, line),
    ]
    assert str(points[1]) == f"tests/internal/testing/test_inject_points.py:{line} (await in task three_waits, time 2)"
    assert points[0].chain[0] == f"tests/internal/testing/test_inject_points.py:{line} three_waits"


def test_something_is_done_at_one_point_and_something_else_at_the_next():
    story: list[object] = []
    for target in collected(three_waits):
        points = Points(target, functools.partial(story.append, target.number))
        points.then = functools.partial(story.append, "next")
        run(three_waits, points)
        assert points.reached
    assert story == [1, "next", 2, "next", 3]


def test_a_point_is_recognised_by_its_task_and_count_also_when_the_order_differs():
    order = ["a", "b"]

    async def main():
        async with asyncio.TaskGroup() as group:
            for name in order:
                group.create_task(three_waits(), name=name)

    second_of_b = next(each for each in collected(main) if each.task == "b" and each.nth == 2)
    order.reverse()
    points = Points(second_of_b)
    run(main, points)
    assert points.reached


def test_a_point_that_does_not_come_is_not_reached():
    async def other():
        await asyncio.sleep(0)

    points = Points(collected(three_waits)[2])
    run(other, points)
    assert not points.reached


def test_nothing_is_a_point_when_the_run_is_over():
    points = Points()
    points.over = True
    run(three_waits, points)
    points.then = lambda: pytest.fail("it is over")
    points.passing("late")
    assert points.collected == []


def test_identities_in_the_names_of_tasks_do_not_count():
    names = iter(["turn 0b2c7a52-8f2e-4c7b-9d0a-3a0d7d2b1f11", "turn 7d2b1f110b2c7a52"])

    async def main():
        await asyncio.create_task(three_waits(), name=next(names))

    roles = [{each.task for each in collected(main)} for _ in range(2)]
    assert roles == [{main.__qualname__, "turn …"}] * 2


def test_markers_count_in_tasks_callbacks_and_threads():
    async def main():
        point("in a task")
        asyncio.get_running_loop().call_soon(point, "in a callback")
        await asyncio.sleep(0)
        await asyncio.to_thread(point, "in an executor")

    assert [(each.what, each.task) for each in collected(main) if each.what != AWAIT] == [
        ("in a task", main.__qualname__),
        ("in a callback", "callback"),
        ("in an executor", "thread asyncio"),
    ]


def test_threads_are_known_by_their_names_without_numbers():
    points = Points()

    def work():
        points.passing("mark")

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [(each.task, each.nth) for each in points.collected] == [
        ("thread Thread (work)", 1),
        ("thread Thread (work)", 2),
    ]


def test_only_awaits_can_be_aborted_from_outside():
    async def main():
        point("mark")
        await asyncio.sleep(0)

    mark, wait = collected(main)
    assert mark.modes == ("inside", "twice")
    assert wait.modes == ("abort", "inside", "twice", "cancel")


def test_streams_are_as_before_when_the_block_is_left():
    before = Stream.__anext__
    with chunks_are_points():
        assert Stream.__anext__ is not before
    assert Stream.__anext__ is before
