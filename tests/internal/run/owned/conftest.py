"""Owns how tests of programs leave nothing for other tests: what asyncio has of programs that were ended under it."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def programs_of_closed_loops() -> Iterator[None]:
    """Collect what belongs to the event loop of the test, now.

    A program that is ended with a leaf may be collected by the system after the test's event loop was closed. Its
    transport is then never told, and warns when it is collected, which would be in the middle of another test.
    """
    yield
    gc.collect()
