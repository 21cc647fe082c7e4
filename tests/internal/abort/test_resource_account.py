"""Threads and programs tell the operation around them."""

import contextvars

from safepoint.abort.resource_account import (
    account_here,
    accounted,
    current_account,
    detached,
    is_detached,
    report_survivors,
    reset_account,
)


class Account:
    def __init__(self) -> None:
        self.pids: list[int] = []

    def thread(self, fn):
        return lambda *args: ("on account", fn(*args))

    def helper(self, fn, *, thread=None):
        return fn

    def survivors(self, pids):
        self.pids += pids


def test_without_an_operation_nobody_is_told():
    assert accounted(int) is int
    report_survivors([1])


def test_the_operation_around_is_told():
    account = Account()
    token = current_account.set(account)
    told: object = accounted(int)("3")
    assert told == ("on account", 3)
    report_survivors([4, 5])
    assert account.pids == [4, 5]
    reset_account(token)
    assert accounted(int) is int


def test_what_belongs_to_the_application_is_on_no_account():
    token = current_account.set(Account())
    with detached():
        assert account_here() is None
        assert accounted(int) is int
        assert is_detached()
    assert account_here() is not None
    assert not is_detached()
    reset_account(token)


def test_an_end_in_another_context_is_no_error():
    token = contextvars.copy_context().run(current_account.set, Account())
    reset_account(token)
    assert current_account.get() is None
