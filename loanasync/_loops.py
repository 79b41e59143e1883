"""What belongs to one event loop, made where it is first needed, because loops come and go under a client."""

import asyncio
import os
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["PerLoop"]

Owned = TypeVar("Owned")


class PerLoop(Generic[Owned]):
    """One value for each running event loop: several `asyncio.run`, several threads, a forked child."""

    def __init__(self, make: Callable[[], Owned], close: Callable[[Owned], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._made: dict[AbstractEventLoop, Owned] = {}
        self._process = os.getpid()
        self._inherited: list[object] = []

    def here(self) -> Owned:
        """The running loop's own, made if this is the first time it is asked for."""
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._leave_to_parent()
        try:
            return self._made[loop]
        except KeyError:
            self._made = {each: own for each, own in self._made.items() if not each.is_closed()}
            own = self._made[loop] = self._make()
            return own

    def _leave_to_parent(self) -> None:
        # A forked child shares sockets and selector with its parent: closing them here, even by the
        # garbage collector, would disturb the parent's calls. So they are kept and never touched.
        self._inherited.append(self._made)
        self._made = {}
        self._process = os.getpid()

    async def aclose(self) -> None:
        """Close what belongs to this loop here, and what belongs to other running loops there."""
        running = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._leave_to_parent()
        made, self._made = self._made, {}
        for loop, own in made.items():
            if loop is running:
                await self._close(own)
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(self._closing(own), loop)
                await asyncio.wrap_future(closing)

    async def _closing(self, own: Owned) -> None:
        await self._close(own)
