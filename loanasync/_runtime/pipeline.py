"""The execution of a call: a span, a slot, attempts within a deadline, and the outcome."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from attrs import evolve
from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_random_exponential

from loanasync._config import Shop, token_violation
from loanasync._protocol.endpoints import APPROVE, SYSTEM_FAULT, Call, Outcome
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._results import Approved, Meta, Refused
from loanasync._runtime.breaker import Breaker, Refusal, Verdict, verdict_of
from loanasync._runtime.per_loop import PerLoop
from loanasync._runtime.retry import MAX_EXTRA_WAIT, Quota, Sleep, is_system_fault, retry_after
from loanasync._runtime.slots import Slots
from loanasync._runtime.waiters import Waiter, end_wait
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry import AttemptRecord, CallRecord, Instruments
from loanasync._transport.base import Transport
from loanasync._transport.failures import drop_frames
from loanasync._waits import SharedTimer, Waits, was_cancelled
from loanasync.errors import (
    TOKEN_FAILED,
    CircuitOpenError,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    LedgerError,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    StoppedBy,
    SystemFaultError,
    TransportError,
)

if TYPE_CHECKING:
    from loanasync.errors import TransportOutcome


Result = TypeVar("Result")


class _LoopResources:
    """The transport, slots and callers' time limits of one event loop, and the number of its calls.

    `PerLoop` creates it on the first call in an event loop, and closes it with `close`.
    """

    def __init__(self, transport: Transport, slots: int | None) -> None:
        self.transport = transport
        self.waits: Waits = Waits()
        self.slots: Slots = Slots(slots)
        self.limits: SharedTimer[Waiter] = SharedTimer(asyncio.get_running_loop(), end_wait)
        self.calls: int = 0
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
        """Wait at most `within` seconds for the calls in progress, end the rest, and close the transport."""
        try:
            if self.calls:
                self._no_calls = asyncio.Event()
                async with asyncio.timeout(within):
                    await self._no_calls.wait()
        except TimeoutError:
            pass
        finally:  # also if this task is cancelled
            self.waits.close()
            self.limits.close()
            await self.transport.aclose()


# The result of an attempt that could not begin, because the deadline has passed.
_TOO_LATE = NoResponse(error=DeadlineExceededError, cause_type="TimeoutError", is_sent=False)
_CLOSED = NoResponse(error=ConnectError, cause_type="SessionClosed", is_sent=False)
# The result of an attempt whose function for the token has taken too long.
_TOKEN_TOO_LATE = evolve(_TOO_LATE, cause_type=f"{TOKEN_FAILED}TimeoutError")
_REQUEST_IDS = ("X-Request-Id", "X-Correlation-Id", "Request-Id")
# A UUID, or 32 hexadecimal digits. Any other form, also that of 16 ASCII characters, may hold a fiscal code.
_REQUEST_ID = re.compile(
    r"(?!(?:-?[2-7][0-9a-f]){16}\Z)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})",
    re.IGNORECASE,
)
_TIME = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT|[0-9]{1,10}")


def _correlation(headers: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return request id, date and Retry-After of a response. Replace values of an unexpected form by None."""
    request_id = next((headers[name] for name in _REQUEST_IDS if name in headers), None)
    date, retry_after = headers.get("Date"), headers.get("Retry-After")
    return (
        request_id if request_id is not None and _REQUEST_ID.fullmatch(request_id) else None,
        date if date is not None and _TIME.fullmatch(date) else None,
        retry_after if retry_after is not None and _TIME.fullmatch(retry_after) else None,
    )


def _no_response(request: Request, cause_type: str) -> NoResponse:
    """Return the result for a user's transport that raised an error or returned a wrong type."""
    error = ConnectionLostError if request.is_sent else ConnectError
    return NoResponse(error=error, cause_type=cause_type, is_sent=request.is_sent)


