"""Check for unread data, such as the end of a connection, after the event loop was blocked."""

import asyncio
import select
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

HasUnreadData: TypeAlias = Callable[[], object]
_TURNS = 10  # of the event loop; the end of a connection is noticed in two or three


def unread_data_check(transport: asyncio.BaseTransport | None) -> HasUnreadData:
    """Return a function that checks a connection for data that the event loop has not read, or its end.

    A blocked event loop, as between two notebook cells, does not notice a connection that the server closed.
    A request that is then written is lost, and its outcome is unknown.
    """
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or (number := socket.fileno()) < 0:
        return lambda: False
    if not hasattr(select, "poll"):  # pragma: no cover  (Windows, whose select takes any number)
        return lambda: select.select([number], [], [], 0)[0]
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return partial(poll.poll, 0)


async def read_pending(has_unread_data: HasUnreadData) -> None:
    """Yield to the event loop until it has read the data that arrived."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if not has_unread_data():
            return
