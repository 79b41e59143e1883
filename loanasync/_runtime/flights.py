"""Flights: the approvals in progress. Overlapping calls for the same approval share one flight."""

import asyncio
import os
from asyncio import CancelledError
from contextlib import suppress
from enum import Enum, auto
from functools import cached_property
from hashlib import blake2b
from logging import ERROR, INFO, WARNING
from secrets import token_bytes
from typing import Any
from weakref import WeakKeyDictionary

from attrs import evolve

from loanasync._forks import ForkSafe
from loanasync._log import log
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import sort_members
from loanasync._results import Known
from loanasync._runtime.guard import Claim, Guard, ProcessGuard
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.run import Run, copy_error
from loanasync._settings import RetryPolicy, Timeout
from loanasync._text import seen_body
from loanasync._transport.aiohttp_internals import is_replaced
from loanasync._waits import GRACE, Caller, wake
from loanasync.errors import (
    DeadlineExceededError,
    DecisionNotRecordedError,
    InFlightError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)

_MOMENT = 0.001  # seconds: a time limit cannot be 0
_CLOSE_TIMEOUT = 5.0  # seconds for the end of a flight in which no response is awaited any more
_POLL_INTERVAL = 0.02  # seconds between two looks at a flight of another event loop


class Phase(Enum):
    """The progress of a flight."""

    NEW = auto()  # its task has not begun
    FLYING = auto()  # a request may be sent
    SETTLING = auto()  # no further request is sent
    OVER = auto()  # `Flight.result` is set


class Flight(Run):
    """A `Run` of an approval in a separate task, whose result all of its callers get.

    Cancelling a caller does not cancel the exchange. When the last caller has left and nothing of a request
    was written, nothing is sent. Otherwise the response is read and settled.

    A call of the same event loop that finds a flight of the same approval joins it. The `Flight` that it has
    created is then used only for the time limit and the span of the call.

    Args:
        flights: The flights of its client.
        call: The call of the first caller.
        timeout: Its time limits.
        retry: Its retry policy.

    Attributes:
        memory: The memory of its approval.
        guard: The guard of its approval.
        customer: Digest of shop and customer, followed by that of the order.
        payload: Digest of the members of the body.
        callers: The futures in which the callers wait, all in the event loop of the flight.
        result: The outcome or the exception, when the flight is over.
    """

    phase = Phase.NEW
    task: asyncio.Task[None] | None = None
    claim: Claim | None = None
    result: Outcome | BaseException

    def __init__(self, flights: "Flights", call: Call, timeout: Timeout, retry: RetryPolicy) -> None:
        super().__init__(flights.pipeline, call, timeout, retry)
        self.flights = flights
        self.memory: Memory = flights.memory
        self.guard: Guard = flights.guard or self.memory.guard
        self.customer, self.payload = self.memory.digests_of(call)
        self.loop = asyncio.get_running_loop()
        self.callers: list[Caller] = []
        self._process = os.getpid()

    @property
    def is_dead(self) -> bool:
        """True if the flight will never end: its event loop was closed, or an interrupt ended its task."""
        if self.task is not None and self.task.done():
            return True
        return self.loop.is_closed() or (self.task is None and self.is_here)

    @property
    def is_here(self) -> bool:
        """True in the event loop of the flight."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:  # for example of garbage collection in a thread without an event loop
            return False

    @property
    def is_overdue(self) -> bool:
        """True if the flight should have ended. Its event loop may have stopped."""
        return self._pipeline.now() > self.started + self.timeout.longest + _CLOSE_TIMEOUT

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process in which the flight runs."""
        return self._process != os.getpid()

    def wake_callers(self) -> None:
        """Wake all callers."""
        is_here = self.is_here
        for caller in tuple(self.callers):
            if is_here:
                wake(caller)
                continue
            with suppress(RuntimeError):  # the event loop was closed
                self.loop.call_soon_threadsafe(wake, caller)

    def keep_unread(self) -> None:
        """Keep and log the result, which no caller receives."""
        self.guard.keep_unread(self)
        entry, result = (self.entry or "-")[:12], self.result
        if isinstance(result, DecisionNotRecordedError):
            if result.file is None:
                log(ERROR, _IN_MEMORY, entry, result.cause_type)
            else:
                log(WARNING, _IN_FILE, entry, result.cause_type)
        elif self.may_be_evaluated:
            log(INFO, _UNREAD, entry, type(result).__name__)


