"""Check for unread data, such as the end of a connection, after the event loop was blocked."""

import asyncio
import select
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

HasNews: TypeAlias = Callable[[], object]
_TURNS = 10  # of the loop, at the most; an end is heard of in two or three


def listener(transport: asyncio.BaseTransport | None) -> HasNews:
    """What tells whether something has come that the loop has not read: of a connection at rest, its end.

    A loop that stands still, for the next cell or for a long computation, does not see the server hang up.
    What is then written is lost, and nobody could say whether it had been read.
    """
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or (number := socket.fileno()) < 0:
        return lambda: False
    if not hasattr(select, "poll"):  # pragma: no cover  (Windows, whose select takes any number)
        return lambda: select.select([number], [], [], 0)[0]
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return partial(poll.poll, 0)


async def hear_out(has_news: HasNews) -> None:
    """Let the loop read what has come."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if not has_news():
            return
