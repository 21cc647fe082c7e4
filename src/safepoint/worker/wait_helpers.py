"""Waits for an event with a time limit."""

import asyncio

__all__ = ["set_within"]


async def set_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait until `event` is set, but no longer than `seconds`.

    Even if no time is left, other tasks run once, so that a loop around this cannot block the event loop.

    Returns:
        Whether the event is set.
    """
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await event.wait()
    except TimeoutError:
        return False
    return True