class Memory(ForkSafe):
    """The approvals of the clients that share it: those in progress, and those of the last hour.

    An approval is identified by service, shop, customer and order. The digests of these have a random secret,
    so that they cannot be guessed from personal data. All methods may be called from several event loops and
    threads.

    Attributes:
        guard: The approvals of the last hour, of clients without a ledger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guard = ProcessGuard()
        self._hash = blake2b(key=token_bytes(32), digest_size=16)  # copying it is faster than making one
        self._in_flight: dict[bytes, Flight] = {}

    def digests_of(self, call: Call) -> tuple[bytes, bytes]:
        """Return the digests of shop, customer and order, and the digest of the request's members."""
        customer = self._hash.copy()
        customer.update(f"{call.shop.base_url}\0{call.shop.shop_id}\0{call.fiscal_code}".encode())
        approval = customer.digest()
        if call.order_id:
            customer.update(f"\0{call.order_id}".encode(errors="surrogatepass"))
            approval += customer.digest()
        # The writer puts the fields in the same order each time, and before `extra`.
        request = self._hash.copy()
        body = seen_body(call.body)
        request.update(sort_members(body) if call.has_extra else body)
        return approval, request.digest()

    def find_or_add(self, own: Flight) -> Flight:
        """Return the flight of the same approval in progress, or else add this one."""
        while True:
            with self.lock:
                flight = self._in_flight.get(own.customer)
                if flight is not None and flight.is_inherited:
                    self._drop_inherited()
                    flight = None
                if flight is None:
                    self._in_flight[own.customer] = own
                    return own
            if not self._ended(flight):
                return flight

    def _ended(self, flight: Flight) -> bool:
        """Finish a dead flight, or give up an overdue one of another event loop; return False for others."""
        if flight.is_dead:
            self.finish(flight, CancelledError())
        elif flight.is_overdue and not flight.is_here:
            flight.guard.give_up(flight)
            self._remove(flight)
        else:
            return False
        return True

    def _drop_inherited(self) -> None:
        """Note the approvals that the parent process is requesting, and forget its flights."""
        for customer, flight in tuple(self._in_flight.items()):
            if flight.is_inherited:
                flight.guard.inherit(flight)
                del self._in_flight[customer]

    def _remove(self, flight: Flight) -> None:
        with self.lock:
            if self._in_flight.get(flight.customer) is flight:
                del self._in_flight[flight.customer]

    def finish(self, flight: Flight, result: Outcome | BaseException) -> None:
        """Set the result of a flight, and wake its callers."""
        with self.lock:
            # Another thread may have finished this dead flight, or garbage collection may have ended it.
            if flight.phase is Phase.OVER:
                return
            # Another thread may fork the process between two of these steps. Change the record before the
            # flight is removed, so that the child finds the approval in one of the two.
            if flight.claim is not None:
                flight.claim.abandon()
            self._remove(flight)
            flight.result, flight.phase = result, Phase.OVER
        flight.flights.own.discard(flight)
        if flight.callers:
            flight.wake_callers()
        else:
            flight.keep_unread()

    def finish_dead(self) -> None:
        """End the oldest flights whose event loop was closed or has stopped, as they keep their clients."""
        while True:
            with self.lock:
                oldest = next(iter(self._in_flight.values()), None)
            if oldest is None or oldest.is_inherited or not self._ended(oldest):
                return

    def forget(self) -> None:
        """Forget all approvals. A flight in progress settles in the forgotten guard."""
        with self.lock:
            self.guard, self._in_flight = ProcessGuard(), {}


