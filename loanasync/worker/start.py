"""A broker's first steps on its server, repeated for a while when the server is restarting."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from loanasync._log import LOGGER

_WITHIN = 30.0  # seconds in which a restarted server has loaded its data and answers
_PAUSE = 0.5


async def when_reached(step: Callable[[], Awaitable[None]], away: tuple[type[Exception], ...]) -> None:
    """Run a step that may be repeated, until the server answers.

    Args:
        step: The step.
        away: The errors of a server that is away; after 30 seconds the last of them is raised.
    """
    until = time.monotonic() + _WITHIN
    while True:
        try:
            return await step()
        except away as error:
            if time.monotonic() >= until:
                raise
            LOGGER.warning("the queue cannot be opened (%s): tried again soon", type(error).__name__)
        await asyncio.sleep(_PAUSE)
