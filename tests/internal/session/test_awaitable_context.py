"""One call, both ways: awaited, or entered."""

import pytest

from safepoint.session.session import AwaitableContext


class Door:
    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_awaited_it_is_open_and_its_caller_closes_it() -> None:
    door = Door()

    async def opens() -> Door:
        return door

    assert await AwaitableContext(opens) is door
    assert not door.closed


async def test_entered_it_is_closed_at_the_end_also_after_an_error() -> None:
    door = Door()

    async def opens() -> Door:
        return door

    with pytest.raises(ValueError, match="inside"):
        async with AwaitableContext(opens) as opened:
            assert opened is door
            assert not door.closed
            raise ValueError("inside")
    assert door.closed == 1


async def test_what_could_not_be_opened_is_not_closed() -> None:
    async def opens() -> Door:
        raise ValueError("stuck")

    with pytest.raises(ValueError, match="stuck"):
        async with AwaitableContext(opens):
            pytest.fail("it is not open")
