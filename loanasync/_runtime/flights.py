"""Flights: the approvals in progress. Overlapping calls for the same approval share one flight."""

import asyncio
import os
from asyncio import CancelledError
from contextlib import suppress
from enum import Enum, auto
from hashlib import blake2b
from logging import ERROR, INFO, WARNING
from secrets import token_bytes
from typing import Any

from attrs import evolve

from loanasync._forks import ForkSafe
from loanasync._log import log
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import sort_members
from loanasync._runtime.guard import Claim, Guard
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.run import Run, copy_error
from loanasync._settings import RetryPolicy, Timeout
from loanasync._text import seen_body
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


class Phase(Enum):
    """The progress of a flight."""

    NEW = auto()  # its task has not begun
    FLYING = auto()  # a request may be sent
    SETTLING = auto()  # no further request is sent
    OVER = auto()  # `Flight.result` is set


class Flight(Run):
    """A `Run` of an approval in a separate task, whose result all of its callers get.

    Cancelling a caller does not cancel the exchange. When the last caller has left and nothing of a request
    was written, nothing is sent. Otherwise the response is read and settled. The callers may be in other
    event loops and threads.

    A call that finds a flight of the same approval joins it. The `Flight` that it has created is then used
    only for the time limit and the span of the call.

    Args:
        pipeline: As for `Run`.
        call: The call of the first caller.
        timeout: Its time limits.
        retry: Its retry policy.
        customer: Digest of shop, customer and scope.
        payload: Digest of the members of the body.

    Attributes:
        callers: The futures in which the callers wait.
        result: The outcome or the exception, when the flight is over.
    """

    phase = Phase.NEW
    task: asyncio.Task[None] | None = None
    claim: Claim | None = None
    result: Outcome | BaseException

    def __init__(
        self,
        pipeline: Pipeline,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
        customer: bytes,
        payload: bytes,
    ) -> None:
        super().__init__(pipeline, call, timeout, retry)
        self.customer = customer
        self.payload = payload
        self.loop = asyncio.get_running_loop()
        self.callers: list[Caller] = []
        self._process = os.getpid()

    @property
    def is_dead(self) -> bool:
        """True if the flight will never end, because its event loop was closed."""
        return self.loop.is_closed() or (self.task is not None and self.task.done())

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process in which the flight runs."""
        return self._process != os.getpid()

    def wake_callers(self) -> None:
        """Wake all callers."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # garbage collection ended the flight in a thread without an event loop
            running = None
        for caller in tuple(self.callers):  # a copy: callers in other threads may leave meanwhile
            if (loop := caller.get_loop()) is running:
                wake(caller)
                continue
            with suppress(RuntimeError):  # the caller's event loop was closed
                loop.call_soon_threadsafe(wake, caller)

    def report_unread(self) -> None:
        """Log the result of a flight that no caller receives."""
        entry, result = (self.entry or "-")[:12], self.result
        if isinstance(result, DecisionNotRecordedError):
            if result.file is None:
                log(ERROR, _IN_MEMORY, entry, result.cause_type)
            else:
                log(WARNING, _IN_FILE, entry, result.cause_type)
        elif self.may_be_evaluated:
            log(INFO, _UNREAD, entry, type(result).__name__)


