"""One object for each event loop, made when it is first needed: a client outlives event loops."""

import asyncio
import concurrent.futures
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from types import AsyncGeneratorType


Owned = TypeVar("Owned")
Close = Callable[[Owned, float], Awaitable[None]]

_LOOK = 0.1  # seconds between two looks whether another thread's loop still runs


async def _life(own: Owned, close: Close[Owned]) -> AsyncGenerator[None, float]:
    """Stand until `own` is to be closed, which takes the seconds that are sent.

    A loop closes the asynchronous generators that were begun in it before it is closed itself (asyncio.run
    does so, and all that is built on its Runner), and one without a reference as soon as it is collected:
    either way the connections end where they began.
    """
    within = 0.0
    try:
        within = yield
    finally:
        await close(own, within)


class _Entry(Generic[Owned]):
    """One loop's own and its life."""

    def __init__(self, own: Owned, close: Close[Owned]) -> None:
        self.own = own
        self._life = cast("AsyncGeneratorType[None, float]", _life(own, close))
        with suppress(StopIteration):  # it has reached its yield, without a turn of the loop
            self._life.__anext__().__await__().send(None)

    @property
    def is_open(self) -> bool:
        return self._life.ag_frame is not None

    async def close(self, within: float) -> None:
        with suppress(StopAsyncIteration):
            await self._life.asend(within)


class PerLoop(Generic[Owned]):
    """One value for each running event loop: several `asyncio.run`, several threads, a forked child.

    Each is closed by `aclose`, or at once when its loop ends. If neither happens, `on_unclosed` is called.
    """

    def __init__(
        self,
        make: Callable[[], Owned],
        close: Close[Owned],
        on_unclosed: Callable[[], None] | None = None,
    ) -> None:
        self._make = make
        self._close = close
        self._on_unclosed = on_unclosed
        self._made: dict[AbstractEventLoop, _Entry[Owned]] = {}
        self._process = os.getpid()
        self._inherited: list[object] = []

    def here(self) -> Owned:
        """The running loop's own, made if this is the first time it is asked for."""
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._leave_to_parent()
        try:
            return self._made[loop].own
        except KeyError:
            self._forget_closed_loops()
            entry = self._made[loop] = _Entry(self._make(), self._close)
            return entry.own

    def _forget_closed_loops(self) -> None:
        closed = [
            loop for loop in tuple(self._made) if loop.is_closed()
        ]  # other threads add theirs meanwhile
        left_open = [entry for loop in closed if (entry := self._made.pop(loop, None)) and entry.is_open]
        if left_open and self._on_unclosed is not None:
            self._on_unclosed()  # that loop was closed by hand, with connections open in it

    def _leave_to_parent(self) -> None:
        # A forked child shares sockets and selector with its parent: closing them here, even by the
        # garbage collector, would disturb the parent's calls. So they are kept and never touched.
        self._inherited.append(self._made)
        self._made = {}
        self._process = os.getpid()

    async def aclose(self, within: float) -> None:
        """Close what belongs to this loop here, and what belongs to other running loops there.

        What belongs to a loop that does not run is closed when that loop ends.

        Args:
            within: Seconds that each may take before it is closed at once.
        """
        running = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._leave_to_parent()
        here = self._made.pop(running, None)
        closings = [
            (loop, asyncio.wrap_future(asyncio.run_coroutine_threadsafe(entry.close(within), loop)))
            for loop in tuple(self._made)
            if loop.is_running() and (entry := self._made.pop(loop, None))
        ]
        try:
            if here is not None:
                await here.close(within)
            for loop, closing in closings:
                await _closed_there(loop, closing)
        except BaseException:
            for _, closing in closings:
                closing.cancel()  # which closes at once
            raise

    def close_from_outside(self, within: float) -> None:
        """`aclose` for who stands in no loop: what belongs to loops that do not run is closed there, too.

        Args:
            within: Seconds that each may take before it is closed at once.
        """
        if self._process != os.getpid():
            self._leave_to_parent()
        self._forget_closed_loops()
        made, self._made = self._made, {}
        for loop, entry in made.items():
            if loop.is_running():  # in another thread
                closing = asyncio.run_coroutine_threadsafe(entry.close(within), loop)
                concurrent.futures.wait([closing], within + _LOOK)
            else:
                loop.run_until_complete(entry.close(within))

    def __del__(self) -> None:
        left_open = any(entry.is_open for entry in self._made.values())
        if left_open and self._on_unclosed is not None and self._process == os.getpid():
            self._on_unclosed()


async def _closed_there(loop: AbstractEventLoop, closing: "asyncio.Future[None]") -> None:
    while not closing.done() and loop.is_running():  # a loop that ends meanwhile closes its own by itself
        await asyncio.wait({closing}, timeout=_LOOK)
    if closing.done() and not closing.cancelled():
        closing.result()
