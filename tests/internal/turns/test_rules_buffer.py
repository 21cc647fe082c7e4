"""Owns the tests that look inside, beside those of `tests/turns/test_rules_buffer.py`.

Owns the rules of the buffer, B-1 to B-5, and that no rule of the reference is without its test.
"""

from safepoint.turns.inbox import Inbox


def filled(*items: str) -> Inbox[str]:
    box: Inbox[str] = Inbox(lambda: None)
    for item in items:
        box.put(item)
    return box


def test_b1_first_in_first_out_without_a_limit_and_a_closed_one_refuses() -> None:
    box = filled(*map(str, range(1000)))
    assert box.take() == list(map(str, range(1000)))
    box.close()
    assert box.put("late") == "closed"


def test_b2_what_is_there_is_given_also_when_it_is_closed() -> None:
    box = filled("a")
    box.close()
    assert (box.take(1), box.take(1)) == (["a"], [])


def test_b3_what_is_given_back_keeps_its_order_also_into_a_closed_one() -> None:
    box = filled("c")
    box.close()
    box.put_front([])
    box.put_front(["a", "b"])
    assert (box.take(), box.take()) == (["a", "b", "c"], [])


def test_b4_closing_twice_is_closing_once_and_wakes_whoever_waits() -> None:
    woken: list[str] = []
    box: Inbox[str] = Inbox(lambda: woken.append("woken"))
    box.put("a")
    box.close()
    box.close()
    assert (box.closed, box.peek(), len(woken)) == (True, ["a"], 3)
