"""The state that the calls of a client and its copies share: transports, slots, quota, breaker, telemetry."""

import asyncio
import concurrent.futures
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from loanasync._protocol.endpoints import APPROVE
from loanasync._runtime.breaker import Breaker
from loanasync._runtime.per_loop import PerLoop
from loanasync._runtime.retry import Quota, Sleep
from loanasync._settings import Timeout
from loanasync._telemetry.spans import Instruments
from loanasync._transport.base import Transport
from loanasync._transport.connection import DirectTransport
from loanasync._transport.session import SessionTransport
from loanasync._transport.waits import Caller, SharedTimer, Waits, end_wait
from loanasync.errors import CircuitOpenError, ClientClosedError

CLOSE_TIMEOUT = 5.0  # seconds for the end of a call in which no response is awaited any more
_POLL_INTERVAL = 0.02  # seconds between two looks at the calls in progress


class CallInProgress(Protocol):
    """A call in progress, as the closing of a client sees it."""

    guests: int
    timeout: Timeout

    @property
    def is_reading(self) -> bool: ...

    @property
    def is_settling(self) -> bool: ...

    @property
    def is_overdue(self) -> bool: ...


class Slots:
    """The slots of the concurrency limit, and the calls that wait for one, in the order of their arrival.

    A released slot is given to the first waiting call, so that no later call takes it. `asyncio.Semaphore`
    does the same, but it takes seven function calls for a slot that is free, and does not know the owners. If
    an interrupt ended a call between two steps, its slot would be lost.

    Args:
        count: The number of slots. None: as many as needed.
    """

    __slots__ = ("_count", "_owners", "_waiters")

    def __init__(self, count: int | None) -> None:
        self._count: float = math.inf if count is None else count
        self._owners: set[object] = set()
        self._waiters: deque[tuple[asyncio.Future[None], object]] = deque()

    @property
    def free(self) -> float:
        """The number of free slots; 0 while a call waits."""
        return self._count - len(self._owners)

    def has(self, owner: object) -> bool:
        """Return True if a call has a slot."""
        return owner in self._owners

    def take(self, owner: object) -> bool:
        """Take a slot for a call if one is free; return False if not."""
        if len(self._owners) >= self._count:
            return False
        self._owners.add(owner)
        return True

    async def wait(self, owner: object) -> None:
        """Wait until a slot is given to a call. It may have one after a cancellation, too."""
        waiter = asyncio.get_running_loop().create_future()
        try:
            self._waiters.append((waiter, owner))
            await waiter
        except BaseException:
            with suppress(ValueError):  # `release` has removed it
                self._waiters.remove((waiter, owner))
            raise

    def forget_waiting(self) -> None:
        """Forget the waiting calls, because their event loop was closed."""
        self._waiters.clear()

    def release(self, owner: object) -> None:
        """Give the slot of a call, if it has one, to the first waiting call, or make it free.

        This method may be called again after an interrupt. The first call may have passed the slot on.
        """
        self._owners.discard(owner)
        while self._waiters:
            waiter, next_owner = self._waiters[0]
            if not waiter.done():  # not cancelled
                if len(self._owners) >= self._count and next_owner not in self._owners:
                    break
                self._owners.add(next_owner)
                waiter.set_result(None)
            self._waiters.popleft()


class LoopResources:
    """The transport, the slots and the calls in progress of one event loop, and their callers' time limits.

    `PerLoop` creates it on the first call in an event loop, and closes it with `close`.

    Attributes:
        direct: The transport of direct connections, if they are used.
        transport: The transport for all other requests.
        is_own: The client has opened the session itself.
    """

    def __init__(self, transport: Transport | DirectTransport, slots: int | None) -> None:
        self.direct: DirectTransport | None = transport if isinstance(transport, DirectTransport) else None
        self.transport: Transport = (
            transport.through_session if isinstance(transport, DirectTransport) else transport
        )
        self._opened = transport
        self.is_own: bool = isinstance(self.transport, SessionTransport) and self.transport.is_owned
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.process: int = os.getpid()
        self.waits: Waits = Waits()
        self.slots: Slots = Slots(slots)
        self.timer: SharedTimer[Caller] = SharedTimer(self.loop, end_wait)
        self.calls: set[CallInProgress] = set()
        self._no_calls: asyncio.Event | None = None  # made by `close`, set when the last call has ended

    def end_call(self, call: CallInProgress) -> None:
        """Release the slot of a call that has ended, and remove the call."""
        self.slots.release(call)
        self.calls.discard(call)
        if self._no_calls is not None and not self.calls and not self.loop.is_closed():
            self._no_calls.set()

    async def wait(self, waiting: Awaitable[None]) -> None:
        """Await `waiting`, at most until the client is closed."""
        with suppress(TimeoutError):
            async with self.waits.limited_by(asyncio.timeout(None)):
                await waiting

    async def close(self, within: float | None) -> None:
        """Wait for the calls in progress, end the rest, and close the transport.

        Args:
            within: Seconds to wait for calls. Responses that calls of other clients await may take longer:
                they would be lost. None: the event loop ends, and has cancelled its tasks; wait only for
                the responses of approvals and for their settlements.
        """
        try:
            if within is None:
                await self._wait_while(lambda call: call.is_reading or call.is_settling)
            else:
                await self._wait_for_calls(within)
        finally:  # also if this task is cancelled
            self.waits.close()
            self.timer.close()
            try:
                await self._wait_while(lambda call: bool(call.guests) and call.is_reading)
            finally:
                try:
                    await self._opened.aclose()
                finally:
                    await self._wait_for_calls(CLOSE_TIMEOUT)

    async def _wait_for_calls(self, within: float) -> None:
        if self.calls:
            self._no_calls = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._no_calls.wait()

    async def _wait_while(self, condition: Callable[[CallInProgress], bool]) -> None:
        """Wait while a call satisfies a condition. Calls may join others since the client began to close."""
        while any(condition(each) and not each.is_overdue for each in self.calls):  # noqa: ASYNC110  (no event)
            await asyncio.sleep(_POLL_INTERVAL)


class Pipeline:
    """The state that the calls of a client and its copies share. `Run` executes one call with it."""

    def __init__(
        self,
        open_transport: Callable[[], Transport | DirectTransport],
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
            if resources.waits.is_closed:  # the event loop ends
                raise ClientClosedError  # noqa: TRY301
            if not resources.is_own:
                resources.transport.check()
        except Exception as error:
            self.telemetry.not_begun(operation, error)
            raise
        return resources

    @property
    def calls(self) -> list[CallInProgress]:
        """The calls in progress, in all event loops."""
        return [call for each in self._per_loop.values() for call in tuple(each.calls)]

    def open_circuit(self) -> CircuitOpenError | None:
        """Return the error of the circuit breaker if it is open, else None."""
        if self.breaker is None or self.breaker.is_quiet:
            return None
        wait = self.breaker.wait(self.now())
        return None if wait is None else CircuitOpenError(APPROVE.operation, wait)

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
