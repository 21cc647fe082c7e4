"""Owns the tests that look inside, beside those of `tests/run/owned/test_hook.py`.

The audit hook: on whose account a start is, what it refuses, and that it hurts nobody else.
"""

import os
import socket
import subprocess
import threading

import pytest

from safepoint.abort.resource_account import current_account
from safepoint.run import AbortInterrupt, detached
from safepoint.run.owned import hook


class Leaf:
    """A leaf as the hook sees it, which writes down what it is told."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.programs: list[str] = []
        self.threads: list[threading.Thread] = []

    def ensure_account(self) -> "Leaf":
        return self

    def add_program(self, program: object) -> None:
        self.programs.append(program.name)  # type: ignore[attr-defined]

    def helper(self, fn: object, *, thread: threading.Thread | None = None) -> object:
        if thread is not None:
            self.threads.append(thread)
        return fn

    keep_reason = ""
    task = None

    def call_here(self) -> None:
        return None

    def expect_program(self, keep_reason: str, starter: object) -> None:
        self.programs.append("forked")

    def refuse_if_stopped(self, what: str) -> None:
        if self.refuses:
            raise AbortInterrupt


def under(account: Leaf) -> None:
    hook.install()
    current_account.set(account)  # type: ignore[arg-type]  # in a context of its own: see `in_context`


def in_context(account: Leaf, fn: object) -> object:
    import contextvars

    def run() -> object:
        under(account)
        return fn()  # type: ignore[operator]

    return contextvars.copy_context().run(run)


@pytest.mark.parametrize(
    ("command", "name"),
    [(["sleep", "0"], "sleep"), ("true and more", "sh"), ([b"true"], "true")],
    ids=["list", "shell", "bytes"],
)
def test_a_program_is_on_the_account_of_the_leaf_that_starts_it(command, name):
    account = Leaf()
    in_context(account, lambda: subprocess.run(command, shell=isinstance(command, str), check=False))
    assert account.programs == [name]
    subprocess.run(["true"], check=False)  # on nobody's account
    assert account.programs == [name]


def test_what_belongs_to_the_application_is_on_nobodys_account():
    account = Leaf()

    def start() -> None:
        with detached():
            subprocess.run(["true"], check=False)

    in_context(account, start)
    assert account.programs == []


def test_a_refusal_comes_out_where_the_program_would_start_and_leaves_no_descriptor_open():
    account = Leaf(refuses=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(AbortInterrupt):
            in_context(account, lambda: subprocess.run(["true"], capture_output=True, check=False))
        with pytest.raises(AbortInterrupt):
            in_context(account, lambda: os.system("true"))
        with socket.socket() as mine, pytest.raises(AbortInterrupt):
            in_context(account, lambda mine=mine: mine.connect(("127.0.0.1", 9)))
    assert len(os.listdir("/proc/self/fd")) == before
    assert account.programs == []


def test_a_thread_is_on_the_account_of_the_leaf_that_starts_it_but_threads_of_pools_are_not():
    from concurrent.futures import ThreadPoolExecutor

    account = Leaf()

    def start() -> None:
        thread = threading.Thread(target=int, name="mine")
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()

    in_context(account, start)
    assert [thread.name for thread in account.threads] == ["mine"]


def test_a_refused_connect_leaves_the_socket_as_it_was():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        with pytest.raises(AbortInterrupt):
            in_context(Leaf(refuses=True), lambda: mine.connect(("127.0.0.1", 9)))
        assert mine.fileno() >= 0