async def _set_token(call: Call) -> str | None:
    """Set the token of the next request with the user's function. Return the rule that it breaks, or None.

    The function is not stored in a variable: its `repr` may contain a secret.
    """
    assert not isinstance(call.shop.auth_token, str)  # noqa: S101  (only called for functions)
    token: object = None
    try:
        token = call.shop.auth_token()
        if isinstance(token, Awaitable):
            # Several calls may await the same task, and the end of one of them must not cancel it.
            token = await (asyncio.shield(token) if asyncio.isfuture(token) else token)
        violation = token_violation(token)
        if violation is None:
            call.auth_token = str(token)
        return violation
    finally:
        del token  # secret: must not be in a traceback


def _must_be_raised(error: BaseException, transport: Transport) -> bool:
    """Return True if an error of a transport is raised to the caller, and not turned into a `NoResponse`.

    These are cancellations by the caller, all errors of transports that set `raises_errors` (those of this
    package), and the AssertionError of a test.
    """
    if getattr(transport, "raises_errors", False):
        return True
    return was_cancelled() if isinstance(error, asyncio.CancelledError) else isinstance(error, AssertionError)


def _discard_connection(response: Response) -> None:
    """Close the connection of a response that may belong to another request: an error, or without a customer.

    For example, the service may refuse a request before it has read all of it, and then respond again. The
    connection is then out of step, and the next customer would get the response of this one.
    """
    if response.discard is not None:
        with suppress(Exception):  # an error here must not replace the response
            response.discard()


def returned(result: Outcome | BaseException) -> Outcome:
    """Return an outcome, and raise an error.

    Call it outside of any `except` block. Otherwise an error of aiohttp could become the context, and the
    text of that error contains the token and the URL.
    """
    if not isinstance(result, BaseException):
        return result
    try:
        raise result
    finally:
        del result  # breaks the reference cycle of error, traceback and frame


def copy_error(result: Result) -> Result:
    """Return a copy of an error, so that each caller raises its own, with its own traceback."""
    if not isinstance(result, LoanError):
        return result
    again = type(result)(*result.args)
    if isinstance(result, LedgerError) and isinstance(again, LedgerError):
        again.trace_id = result.trace_id
    return again


def _valid_no_response(response: object, request: Request) -> NoResponse:
    """Return the result of a transport that has no response. Replace a result of a wrong type."""
    if isinstance(response, NoResponse):
        error: object = response.error
        if isinstance(error, type) and issubclass(error, TransportError):
            return response
    return _no_response(request, type(response).__name__)