class Memories(ForkSafe):
    """The memories of this process. Clients share one with their ledger, their session, or the process."""

    def __init__(self) -> None:
        super().__init__()
        self._memories: WeakKeyDictionary[object, Memory] = WeakKeyDictionary()

    def of(self, owner: object) -> Memory:
        """Return the memory of all clients with this ledger or session; that of the process for None."""
        owner = self if owner is None else owner
        with self.lock:
            memory = self._memories.get(owner)
            if memory is None:
                memory = self._memories[owner] = Memory()
            memories = tuple(self._memories.values())
        for each in memories:
            each.finish_dead()
        return memory

    def forget(self) -> None:
        """Empty all memories."""
        with self.lock:
            memories = tuple(self._memories.values())
        for each in memories:
            each.forget()


MEMORIES = Memories()


class Flights:
    """The approvals of a client and its copies. `approve` starts a flight, or joins one.

    Args:
        pipeline: The state that the calls of the client share.
        guard: The guard of the ledger; None without a ledger.
        memory: The memory that the client shares with others; None for a separate one.
    """

    def __init__(self, pipeline: Pipeline, guard: Guard | None, memory: Memory | None) -> None:
        self.pipeline = pipeline
        self.guard = guard
        self.own: set[Flight] = set()  # those that calls of this client have started
        self.shared = memory
        self._followers: set[asyncio.Task[Any]] = set()

    @cached_property
    def _separate(self) -> Memory:
        return Memory()

    @property
    def memory(self) -> Memory:
        """The memory for the approvals that begin now. Those that a mock decides are not remembered."""
        if self.shared is None or (self.guard is None and is_replaced()):
            return self._separate
        return self.shared

    async def approve(
        self, call: Call, timeout: Timeout, retry: RetryPolicy, *, waits_for_response: bool = False
    ) -> Outcome:
        """Return the decision of a new flight, or of the flight of the same approval.

        Args:
            call: The approval.
            timeout: Its time limits.
            retry: Its retry policy.
            waits_for_response: Wait for a response even if ``timeout.total`` has passed.

        Raises:
            LoanError: The call failed.
        """
        while True:
            own = Flight(self, call, timeout, retry)
            flight = own.memory.find_or_add(own)
            within = None if waits_for_response else timeout.total
            result: Outcome | BaseException | None
            if flight is own:
                self.own.add(own)
                result = _result_for(own, flight, is_late=await self._wait(own, flight, within))
            else:
                result = await self._join(own, flight, within)
            if isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del own, flight, result  # breaks the reference cycle of error, traceback and frame
            if result is not None:
                return result
            timeout = evolve(timeout, total=max(own.deadline - self.pipeline.now(), _MOMENT))

    async def known(self, call: Call, timeout: Timeout, retry: RetryPolicy) -> Known:
        """Return what the guard knows of an approval; `call` is one of the endpoint `KNOWN`.

        Raises:
            LoanError: The ledger cannot be used.
        """
        memory = self.memory
        with Run(self.pipeline, call, timeout, retry) as run:
            run.customer, run.payload = memory.digests_of(call)
            result = run.finish(await (self.guard or memory.guard).known(run))
        if isinstance(result, Known):
            return result
        try:
            raise result
        finally:
            del result  # breaks the reference cycle of error, traceback and frame

    async def _join(
        self, own: Flight, flight: Flight, within: float | None
    ) -> Outcome | BaseException | None:
        """Wait for another caller's flight. Return its result; None if this caller may send the request."""
        is_same = flight.payload == own.payload
        if not flight.is_here and is_same and await self._is_over_in_time(own, flight):
            return None  # the record has the result
        with own:
            own.telemetry.set_ledger_result("joined" if flight.is_here else "blocked")
            if not is_same:
                return own.finish(PayloadMismatchError("approve", flight.entry or "", "inflight"))
            if not flight.is_here:
                return own.finish(InFlightError("approve", flight.entry or ""))
            wait = self._wait if flight.flights is self else self._wait_as_guest
            try:
                is_late = await wait(own, flight, within)
            finally:  # before Python 3.12, the flight may have no span when this caller joins
                own.telemetry.link(flight.span)
            result = _result_for(own, flight, is_late=is_late)
            if result is None and own.deadline <= self.pipeline.now():
                result = _late_error(own)
            return own.finish(result)

    async def _is_over_in_time(self, own: Flight, flight: Flight) -> bool:
        """Wait for the end of a flight of another event loop, as for another process."""
        clock = asyncio.get_running_loop().time
        wait = flight.guard.wait if own.call.wait is None else own.call.wait
        until = clock() + min(wait, own.timeout.total)
        while flight.phase is not Phase.OVER and not flight.is_dead:
            if (left := until - clock()) <= 0 or own.resources.waits.is_closed:
                return False
            await asyncio.sleep(min(left, _POLL_INTERVAL))
        return True

    async def _wait_as_guest(self, own: Flight, flight: Flight, within: float | None) -> bool:
        """Wait for a flight of another client, at most until the own client is closed."""
        flight.resources.awaited.append(flight)
        try:
            async with own.resources.waits.limited_by(asyncio.timeout(None)):
                return await self._wait(own, flight, within)
        except TimeoutError:
            return True
        finally:
            flight.resources.awaited.remove(flight)

    async def _wait(self, own: Flight, flight: Flight, within: float | None) -> bool:
        """Wait for the end of a flight. Return True if the time of this caller is over before.

        When its time is over, the caller leaves at once if a response is awaited, or if it has joined and
        other callers still wait. Otherwise it waits for the end, which is near: the flight was withdrawn,
        because no caller is left, or its result is being recorded.
        """
        await self._wait_once(own, flight, within)
        if flight.phase is Phase.OVER:
            return False
        if not (flight.is_reading or (flight.callers and flight is not own)):
            await self._wait_once(own, flight, _CLOSE_TIMEOUT)
        return True

    async def _wait_once(self, own: Flight, flight: Flight, within: float | None) -> None:
        loop, timer = flight.loop, own.resources.timer
        caller = loop.create_future()
        flight.callers.append(caller)
        if flight is own and flight.task is None:
            flight.task = asyncio.Task(self._fly(flight), loop=loop, **_EAGER)
        if flight.phase is Phase.OVER:  # before this caller waits
            wake(caller)
        if within is not None:
            timer.set(caller, loop.time() + within + GRACE)
        try:
            await caller
        except BaseException:
            self._leave(flight, caller)
            raise
        finally:
            timer.discard(caller)
        if flight.phase is not Phase.OVER:
            self._leave(flight, caller)

    def _leave(self, flight: Flight, caller: Caller) -> None:
        if flight.is_inherited:
            return
        with suppress(ValueError):  # it has left already
            flight.callers.remove(caller)
        if flight.callers:
            return
        if flight.phase is Phase.OVER:  # in this iteration of the event loop
            flight.keep_unread()
            return
        with suppress(RuntimeError):  # the loop was closed
            self._withdraw(flight)  # now, because it may be sent in the next iteration of the event loop

    def _withdraw(self, flight: Flight) -> None:
        """Send no further request of a flight without callers. A response that is awaited is still read."""
        may_send = flight.phase in (Phase.NEW, Phase.FLYING) and not flight.is_reading
        if flight.task is None or not may_send:
            return
        flight.task.cancel()
        if flight.phase is Phase.NEW:  # its coroutine never runs
            self.pipeline.telemetry.not_begun(flight.call.endpoint.operation, CancelledError())
            flight.memory.finish(flight, CancelledError())

    async def _fly(self, flight: Flight) -> None:
        """Run a flight to its end, and set its result for all callers."""
        flight.task, flight.phase = asyncio.current_task(), Phase.FLYING
        try:
            result = await self._decide(flight)
        except BaseException as error:
            is_cancelled, is_read = isinstance(error, CancelledError | GeneratorExit), bool(flight.callers)
            flight.memory.finish(flight, type(error)() if is_cancelled else copy_error(error))
            if not (is_read or isinstance(error, Exception | CancelledError)):
                raise
        else:
            flight.memory.finish(flight, result)

    async def _decide(self, flight: Flight) -> Outcome | LoanError:
        """Claim the approval, send the request, read the response and settle the claim."""
        with flight:
            claim = await flight.guard.begin(flight)
            if not isinstance(claim, Claim):
                return flight.finish(claim)
            flight.claim = claim
            try:
                result = await flight.make_attempts()
            except GeneratorExit:  # the event loop was closed: nothing can be awaited
                raise
            except BaseException as error:  # also SystemExit, for example of a signal handler
                flight.release_slot()  # other calls need not wait for the settlement
                flight.claim, flight.phase = None, Phase.SETTLING
                if (decision := flight.received_decision()) is None:
                    await claim.interrupt(error)
                else:
                    await claim.settle(decision)
                raise
            flight.phase = Phase.SETTLING
            flight.release_slot()
            result = await claim.settle(result)
            flight.claim = None
            return flight.finish(result)

    def longest(self, timeout: Timeout, within: float | None) -> float:
        """Return how long the client may wait for its calls when it is closed.

        Without `within`, wait for a call with these limits, and for approvals that await a response. With it,
        wait longer only for responses that calls of other clients await.
        """
        reading = [each for each in tuple(self.own) if each.is_reading]
        if within is None:
            return max([timeout.longest, *(each.timeout.longest for each in reading)])
        return max([within, *(each.timeout.attempt for each in reading if each in each.resources.awaited)])

    def follow(self, task: "asyncio.Task[Any]") -> None:
        """Add a task that stores the decision of a flight elsewhere: `aclose` waits for it."""
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def aclose(self) -> None:
        """Wait until the flights of this event loop have settled, and their followers have ended."""
        current = asyncio.get_running_loop()
        tasks = {each.task for each in tuple(self.own) if each.loop is current and each.task is not None}
        tasks |= {task for task in tuple(self._followers) if task.get_loop() is current}
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)