class Flights(ForkSafe):
    """The approvals in progress of a client and its copies. `approve` starts a flight, or joins one.

    An approval is identified by shop, customer and scope. The digests of these have a random secret, so that
    they cannot be guessed from personal data. All methods may be called from several event loops and threads.
    """

    def __init__(self, pipeline: Pipeline, guard: Guard) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._guard = guard
        self._hash = blake2b(key=token_bytes(32), digest_size=16)  # copying it is faster than making one
        self._in_flight: dict[bytes, Flight] = {}
        self._followers: set[asyncio.Task[Any]] = set()

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
        try:
            customer, payload = self._digests_of(call)
        except LoanError as error:
            self._pipeline.telemetry.not_begun(call.endpoint.operation, error)
            raise
        while True:
            own = Flight(self._pipeline, call, timeout, retry, customer, payload)
            flight = self._find_or_add(own)
            within: float | None = timeout.total
            if waits_for_response:
                # Another event loop may be closed, and its flight then never ends.
                within = None if flight.loop is own.loop else flight.timeout.longest + _CLOSE_TIMEOUT
            if flight is own:
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
            timeout = evolve(timeout, total=max(own.deadline - self._pipeline.now(), _MOMENT))

    def _find_or_add(self, own: Flight) -> Flight:
        """Return the flight of the same approval in progress, or else add this one, which `_wait` starts."""
        while True:
            with self.lock:
                flight = self._in_flight.get(own.customer)
                if flight is not None and flight.is_inherited:
                    self._drop_inherited()
                    flight = None
                if flight is None:
                    self._in_flight[own.customer] = own
                    return own
            if not flight.is_dead:
                return flight
            self._finish(flight, CancelledError())

    def _drop_inherited(self) -> None:
        """Note the approvals that the parent process is requesting, and forget its flights."""
        inherited, self._in_flight = self._in_flight, {}
        for flight in inherited.values():
            self._guard.inherit(flight)

    async def _join(
        self, own: Flight, flight: Flight, within: float | None
    ) -> Outcome | BaseException | None:
        """Wait for another caller's flight. Return its result; None if this caller may send the request."""
        with own:
            own.telemetry.set_ledger_result("joined")
            try:
                if flight.payload != own.payload:
                    return own.finish(PayloadMismatchError("approve", flight.entry or "", "inflight"))
                is_late = await self._wait(own, flight, within)
            finally:  # before Python 3.12, the flight may have no span when this caller joins
                own.telemetry.link(flight.span)
            result = _result_for(own, flight, is_late=is_late)
            if result is None and own.deadline <= self._pipeline.now():
                result = _late_error(own)
            return own.finish(result)

    async def _wait(self, own: Flight, flight: Flight, within: float | None) -> bool:
        """Wait for the end of a flight. Return True if the time of this caller is over before.

        When its time is over, the caller leaves at once if a response is awaited, or if it has joined and
        other callers still wait. Otherwise it waits for the end, which is near: the flight was withdrawn,
        because no caller is left, or its result is being recorded.
        """
        await self._wait_once(own, flight, within)
        if flight.phase is Phase.OVER:
            return False
        is_shared = flight.callers or flight.loop is not asyncio.get_running_loop()
        if not (flight.is_reading or (is_shared and flight is not own)):
            await self._wait_once(own, flight, _CLOSE_TIMEOUT)
        return True

    async def _wait_once(self, own: Flight, flight: Flight, within: float | None) -> None:
        loop, timer = asyncio.get_running_loop(), own.resources.timer
        caller = loop.create_future()
        flight.callers.append(caller)
        if flight is own and flight.task is None:
            flight.task = asyncio.Task(self._fly(flight), loop=loop, **_EAGER)
        if flight.phase is Phase.OVER:  # before the caller was added, for example in another thread
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
            self._keep_unread(flight)
            return
        with suppress(RuntimeError):  # the loop was closed
            if caller.get_loop() is flight.loop:
                self._withdraw(flight)  # now, because it may be sent in the next iteration of the event loop
            else:
                flight.loop.call_soon_threadsafe(self._withdraw, flight)

    def _withdraw(self, flight: Flight) -> None:
        """Send no further request of a flight without callers. A response that is awaited is still read."""
        may_send = flight.phase in (Phase.NEW, Phase.FLYING) and not flight.is_reading
        if flight.callers or flight.task is None or not may_send:
            return
        flight.task.cancel()
        if flight.phase is Phase.NEW:  # its coroutine never runs
            self._pipeline.telemetry.not_begun(flight.call.endpoint.operation, CancelledError())
            self._finish(flight, CancelledError())

    async def _fly(self, flight: Flight) -> None:
        """Run a flight to its end, and set its result for all callers."""
        flight.phase = Phase.FLYING
        try:
            result = await self._decide(flight)
        except BaseException as error:
            is_cancelled, is_read = isinstance(error, CancelledError | GeneratorExit), bool(flight.callers)
            self._finish(flight, type(error)() if is_cancelled else copy_error(error))
            if not (is_read or isinstance(error, Exception | CancelledError)):
                raise
        else:
            self._finish(flight, result)

    async def _decide(self, flight: Flight) -> Outcome | LoanError:
        """Claim the approval, send the request, read the response and settle the claim."""
        with flight:
            claim = await self._guard.begin(flight)
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

    def _finish(self, flight: Flight, result: Outcome | BaseException) -> None:
        """Set the result of a flight, and wake its callers."""
        with self.lock:
            # Another thread may have finished this dead flight, or garbage collection may have ended it.
            if flight.phase is Phase.OVER:
                return
            # Another thread may fork the process between two of these steps. Change the record before the
            # flight is removed, so that the child finds the approval in one of the two.
            if flight.claim is not None:
                flight.claim.abandon()
            if self._in_flight.get(flight.customer) is flight:
                del self._in_flight[flight.customer]
            flight.result, flight.phase = result, Phase.OVER
        if flight.callers:
            flight.wake_callers()
        else:
            self._keep_unread(flight)

    def _keep_unread(self, flight: Flight) -> None:
        """Keep and log the result of a flight that no caller receives."""
        self._guard.keep_unread(flight)
        flight.report_unread()

    def longest(self, timeout: Timeout) -> float:
        """Return how long a call with these limits, or an approval that awaits a response, may take."""
        reading = [each.timeout.longest for each in tuple(self._in_flight.values()) if each.is_reading]
        return max([timeout.longest, *reading])

    def follow(self, task: "asyncio.Task[Any]") -> None:
        """Add a task that stores the decision of a flight elsewhere: `aclose` waits for it."""
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def aclose(self) -> None:
        """Wait until the flights of this event loop have settled, and their followers have ended."""
        current = asyncio.get_running_loop()
        flights = tuple(self._in_flight.values())
        tasks = {flight.task for flight in flights if flight.loop is current and flight.task is not None}
        tasks |= {task for task in tuple(self._followers) if task.get_loop() is current}
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)

    def _digests_of(self, call: Call) -> tuple[bytes, bytes]:
        """Return the digest of shop, customer and scope, and the digest of the request's members."""
        names = (call.shop.base_url, call.shop.shop_id, call.fiscal_code or "", *self._guard.parts(call))
        customer = self._hash.copy()
        customer.update("\0".join(map(str, names)).encode(errors="surrogatepass"))
        # The writer puts the fields in the same order each time, and before `extra`.
        request = self._hash.copy()
        body = seen_body(call.body)
        request.update(sort_members(body) if call.has_extra else body)
        return customer.digest(), request.digest()


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
