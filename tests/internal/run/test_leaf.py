"""Owns the tests that look inside, beside those of `tests/run/test_leaf.py`.

Leaves: the gate, the ladder, the receipt. Awaits, threads, processes and streams under one policy.
"""

from safepoint.run import Context, Policy
from safepoint.run.leaf import kind_of
from tests.kit.leaves import forever
from tests.run import leaf_functions


def test_what_is_declared_async_is_awaited_and_everything_else_gets_a_thread():
    import functools

    class AsyncCallable:
        async def __call__(self, ctx: Context, value: object) -> None: ...

    class Callable:
        def __call__(self, ctx: Context, value: object) -> None: ...

    policy = Policy()
    assert kind_of(forever, policy) == "await"
    assert kind_of(functools.partial(forever), policy) == "await"
    assert kind_of(AsyncCallable(), policy) == "await"
    assert kind_of(Callable(), policy) == "thread"
    assert kind_of(leaf_functions.double, policy) == "thread"
    assert kind_of(leaf_functions.double, Policy(isolation="process")) == "process"
