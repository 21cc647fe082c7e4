"""Owns the tests of the order in which queues are served: none of them waits while another one is served twice."""

from hypothesis import given
from hypothesis import strategies as st

from safepoint.worker.broker import Queue, Rotation

A: Queue = ("any", "a")
B: Queue = ("any", "b")
C: Queue = ("at", "w")


def test_the_queue_that_was_served_last_comes_last():
    rotation = Rotation()
    assert rotation.order([A, B, C]) == [A, B, C]
    rotation.served(A)
    assert rotation.order([A, B, C]) == [B, C, A]
    rotation.served(C)
    assert rotation.order([A, B, C]) == [B, A, C]


def test_everybody_gets_a_share_before_anybody_gets_more():
    assert list(Rotation().shares([A, B], 5)) == [(A, 2), (B, 2), (A, 5), (B, 5)]
    assert list(Rotation().shares([A, B], 1)) == [(A, 1), (B, 1), (A, 1), (B, 1)]
    assert list(Rotation().shares([], 5)) == []


@given(st.lists(st.sampled_from([A, B, C]), max_size=30))
def test_a_queue_that_always_has_work_is_served_at_least_every_third_time(others: list[Queue]):
    rotation = Rotation()
    for other in others:
        rotation.served(other)
    taken = []
    for _ in range(9):
        queue = rotation.order([A, B, C])[0]
        rotation.served(queue)
        taken.append(queue)
    assert {taken.count(queue) for queue in (A, B, C)} == {3}
