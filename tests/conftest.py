"""Owns how tests run: async test functions on the event loops they ask for, each bounded in time."""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from safepoint.abort import use_clock
from safepoint.testing import FakeClock

TORTURE = bool(os.environ.get("SAFEPOINT_TORTURE"))
SECONDS = 400.0 if TORTURE else 40.0
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _eager() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # Python 3.12+
    return loop


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": _uvloop}
if sys.version_info >= (3, 12):
    LOOPS["eager"] = _eager


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")` runs async tests on each loop there is."""
    if inspect.iscoroutinefunction(metafunc.function):
        marker = metafunc.definition.get_closest_marker("backends")
        names = marker.args if marker else ("asyncio",)
        metafunc.fixturenames.append("event_loop_name")
        metafunc.parametrize("event_loop_name", [name for name in names if name in LOOPS])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run an async test to its end, then check that it left no task behind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await pyfuncitem.obj(**arguments)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"the test left tasks behind: {left}"

    with asyncio.Runner(loop_factory=LOOPS[str(pyfuncitem.callspec.params["event_loop_name"])]) as runner:
        runner.run(bounded())
    return True


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """Fake time for everything the test makes."""
    fake = FakeClock()
    with use_clock(fake):
        yield fake


def counts(usual: int, full: int) -> int:
    """How often to repeat a race: the usual number in `make test`, the full one in `make torture`."""
    return full if TORTURE else usual
