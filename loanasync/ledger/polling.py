"""Waiting for an entry by looking at it again and again, less often the longer it takes."""

import asyncio
from collections.abc import Awaitable, Callable

from loanasync.ledger.model import Entry, State

_FIRST, _LAST = 0.005, 0.1  # seconds between two looks


async def wait(get: Callable[[str], Awaitable[Entry | None]], key: str, within: float) -> Entry | None:
    """The entry as soon as it is not INFLIGHT; after so many seconds as it stands then."""
    clock = asyncio.get_running_loop().time
    until = clock() + within
    pause = _FIRST
    while True:
        entry = await get(key)
        left = until - clock()
        if entry is None or entry.state is not State.INFLIGHT or left <= 0:
            return entry
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LAST)