def _result_for(own: Flight, flight: Flight, *, is_late: bool) -> Outcome | BaseException | None:
    """Return the result of a flight for the caller with the call `own`.

    Return None if nothing was sent, and this caller, which has joined, may try again.
    """
    is_own = flight is own
    if flight.phase is not Phase.OVER:  # a response may still arrive
        return _late_error(own, is_sent=True) if is_own else InFlightError("approve", flight.entry or "")
    result = flight.result
    if not isinstance(result, BaseException):
        return result
    if isinstance(result, Exception) or (is_own and not isinstance(result, CancelledError | GeneratorExit)):
        is_unsent = isinstance(result, LoanError) and result.outcome == "not_sent"
        return None if is_unsent and not is_own else copy_error(result)
    # Cancelled; or SystemExit or the like, which ends its own caller only.
    if flight.may_be_evaluated and not is_late:
        return OutcomeUnknownError("approve", flight.entry or "", "unknown", type(result).__name__)
    return _late_error(flight) if is_own or flight.may_be_evaluated else None


def _late_error(flight: Flight, *, is_sent: bool = False) -> LoanError:
    """Return the error of a caller whose time limit has passed."""
    return flight.transport_error(DeadlineExceededError, "TimeoutError", is_sent=is_sent)


# From Python 3.12 on, a flight begins at once, not in the next iteration of the event loop.
_EAGER: dict[str, Any] = {"eager_start": True} if hasattr(asyncio, "eager_task_factory") else {}
_UNREAD = "approve, entry %s: received the response after the last caller had left: %s"
_IN_FILE = (
    "approve, entry %s: the service decided after the last caller had left, and writing to the ledger failed "
    "(%s); the decision is in an orphan file: import it with import_orphans"
)
_IN_MEMORY = (
    "approve, entry %s: a decision may be lost, because the service decided after the last caller had left, "
    "and writing to the ledger (%s) and to an orphan file failed; this client writes it when the ledger "
    "works again; call approve again with the same data on the same client"
)
