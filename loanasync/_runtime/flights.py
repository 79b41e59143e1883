"""Flights: the approvals in progress. Overlapping calls for the same approval share one flight."""

import asyncio
import os
import threading
from asyncio import CancelledError
from contextlib import suppress
from hashlib import blake2b
from logging import ERROR, INFO, WARNING
from secrets import token_bytes
from typing import Any

from attrs import evolve

from loanasync._forks import free_after_fork
from loanasync._log import log
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import sort_members
from loanasync._runtime.guard import Claim, Guard
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.run import Run, copy_error, returned
from loanasync._settings import RetryPolicy, Timeout
from loanasync._waits import GRACE, Waiter, wake
from loanasync.errors import (
    DeadlineExceededError,
    DecisionNotRecordedError,
    InFlightError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)

_CLOSE_TIMEOUT = 5.0  # seconds for settling the last approvals


class Flight:
    """One approval in progress: a separate task, whose result all of its callers get.

    Cancelling a caller does not cancel the exchange. When the last caller has left and nothing of a request
    was written, nothing is sent. Otherwise the response is read and settled. The callers may be in other
    event loops and threads.

    Args:
        run: The call of the first caller, whose time limits and retry policy apply.
    """

    __slots__ = (
        "_process",
        "claim",
        "has_begun",
        "is_over",
        "is_settling",
        "is_withdrawn",
        "loop",
        "result",
        "run",
        "task",
        "waiters",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[None] | None = None
        self.claim: Claim | None = None
        self.waiters: list[Waiter] = []
        self.has_begun = False
        self.is_settling = False  # no further request is sent
        self.is_over = False
        self.is_withdrawn = False  # the last caller has left before a request was written, or in a retry wait
        # The outcome or the error. None after the end: nothing was sent, and a caller may start a new flight.
        self.result: Outcome | BaseException | None = None
        self._process = os.getpid()

    @property
    def is_dead(self) -> bool:
        """True if the flight will never end, because its event loop was closed."""
        return self.loop.is_closed() or (self.task is not None and self.task.done())

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process in which the flight runs."""
        return self._process != os.getpid()

    def wake(self) -> None:
        """Wake all callers."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # garbage collection ended the flight in a thread without an event loop
            running = None
        for waiter in tuple(self.waiters):  # a copy: waiters in other threads may be removed meanwhile
            if (loop := waiter.get_loop()) is running:
                wake(waiter)
                continue
            with suppress(RuntimeError):  # the waiter's event loop was closed
                loop.call_soon_threadsafe(wake, waiter)

    def report_unread(self) -> None:
        """Log the result of a flight that no caller receives."""
        entry = (self.run.entry or "-")[:12]
        if not isinstance(self.result, DecisionNotRecordedError):
            if self.result is not None:
                log(INFO, _UNREAD, entry, type(self.result).__name__)
        elif self.result.file is None:
            log(ERROR, _IN_MEMORY, entry, self.result.cause_type)
        else:
            log(WARNING, _IN_FILE, entry, self.result.cause_type)


class Flights:
    """The approvals in progress of a client and its copies. `approve` starts a flight, or joins one.

    An approval is identified by shop, customer and scope. The digests of these have a random secret, so that
    they cannot be guessed from personal data. All methods may be called from several event loops and threads.
    """

    def __init__(self, pipeline: Pipeline, guard: Guard) -> None:
        self._pipeline = pipeline
        self._guard = guard
        self._hash = blake2b(key=token_bytes(32), digest_size=16)  # copying it is faster than making one
        self._in_flight: dict[bytes, Flight] = {}
        self._renew_lock()
        free_after_fork(self, Flights._renew_lock)

    def _renew_lock(self) -> None:
        """Create the lock; replace it in a forked child, as a thread of the parent may have held it."""
        # It is never held during an await. It is reentrant, because garbage collection can end another flight
        # in the thread that holds it.
        self._lock = threading.RLock()

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
        customer, payload = self._digests_of(call)
        while True:
            run = Run(self._pipeline, call, timeout, retry)
            run.customer, run.payload = customer, payload
            flight = self._find_or_add(run)
            is_first = flight.run is run
            within: float | None = timeout.total
            if waits_for_response:
                # Another event loop may be closed, and its flight then never ends.
                within = None if is_first else flight.run.timeout.longest + _CLOSE_TIMEOUT
            if not is_first:
                result = await self._join(flight, run, within)
            elif await self._wait(flight, run, within, is_first=True):
                result = flight.result
            else:
                result = late_error(run, is_sent=True)
            if result is not None:
                try:
                    return returned(copy_error(result))
                finally:
                    del flight, result  # breaks the reference cycle of error, traceback and frame
            left = run.deadline - self._pipeline.now()
            if is_first or left <= 0:
                raise late_error(run)
            timeout = evolve(timeout, total=left)

    def _find_or_add(self, run: Run) -> Flight:
        """Return the flight of an approval in progress, or a new one, which `_wait` starts."""
        while True:
            with self._lock:
                flight = self._in_flight.get(run.customer)
                if flight is not None and flight.is_inherited:
                    self._drop_inherited()
                    flight = None
                if flight is None:
                    flight = self._in_flight[run.customer] = Flight(run)
                    return flight
            if not flight.is_dead:
                return flight
            self._finish(flight, self._result_of(flight, CancelledError()))

    def _drop_inherited(self) -> None:
        """Note the approvals that the parent process is requesting, and forget its flights."""
        inherited, self._in_flight = self._in_flight, {}
        for flight in inherited.values():
            self._guard.inherit(flight.run)

    async def _join(self, flight: Flight, run: Run, within: float | None) -> Outcome | BaseException | None:
        """Wait for another caller's flight. Return its result; None if this caller may send the request."""
        with run:
            run.record.set_ledger_result("joined")
            try:
                if flight.run.payload != run.payload:
                    return run.finish(PayloadMismatchError("approve", flight.run.entry or "", "inflight"))
                flight.is_withdrawn = False  # this caller has time left, and the error must not say otherwise
                if not await self._wait(flight, run, within, is_first=False):
                    return run.finish(InFlightError("approve", flight.run.entry or ""))
            finally:  # before Python 3.12, the flight may have no span when this caller joins
                run.record.link(flight.run.span)
            result = flight.result
            if result is None or (isinstance(result, LoanError) and result.outcome == "not_sent"):
                return None
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                if not flight.run.may_be_evaluated:
                    return None
                result = unknown_error(flight.run, result)  # for example SystemExit, which ends its caller
            if isinstance(result, BaseException) and not isinstance(result, LoanError):
                return result
            return run.finish(copy_error(result))

    async def _wait(self, flight: Flight, run: Run, within: float | None, *, is_first: bool) -> bool:
        """Wait for the end of a flight. Return False if this caller leaves before, because its time is over.

        When its time is over, a caller leaves if a response is awaited. One that joined also leaves if others
        still wait. Any other caller stays until the end, which is near: if it is the last one and nothing was
        sent, the flight is withdrawn; otherwise its result is being recorded.
        """
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        flight.waiters.append(waiter)
        flight.run.is_abandoned = False
        if is_first:
            flight.task = asyncio.Task(self._fly(flight), loop=loop, **_EAGER)
        if within is not None:
            run.limits.set(waiter, loop.time() + within + GRACE)
        try:
            await self._wait_for(flight, waiter)
        finally:
            run.limits.discard(waiter)
        if flight.is_over:
            return True
        is_shared = len(flight.waiters) > 1 or flight.loop is not loop
        leaves = flight.run.is_reading or (is_shared and not is_first)
        self._leave(flight, waiter)
        if not leaves:
            waiter = loop.create_future()
            flight.waiters.append(waiter)
            await self._wait_for(flight, waiter)
        return not leaves

    async def _wait_for(self, flight: Flight, waiter: Waiter) -> None:
        if flight.is_over:  # it has ended before the waiter was added, for example in another thread
            wake(waiter)
        try:
            await waiter
        except BaseException:
            self._leave(flight, waiter)
            raise

    def _leave(self, flight: Flight, waiter: Waiter) -> None:
        if flight.is_inherited:
            return
        with suppress(ValueError):  # the flight has just ended
            flight.waiters.remove(waiter)
        if flight.waiters:
            return
        if flight.is_over:
            flight.report_unread()
            return
        with suppress(RuntimeError):  # the loop was closed
            if waiter.get_loop() is flight.loop:
                self._withdraw(flight)  # now, because it may be sent in the next iteration of the event loop
            else:
                flight.loop.call_soon_threadsafe(self._withdraw, flight)

    def _withdraw(self, flight: Flight) -> None:
        """Send no further request of a flight without callers. A response that is awaited is still read."""
        if flight.waiters or flight.task is None:
            return
        flight.run.is_abandoned = True
        if not (flight.run.is_reading or flight.is_settling):
            flight.is_withdrawn = True
            flight.task.cancel()
            if not flight.has_begun:  # its coroutine never runs
                self._finish(flight, None)

    async def _fly(self, flight: Flight) -> None:
        """Run a flight to its end, and set its result for all callers."""
        flight.has_begun = True
        result: Outcome | BaseException | None
        try:
            result = await self._decide(flight)
        except BaseException as error:
            result = self._result_of(flight, error)
            is_read = bool(flight.waiters)
            self._finish(flight, result)
            if not (is_read or isinstance(error, Exception | CancelledError)):
                raise
        else:
            self._finish(flight, result)

    async def _decide(self, flight: Flight) -> Outcome | LoanError:
        """Claim the approval, send the request, read the response and settle the claim."""
        with flight.run as run:
            claim = await self._guard.begin(run)
            if not isinstance(claim, Claim):
                return run.finish(claim)
            flight.claim = claim
            try:
                result = await run.send()
            except GeneratorExit:  # the event loop was closed: nothing can be awaited
                raise
            except BaseException as error:  # also SystemExit, for example of a signal handler
                run.release_slot()  # other calls need not wait for the settlement
                flight.claim, flight.is_settling = None, True
                if (decision := run.received_decision()) is None:
                    await claim.interrupt(error)
                else:
                    await claim.settle(decision)
                raise
            flight.is_settling = True
            run.release_slot()
            result = await claim.settle(result)
            flight.claim = None
            return run.finish(result)

    def _result_of(self, flight: Flight, error: BaseException) -> BaseException | None:
        """Return the result of a flight that ended with an exception."""
        if not isinstance(error, CancelledError | GeneratorExit):
            return copy_error(error)
        if not flight.run.may_be_evaluated:
            return None
        # Only callers whose time is over wait for a flight that is withdrawn. One that joined has reset this.
        return late_error(flight.run) if flight.is_withdrawn else unknown_error(flight.run, error)

    def _finish(self, flight: Flight, result: Outcome | BaseException | None) -> None:
        """Set the result of a flight, and wake its callers."""
        with self._lock:
            # Another thread may have finished this dead flight, or garbage collection may have ended it.
            if flight.is_over:
                return
            # Another thread may fork the process between two of these steps. Change the record before the
            # flight is removed, so that the child finds the approval in one of the two.
            if flight.claim is not None:
                flight.claim.abandon()
            if self._in_flight.get(flight.run.customer) is flight:
                del self._in_flight[flight.run.customer]
            flight.result, flight.is_over = result, True
        if flight.waiters:
            flight.wake()
        else:
            flight.report_unread()

    async def aclose(self) -> None:
        """Wait until the flights of this event loop have settled."""
        current = asyncio.get_running_loop()
        flights = tuple(self._in_flight.values())
        tasks = [flight.task for flight in flights if flight.loop is current and flight.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)

    def _digests_of(self, call: Call) -> tuple[bytes, bytes]:
        """Return the digest of shop, customer and scope, and the digest of the request's members."""
        names = (call.shop.base_url, call.shop.shop_id, call.fiscal_code or "", *self._guard.parts(call))
        customer = self._hash.copy()
        customer.update("\0".join(map(str, names)).encode(errors="surrogatepass"))
        # The writer puts the fields in the same order each time, and before `extra`.
        request = self._hash.copy()
        request.update(sort_members(call.body) if call.has_extra else call.body)
        return customer.digest(), request.digest()


def unknown_error(run: Run, error: BaseException) -> LoanError:
    """Return the error of an approval whose flight ended with an exception after its request was written."""
    return OutcomeUnknownError("approve", run.entry or "", "unknown", type(error).__name__)


def late_error(run: Run, *, is_sent: bool = False) -> LoanError:
    """Return the error of a caller whose time limit has passed."""
    return run.transport_error(DeadlineExceededError, "TimeoutError", is_sent=is_sent)


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
