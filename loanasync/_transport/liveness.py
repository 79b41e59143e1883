"""The check whether a connection has unread data or was closed while the event loop was blocked."""

import asyncio
import select
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

HasUnreadData: TypeAlias = Callable[[], object]
_MAX_TURNS = 10  # iterations of the event loop; it notices the end of a connection within two or three


def unread_data_check(transport: asyncio.BaseTransport | None) -> HasUnreadData:
    """Return a function that checks the socket of a connection for unread data or end of file.

    A blocked event loop does not notice that the server has closed a connection; between two notebook cells,
    for example, the event loop does not run. A request that is written to such a connection is lost, and its
    outcome is unknown.
    """
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or (number := socket.fileno()) < 0:
        return lambda: False
    if not hasattr(
        select, "poll"
    ):  # pragma: no cover  (Windows has no poll, but its select takes any file number)
        return lambda: select.select([number], [], [], 0)[0]
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return partial(poll.poll, 0)


async def read_pending(has_unread_data: HasUnreadData) -> None:
    """Yield to the event loop until it has read the received data, for a few iterations at most."""
    for _ in range(_MAX_TURNS):
        await asyncio.sleep(0)
        if not has_unread_data():
            return
