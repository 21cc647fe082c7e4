"""Owns one way to wait: until something has happened, or so many seconds have gone. Knows nothing of what it is."""

import asyncio

__all__ = ["set_within"]


async def set_within(seconds: float, event: asyncio.Event) -> bool:
    """True: it has happened by then. Others have their turn even where there is no time left."""
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await event.wait()
    except TimeoutError:
        return False
    return True
