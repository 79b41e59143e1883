"""One object per event loop, created on first use, for clients that outlive an event loop."""

import asyncio
import concurrent.futures
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from types import AsyncGeneratorType


Value = TypeVar("Value")
Close = Callable[[Value, float | None], Awaitable[None]]

_POLL_INTERVAL = 0.1  # seconds between two checks that another thread's event loop still runs


async def _close_with_loop(
    value: Value, close: Close[Value], before: "WeakSet[_LoopValue[Any]]"
) -> AsyncGenerator[None, float | None]:
    """Wait at `yield`, then close `value`. The sent number is the time limit for closing, in seconds.

    Without a number, the event loop ends. Then the values in `before` are closed first.

    This is an asynchronous generator because event loops close their generators: at the end of `asyncio.run`,
    and when a generator is garbage collected. In both cases `value` is closed in its own event loop.
    """
    within: float | None = None
    try:
        within = yield
    finally:
        try:
            if within is None and before:
                await asyncio.sleep(0)  # all generators begin to close in one iteration of the event loop
                while any(each.is_closing for each in before):  # noqa: ASYNC110  (rare, and soon over)
                    await asyncio.sleep(_POLL_INTERVAL)
        finally:  # also if this task is cancelled
            await close(value, within)


class _LoopValue(Generic[Value]):
    """The value of one event loop, and the generator that closes it."""

    def __init__(self, value: Value, close: Close[Value], before: "WeakSet[_LoopValue[Any]]") -> None:
        self.value = value
        closer = _close_with_loop(value, close, before)
        self._closer = cast("AsyncGeneratorType[None, float | None]", closer)
        with suppress(StopIteration):  # the generator runs up to its `yield`, without an await
            self._closer.__anext__().__await__().send(None)

    @property
    def is_open(self) -> bool:
        return self._closer.ag_frame is not None

    @property
    def is_closing(self) -> bool:
        return self.is_open and self._closer.ag_running

    async def close(self, within: float) -> None:
        with suppress(StopAsyncIteration):
            await self._closer.asend(within)


# The values that have calls in progress.
_with_calls: WeakKeyDictionary[AbstractEventLoop, WeakSet[_LoopValue[Any]]] = WeakKeyDictionary()


class PerLoop(Generic[Value]):
    """Creates and closes one value for each event loop, in several threads and forked children.

    A client stores its transports in it, and a ledger its connections. `aclose` closes the values of all
    running event loops. At the end of `asyncio.run`, the value of that event loop is closed without waiting.

    `on_unclosed` is called if values are still open when their event loop was closed without closing its
    asynchronous generators, or when this object is garbage collected. A forked child never uses the values of
    its parent.

    `is_for_calls`: calls need the values. At the end of an event loop, they are closed after all others.
    """

    def __init__(
        self,
        make: Callable[[], Value],
        close: Close[Value],
        on_unclosed: Callable[[], None] | None = None,
        *,
        is_for_calls: bool = False,
    ) -> None:
        self._make = make
        self._close = close
        self._on_unclosed = on_unclosed
        self._is_for_calls = is_for_calls
        self._values: dict[AbstractEventLoop, _LoopValue[Value]] = {}
        self._process = os.getpid()
        self._inherited: list[object] = []

    def current(self) -> Value:
        """Return the value of the running event loop; create it on the first call in that loop."""
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._set_inherited_aside()
        try:
            return self._values[loop].value
        except KeyError:
            self._discard_closed_loops()
            before = _with_calls.setdefault(loop, WeakSet())
            entry = _LoopValue(self._make(), self._close, before if self._is_for_calls else WeakSet())
            if not self._is_for_calls:
                before.add(entry)
            self._values[loop] = entry
            return entry.value

    def values(self) -> list[Value]:
        """Return the values of all event loops that use them in this process."""
        return [] if self._process != os.getpid() else [each.value for each in tuple(self._values.values())]

    def _discard_closed_loops(self) -> None:
        # Other threads may add values meanwhile, so iterate over a copy.
        closed = [loop for loop in tuple(self._values) if loop.is_closed()]
        still_open = [entry for loop in closed if (entry := self._values.pop(loop, None)) and entry.is_open]
        if still_open and self._on_unclosed is not None:
            self._on_unclosed()

    def _set_inherited_aside(self) -> None:
        """Keep the values of the parent process, and use none of them.

        A forked child shares sockets and selectors with its parent. Closing them here, even by garbage
        collection, would disturb the calls of the parent.
        """
        self._inherited.append(self._values)
        self._values = {}
        self._process = os.getpid()

    async def aclose(self, within: float) -> None:
        """Close the values of all running event loops, each in its own event loop.

        The value of an event loop that does not run is closed when that event loop ends.

        Args:
            within: Seconds that each value may take to wait for its calls, before they are ended.
        """
        running = asyncio.get_running_loop()
        if self._process != os.getpid():
            self._set_inherited_aside()
        own = self._values.pop(running, None)
        closings = [
            (loop, asyncio.wrap_future(asyncio.run_coroutine_threadsafe(entry.close(within), loop)))
            for loop in tuple(self._values)
            if loop.is_running() and (entry := self._values.pop(loop, None))
        ]
        waits: list[Callable[[], Awaitable[None]]] = [partial(_wait_for_closing, *each) for each in closings]
        if own is not None:
            waits.insert(0, partial(own.close, within))
        failed: Exception | None = None
        try:
            for wait in waits:
                try:
                    await wait()
                except Exception as error:  # noqa: BLE001  (raised below: the others still wait for their calls)
                    failed = failed or error
        except BaseException:
            for _, closing in closings:
                closing.cancel()  # the value is then closed without waiting
            raise
        if failed is not None:
            raise failed

    def close_from_outside(self, within: float) -> None:
        """Close all values without a running event loop, including those of event loops that do not run.

        Args:
            within: Seconds that each value may take to wait for its calls, before they are ended.
        """
        if self._process != os.getpid():
            self._set_inherited_aside()
        self._discard_closed_loops()
        values, self._values = self._values, {}
        with ExitStack() as closings:  # a value that cannot be closed leaves no other one open
            for loop, entry in values.items():
                closings.callback(_close_from_outside, loop, entry, within)

    def __del__(self) -> None:
        is_open = any(entry.is_open for entry in self._values.values())
        if is_open and self._on_unclosed is not None and self._process == os.getpid():
            self._on_unclosed()


def _close_from_outside(loop: AbstractEventLoop, entry: _LoopValue[Any], within: float) -> None:
    if loop.is_running():  # in another thread
        closing = asyncio.run_coroutine_threadsafe(entry.close(within), loop)
        concurrent.futures.wait([closing], within + _POLL_INTERVAL)
    else:
        loop.run_until_complete(entry.close(within))


async def _wait_for_closing(loop: AbstractEventLoop, closing: "asyncio.Future[None]") -> None:
    """Wait until a value is closed in another event loop. The end of that event loop closes it, too."""
    while not closing.done() and loop.is_running():
        await asyncio.wait({closing}, timeout=_POLL_INTERVAL)
    if closing.done() and not closing.cancelled():
        closing.result()
