"""The state that the calls of a client and its copies share: transports, slots, quota, breaker, telemetry."""

import asyncio
import concurrent.futures
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from loanasync._protocol.endpoints import APPROVE
from loanasync._runtime.breaker import Breaker
from loanasync._runtime.per_loop import PerLoop
from loanasync._runtime.retry import Quota, Sleep
from loanasync._telemetry import Instruments
from loanasync._transport.base import Transport
from loanasync._waits import Caller, SharedTimer, Waits, end_wait
from loanasync.errors import CircuitOpenError, ClientClosedError

_POLL_INTERVAL = 0.02  # seconds between two looks at the responses that calls of other clients await


class Awaited(Protocol):
    """A request of an approval that calls of other clients wait for."""

    @property
    def is_reading(self) -> bool: ...

    @property
    def is_overdue(self) -> bool: ...


class Slots:
    """The number of free slots, and the calls that wait for one, in the order in which they arrived.

    A released slot is given to the first waiting call, so that no later call takes it. `asyncio.Semaphore`
    does the same, but takes seven function calls for a slot that is free.

    Args:
        count: The number of slots. None: as many as needed.
    """

    __slots__ = ("_waiters", "free")

    def __init__(self, count: int | None) -> None:
        self.free: float = math.inf if count is None else count  # 0 while a call waits
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free; return False if not."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def wait(self) -> None:
        """Wait until a slot is released to this call."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # the slot was given to this call at the same time
                self.release()
            else:
                with suppress(ValueError):  # `release` has removed it
                    self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Give a slot to the first waiting call, or make it free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # not cancelled
                waiter.set_result(None)
                return
        self.free += 1


class LoopResources:
    """The transport, slots and callers' time limits of one event loop, and the number of its calls.

    `PerLoop` creates it on the first call in an event loop, and closes it with `close`.
    """

    def __init__(self, transport: Transport, slots: int | None) -> None:
        self.transport = transport
        self.waits: Waits = Waits()
        self.slots: Slots = Slots(slots)
        self.timer: SharedTimer[Caller] = SharedTimer(asyncio.get_running_loop(), end_wait)
        self.calls: int = 0
        self.awaited: list[Awaited] = []  # one element for each waiting call of another client
        self._no_calls: asyncio.Event | None = None  # made by `close`, set when the last call has ended

    def end_call(self) -> None:
        """Count a call as ended."""
        self.calls -= 1
        if not self.calls and self._no_calls is not None:
            self._no_calls.set()

    async def wait(self, waiting: Awaitable[None]) -> None:
        """Await `waiting`, at most until the client is closed."""
        with suppress(TimeoutError):
            async with self.waits.limited_by(asyncio.timeout(None)):
                await waiting

    async def close(self, within: float) -> None:
        """Wait at most `within` seconds for the calls in progress, end the rest, and close the transport.

        Wait longer for responses that calls of other clients await: they would be lost.
        """
        try:
            if self.calls:
                self._no_calls = asyncio.Event()
                async with asyncio.timeout(within):
                    await self._no_calls.wait()
        except TimeoutError:
            pass
        finally:  # also if this task is cancelled
            self.waits.close()
            self.timer.close()
            try:
                # Calls of other clients may have joined since the client began to close.
                while any(each.is_reading and not each.is_overdue for each in self.awaited):  # noqa: ASYNC110  (no event)
                    await asyncio.sleep(_POLL_INTERVAL)
            finally:
                await self.transport.aclose()


class Pipeline:
    """The state that the calls of a client and its copies share. `Run` executes one call with it."""

    def __init__(
        self,
        open_transport: Callable[[], Transport],
        telemetry: Instruments,
        quota: Quota,
        slots: int | None,
        *,
        breaker: Breaker | None,
        on_unclosed: Callable[[], None] | None,
        now: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        # A method of this object would create a reference cycle. Without a cycle, an unclosed client is
        # garbage collected as soon as it is dropped, and `on_unclosed` warns at once.
        self._per_loop = PerLoop(
            lambda: LoopResources(open_transport(), slots), LoopResources.close, on_unclosed
        )
        self.telemetry = telemetry
        self.quota = quota
        self.breaker = breaker
        self.now = now
        self.sleep = sleep
        self.is_closed: bool = False
        self._closing: concurrent.futures.Future[None] | None = None  # the last use of `closing`

    def open(self) -> None:
        """Open the transport of the running event loop, which its first call does otherwise."""
        self._per_loop.current()

    def resources(self, operation: str) -> LoopResources:
        """Return the resources of the running event loop, for a call that begins.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: The client's session belongs to another event loop.
        """
        try:
            if self.is_closed:
                raise ClientClosedError  # noqa: TRY301  (recorded like the errors of the user's session)
            resources = self._per_loop.current()
            resources.transport.check()
        except Exception as error:
            self.telemetry.not_begun(operation, error)
            raise
        return resources

    def open_circuit(self, _shop: object = None) -> CircuitOpenError | None:
        """Return the error of the circuit breaker if it is open, else None."""
        if self.breaker is None or not self.breaker.circuits:
            return None
        refusal = self.breaker.refusal(self.now())
        return None if refusal is None else CircuitOpenError(APPROVE.operation, *refusal)

    @asynccontextmanager
    async def closing(self, drain: float) -> AsyncIterator[None]:
        """Run the block after that of an earlier `aclose` in progress.

        Do not wait for ever: the event loop of the earlier one may be closed, or belong to a parent process.
        """
        while (other := self._closing) is not None and not other.done():
            done, _ = await asyncio.wait((asyncio.wrap_future(other),), timeout=2 * drain)
            if not done:
                break
        closing = self._closing = concurrent.futures.Future()
        try:
            yield
        finally:
            closing.set_result(None)

    async def aclose(self, drain: float) -> None:
        """Accept no more calls, wait at most `drain` seconds for calls in progress, close the transports."""
        self.is_closed = True
        await self._per_loop.aclose(drain)

    def close_from_outside(self, drain: float) -> None:
        """Close without a running event loop, for example in a synchronous pytest fixture."""
        self.is_closed = True
        self._per_loop.close_from_outside(drain)