class Pipeline:
    """Runs the calls of a client and its copies, which share transports, slots, quota, breaker and telemetry.

    `run` runs any call except an approval. `Flights` runs approvals with `begin` and `start`, which returns a
    `Run`. `read` turns the last response into an outcome or an error.
    """

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
            lambda: _LoopResources(open_transport(), slots), _LoopResources.close, on_unclosed
        )
        self._telemetry = telemetry
        self.quota = quota
        self.breaker = breaker
        self.now = now
        self.sleep = sleep
        self._closed = False

    def open(self) -> None:
        """Open the transport of the running event loop, which its first call does otherwise."""
        if not self._closed:
            self._per_loop.current()

    def start(self, call: Call, timeout: Timeout, retry: RetryPolicy) -> "Run":
        """Start a call, after `begin`. Use the run in a ``with`` block, and end it with `Run.finish`.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: The client's session belongs to another event loop.
        """
        resources = self._resources()
        resources.transport.check()
        return Run(self, self._telemetry, resources, call, timeout, retry)

    def begin(self, call: Call) -> SharedTimer[Waiter]:
        """Begin to count the time of a call; return the time limits of this event loop's waiting callers.

        Raises:
            ClientClosedError: The client was closed.
        """
        limits = self._resources().limits
        call.started = self.now()  # not before: opening the first transport may load aiohttp
        return limits

    def _resources(self) -> _LoopResources:
        if self._closed:
            raise ClientClosedError
        return self._per_loop.current()

    async def run(self, call: Call, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Run a call from start to end.

        Raises:
            LoanError: The call failed.
        """
        self.begin(call)
        with self.start(call, timeout, retry) as run:
            result = run.finish(await run.send())
        try:
            return returned(result)
        finally:
            del result  # breaks the reference cycle of error, traceback and frame

    def read(
        self, call: Call, last: Response | NoResponse, stopped_by: StoppedBy | None
    ) -> Outcome | LoanError:
        """Return the outcome or the error for the last response of a call, and inform the circuit breaker.

        Args:
            call: The call.
            last: The last response, or the reason why none arrived.
            stopped_by: The reason for making no further attempt, if the last response has status 500.
        """
        result = self._result(call, last, stopped_by)
        # While all is well, a decision does not concern the breaker.
        if self.breaker is not None and (self.breaker.circuits or isinstance(result, LoanError)):
            self.record_verdict(call, verdict_of(call, last, result))
        return result

    def record_verdict(self, call: Call, verdict: Verdict) -> None:
        """Inform the circuit breaker of the end of an approval. Its changes are reported later."""
        if self.breaker is not None and call.endpoint is APPROVE:
            call.circuit_changes = self.breaker.record(
                call.shop.shop_id, call.fiscal_code or "", verdict, call.trial, self.now()
            )
            call.trial = 0

    def open_circuit(self, shop: Shop) -> CircuitOpenError | None:
        """Return the error of the circuit breaker if it is open for a shop, else None."""
        if self.breaker is None or not self.breaker.circuits:
            return None
        refusal = self.breaker.refusal(shop.shop_id, self.now())
        return None if refusal is None else CircuitOpenError(APPROVE.operation, *refusal)

    def refusal(self, call: Call, deadline: float) -> CircuitOpenError | None:
        """Return an error if the circuit breaker refuses a call. If not, the call may become its trial."""
        if self.breaker is None or call.endpoint is not APPROVE or call.trial:
            return None
        admitted = self.breaker.admit(call.shop.shop_id, self.now(), deadline)
        if isinstance(admitted, Refusal):
            return CircuitOpenError(call.endpoint.operation, *admitted, call.entry)
        call.trial = admitted
        return None

    def _result(
        self, call: Call, last: Response | NoResponse, stopped_by: StoppedBy | None
    ) -> Outcome | LoanError:
        if isinstance(last, NoResponse):
            # After a 500 the outcome is unknown, even if the last attempt was not sent.
            outcome: TransportOutcome = "unknown" if call.may_be_evaluated or last.is_sent else "not_sent"
            operation = call.endpoint.operation
            return last.error(operation, last.cause_type, outcome, call.attempts, call.trace_id, call.entry)
        meta = Meta(
            last.status,
            call.attempts,
            self.now() - call.started,
            call.trace_id,
            (),
            *_correlation(last.headers),
            call.entry,
            call.after_unknown,
        )
        result = call.read(last, meta)
        if isinstance(result, LoanError) or getattr(result, "fiscal_code", "") is None:
            _discard_connection(last)
        if isinstance(result, SystemFaultError) and stopped_by is not None:
            return evolve(result, stopped_by=stopped_by)
        return result

    async def aclose(self, drain: float) -> None:
        """Accept no more calls, wait at most `drain` seconds for calls in progress, close the transports."""
        self._closed = True
        await self._per_loop.aclose(drain)

    def close_from_outside(self, drain: float) -> None:
        """Close without a running event loop, for example in a synchronous pytest fixture."""
        self._closed = True
        self._per_loop.close_from_outside(drain)


class Run:
    """One call in progress: its steps, its deadline and its telemetry.

    `send` acquires a slot and makes all attempts. It releases the slot while it waits for a retry. The guard
    of an approval calls `acquire_slot` before. Both return errors and raise none. The end of the
    ``with`` block releases the slot.
    """

    __slots__ = (
        "_call",
        "_deadline",
        "_error",
        "_pipeline",
        "_resources",
        "_retry",
        "_telemetry",
        "last",
        "record",
        "timeout",
    )

    record: CallRecord  # set by `__enter__`
    last: Response | NoResponse  # the last response, set by `send`

    def __init__(
        self,
        pipeline: Pipeline,
        telemetry: Instruments,
        resources: _LoopResources,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
    ) -> None:
        self._pipeline = pipeline
        self._telemetry = telemetry
        self._resources = resources
        self._call = call
        self.timeout: Timeout = timeout
        self._retry = retry
        self._deadline = call.started + timeout.total
        self._error: LoanError | None = None

    def __enter__(self) -> Self:
        self.record = CallRecord(self._telemetry, self._call)
        self._call.trace_id = self.record.trace_id
        self._resources.calls += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._call.has_slot:
                self.release_slot()
            if self._call.trial:  # it has no result, for example because it was cancelled
                verdict: Verdict = "unknown" if self._call.may_be_evaluated else "other"
                self._pipeline.record_verdict(self._call, verdict)
            self.record.end(self._error if error is None else error)
        finally:
            self._resources.end_call()

    def finish(self, result: Outcome | LoanError) -> Outcome | LoanError:
        """Record and return the result of the call."""
        if isinstance(result, LoanError):
            self._error = result
            if isinstance(result, LedgerError):
                result.trace_id = self._call.trace_id
        elif isinstance(result, Approved | Refused):
            self.record.outcome = "approved" if result.approved else "refused"
        return result

    @property
    def must_wait(self) -> bool:
        """True if no slot is free, or the circuit breaker is open."""
        return not self._resources.slots.free or self._pipeline.open_circuit(self._call.shop) is not None

    async def acquire_slot(self) -> LoanError | None:
        """Acquire a slot of the concurrency limit.

        Return an error if no slot becomes free in time, or if the circuit breaker is open. It is asked here,
        and nowhere else, because this is before a ledger's entry is claimed and before anything is sent.
        """
        call, slots, breaker = self._call, self._resources.slots, self._pipeline.breaker
        # Most calls find no circuits, and then need not ask.
        is_asked = breaker is not None and breaker.circuits
        if is_asked and (refusal := self._refusal()) is not None:
            return refusal
        if slots.free:
            slots.free -= 1
            call.has_slot = True
            return None
        queued = self._pipeline.now()
        await self._acquire()
        waited = self._pipeline.now() - queued
        self.record.set_queue_time(waited, None if call.has_slot else "PoolTimeoutError")
        if call.has_slot:  # the circuit breaker may have opened while the call waited
            return self._refusal()
        outcome: TransportOutcome = "unknown" if call.may_be_evaluated else "not_sent"
        return PoolTimeoutError(
            call.endpoint.operation, "TimeoutError", outcome, call.attempts, call.trace_id, call.entry
        )

    def _refusal(self) -> CircuitOpenError | None:
        return self._pipeline.refusal(self._call, self._deadline + self.timeout.attempt)

    def release_slot(self) -> None:
        """Release the slot, if the call has one."""
        call = self._call
        if call.trial and not call.attempts:
            self._pipeline.record_verdict(call, "other")  # not sent: another call may try
        if call.has_slot:
            call.has_slot = False
            self._resources.slots.release()

    async def send(self) -> Outcome | LoanError:
        """Send the request, retry it after a 500, and return the outcome or the error.

        Acquire a slot before, unless the call has one.
        """
        call, pipeline = self._call, self._pipeline
        if not call.has_slot and (error := await self.acquire_slot()) is not None:
            return error
        last = await self._attempt()
        stopped_by = None
        if is_system_fault(last):
            last, stopped_by = await self._retry_request(last)
        elif pipeline.quota.used and isinstance(last, Response):
            pipeline.quota.refill()
        self.last = last
        self.record.stopped_by = stopped_by
        return pipeline.read(call, last, stopped_by)

    async def _retry_request(self, fault: Response) -> tuple[Response | NoResponse, StoppedBy | None]:
        """Repeat the request after its first attempt had a response with status 500 (spec §7).

        The condition and the wait are tenacity's.

        Returns:
            The last response, and the reason for making no further attempt if its status is 500.
        """
        call, policy = self._call, self._retry
        is_fault = retry_if_result(is_system_fault)
        jitter = wait_random_exponential(multiplier=policy.base, max=policy.cap)
        state = RetryCallState(AsyncRetrying(), None, (), {})
        last: Response | NoResponse = fault
        state.set_result(last)
        while is_fault(state):
            call.fault = fault = cast("Response", last)
            backoff = jitter(state)
            wait = min(max(backoff, retry_after(fault.headers)), backoff + MAX_EXTRA_WAIT)
            if (reason := self._stopped_by(wait)) is not None:
                return fault, reason
            self.release_slot()
            await self._resources.wait(self._pipeline.sleep(wait))
            await self._acquire()
            if not call.has_slot:
                return fault, "slot"
            if self._resources.waits.is_closed:
                return fault, "closed"
            last = await self._attempt()
            state.prepare_for_next_attempt()
            state.set_result(last)
        return last, None

    def _stopped_by(self, wait: float) -> StoppedBy | None:
        """Return the reason for making no further attempt after a wait, or pay for the attempt."""
        if self._call.is_abandoned:
            return "cancelled"
        if self._call.attempts >= self._retry.attempts:
            return "attempts"
        if wait >= self._remaining():
            return "deadline"
        return None if self._pipeline.quota.take() else "quota"

    async def _attempt(self) -> Response | NoResponse:
        call, resources, timeout = self._call, self._resources, self.timeout
        left = self._deadline - self._pipeline.now()
        if left <= 0 or resources.waits.is_closed:
            return _TOO_LATE if left <= 0 else _CLOSED
        if not isinstance(call.shop.auth_token, str):
            still_left = await self._await_token(left)
            if isinstance(still_left, NoResponse):
                return still_left
            left = still_left
        # The response to an approval is read and settled even if its callers have left.
        within = timeout.attempt if call.endpoint is APPROVE else min(timeout.attempt, left)
        call.attempts += 1
        attempt = AttemptRecord(self.record, call.attempts)
        response: Response | NoResponse | None = None
        try:
            request = call.sending = call.request(attempt.headers)
            try:
                response = await resources.transport.send(
                    request, connect=min(timeout.connect, left), within=within
                )
            except (Exception, asyncio.CancelledError) as error:
                if _must_be_raised(error, resources.transport):
                    raise
                response = _no_response(request, type(error).__name__)
            if isinstance(response, Response):
                if response.status == SYSTEM_FAULT:  # it may be retried, and is then not read
                    _discard_connection(response)
                return response
            response = _valid_no_response(response, request)
            if response.error is ReadTimeoutError and within < timeout.attempt:
                response = evolve(response, error=DeadlineExceededError)
            return response
        finally:
            if call.is_reading and not (isinstance(response, NoResponse) and not response.is_sent):
                call.is_written = True
            call.sending = None
            attempt.end(response)

    async def _await_token(self, within: float) -> float | NoResponse:
        """Await the token of the next request, until the deadline or until the client is closed.

        Return the seconds that are left, or the reason for sending nothing. An exception of the user's
        function is not raised, because its text may contain a secret.
        """
        call, waits = self._call, self._resources.waits
        limit = asyncio.timeout(within)
        try:
            async with waits.limited_by(limit):
                cause = await _set_token(call)
        except (Exception, asyncio.CancelledError) as error:
            drop_frames(error)  # those of the user's function, whose local variables may be secret
            if isinstance(error, asyncio.CancelledError) and was_cancelled():
                raise
            cause = type(error).__name__
        if call.is_abandoned:
            raise asyncio.CancelledError  # the function has suppressed that of the flight
        if waits.is_closed:
            return _CLOSED
        left = self._remaining()
        if limit.expired() or left <= 0:
            return _TOKEN_TOO_LATE
        if cause is not None:
            return NoResponse(error=ConnectError, cause_type=TOKEN_FAILED + cause, is_sent=False)
        return left

    async def _acquire(self) -> None:
        """Acquire a slot, and wait for it at most until the deadline of the call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._remaining()):
                await self._resources.slots.acquire()
                self._call.has_slot = True

    def _remaining(self) -> float:
        return self._deadline - self._pipeline.now()
