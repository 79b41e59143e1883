"""One call in progress: its span, its slot, its attempts within a deadline, and its result."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from attrs import evolve
from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_random_exponential

from loanasync._protocol.endpoints import (
    APPROVE,
    SYSTEM_FAULT,
    Call,
    CircuitChange,
    Outcome,
    is_system_fault,
)
from loanasync._protocol.messages import Judgement, NoResponse, Request, Response, correlation
from loanasync._results import Approved, Decision, Meta, Refused
from loanasync._runtime.breaker import Refusal, Verdict, verdict_of
from loanasync._runtime.pipeline import LoopResources, Pipeline
from loanasync._runtime.retry import MAX_EXTRA_WAIT, retry_after
from loanasync._runtime.token import obtain_token
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry import AttemptTelemetry, CallTelemetry
from loanasync._transport.base import Transport
from loanasync._transport.failures import SESSION_CLOSED
from loanasync._transport.selection import is_of_user
from loanasync._waits import was_cancelled
from loanasync.errors import (
    PROGRAM_FAILED,
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
    from opentelemetry.trace import Span

    from loanasync.errors import TransportOutcome

Result = TypeVar("Result")

_TOO_LATE = NoResponse(error=DeadlineExceededError, cause_type="TimeoutError", is_sent=False)


class Run:
    """One call in progress. It is created when the call begins, and sends its request in a ``with`` block.

    `make_attempts` acquires a slot and sends the request. It releases the slot while it waits for a retry.
    The guard of an approval calls `acquire_slot` before. Both return errors and raise none. The end of the
    ``with`` block releases the slot and records the end of the call.

    Args:
        pipeline: The state that the calls of the client share.
        call: The call.
        timeout: Its time limits.
        retry: Its retry policy.

    Attributes:
        started: Time of the start, by the client's clock.
        customer: Digest of shop and customer of an approval, followed by that of its order.
        payload: Digest of the members of its body.
        callers: The callers that wait for the result. Empty if all callers of a flight have left.
        entry: Key of its ledger entry, set by the guard.
        after_unknown: True if an earlier call for the same approval has an unknown outcome, set by the guard.
        trace_id: Id of its trace.
        span: Its span, if tracing is on.
        attempts: Number of requests sent.
        last: The last response, if one has arrived.

    Raises:
        ClientClosedError: The client was closed.
        ConfigurationError: The client's session belongs to another event loop.
    """

    # Class attributes for what is set later, if at all.
    customer: bytes = b""
    payload: bytes = b""
    callers: Sequence[object] = (None,)
    entry: str | None = None
    after_unknown: bool = False
    telemetry: CallTelemetry  # set by `__enter__`
    trace_id: str | None = None
    span: "Span | None" = None
    attempts: int = 0
    last: Response | None = None
    _sending: Request | None = None  # the request in progress
    _is_written: bool = False  # an earlier request of this call was written
    _has_slot: bool = False
    _trial: int = 0  # number of its trial while the circuit breaker is open, else 0
    _circuit_changes: tuple[CircuitChange, ...] = ()
    _error: LoanError | None = None

    def __init__(self, pipeline: Pipeline, call: Call, timeout: Timeout, retry: RetryPolicy) -> None:
        self._pipeline = pipeline
        self.resources: LoopResources = pipeline.resources(call.endpoint.operation)
        self.call = call
        self.timeout: Timeout = timeout
        self.retry: RetryPolicy = retry
        self.started: float = pipeline.now()  # after opening the first transport, which takes time
        self.deadline: float = self.started + timeout.total

    def __enter__(self) -> Self:
        if self.resources.waits.is_closed:
            raise self._pipeline.telemetry.not_begun(self.call.endpoint.operation, ClientClosedError())
        self.telemetry = CallTelemetry(self._pipeline.telemetry, self.call)
        self.trace_id, self.span = self.telemetry.trace_id, self.telemetry.span
        self.resources.calls += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._has_slot:
                self.release_slot()
            if self._trial:  # it has no result, for example because it was cancelled
                self._record_verdict("unknown" if self.may_be_evaluated else "other")
            self.telemetry.end(
                self._error if error is None else error,
                self.entry,
                self._circuit_changes,
                may_be_evaluated=self.may_be_evaluated,
            )
        finally:
            self.resources.end_call()

    @property
    def is_reading(self) -> bool:
        """True while the response to a written request is awaited."""
        return self._sending is not None and self._sending.is_sent

    @property
    def was_written(self) -> bool:
        """True if a request of this call may have reached the service."""
        return self._is_written or self.is_reading

    @property
    def may_be_evaluated(self) -> bool:
        """True if a request of this call, or of an earlier one, may have reached the service."""
        return self.after_unknown or self.was_written

    def finish(self, result: Result) -> Result:
        """Record and return the result of the call."""
        if isinstance(result, LoanError):
            self._error = result
            if isinstance(result, LedgerError):
                result.trace_id = self.trace_id
        elif isinstance(result, Approved | Refused):
            self.telemetry.outcome = "approved" if result.approved else "refused"
        elif self.call.endpoint is not APPROVE:
            self.telemetry.outcome = "done"
        return result

    @property
    def is_dead(self) -> bool:
        """True if the call will never end, see `Flight`."""
        return False

    @property
    def is_overdue(self) -> bool:
        """True if the call should have ended, see `Flight`."""
        return False

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process in which the call runs, see `Flight`."""
        return False

    # --- slots

    @property
    def cannot_send_now(self) -> bool:
        """True if no slot is free, or the circuit breaker is open."""
        return not self.resources.slots.free or self._pipeline.open_circuit(self.call.shop) is not None

    async def acquire_slot(self) -> LoanError | None:
        """Acquire a slot of the concurrency limit.

        Return an error if no slot becomes free in time, or if the circuit breaker refuses the call.
        """
        if (refusal := self._refusal()) is not None:
            return refusal
        self._has_slot = self.resources.slots.take()
        if self._has_slot:
            return None
        if not await self._wait_for_slot():
            return self.transport_error(PoolTimeoutError, "TimeoutError")
        return self._refusal()  # the circuit breaker may have opened while the call waited

    async def _wait_for_slot(self) -> bool:
        """Wait for a slot, at most until the deadline of the call. Return False if none became free."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._remaining()):
                await self.resources.slots.wait()
                self._has_slot = True
        return self._has_slot

    def release_slot(self) -> None:
        """Release the slot, if the call has one."""
        if self._trial and not self.attempts:
            self._record_verdict("other")  # not sent: another call may try
        if self._has_slot:
            self._has_slot = False
            self.resources.slots.release()

    # --- the circuit breaker

    def _refusal(self) -> CircuitOpenError | None:
        """Return an error if the circuit breaker refuses this call. If not, the call may become its trial."""
        breaker, call = self._pipeline.breaker, self.call
        # Most calls find no circuits, and then need not ask.
        if breaker is None or not breaker.circuits or call.endpoint is not APPROVE or self._trial:
            return None
        until = self.deadline + self.timeout.attempt
        admitted = breaker.admit(call.shop.shop_id, self._pipeline.now(), until)
        if isinstance(admitted, Refusal):
            return CircuitOpenError(call.endpoint.operation, *admitted, self.entry)
        self._trial = admitted
        return None

    def _record_verdict(self, verdict: Verdict) -> None:
        """Inform the circuit breaker of the end of an approval. Its changes are reported later."""
        call, breaker = self.call, self._pipeline.breaker
        if breaker is not None and call.endpoint is APPROVE:
            self._circuit_changes = breaker.record(
                call.shop.shop_id, call.fiscal_code or "", verdict, self._trial, self._pipeline.now()
            )
            self._trial = 0

    # --- attempts

    async def make_attempts(self) -> Outcome | LoanError:
        """Send the request, retry it after a 500, and return the outcome or the error.

        Acquire a slot before, unless the call has one.
        """
        pipeline = self._pipeline
        if not self._has_slot and (error := await self.acquire_slot()) is not None:
            return error
        last = await self._attempt()
        stopped_by = None
        if is_system_fault(last):
            last, stopped_by = await self._retry(last)
        elif pipeline.quota.used and isinstance(last, Response):
            pipeline.quota.refill()
        self.telemetry.stopped_by = stopped_by
        result = self._read(last, stopped_by)
        # While all is well, a decision does not concern the breaker.
        if pipeline.breaker is not None and (pipeline.breaker.circuits or isinstance(result, LoanError)):
            self._record_verdict(verdict_of(last, result, was_written=self.was_written))
        return result

    async def _retry(self, fault: Response) -> tuple[Response | NoResponse, StoppedBy | None]:
        """Repeat the request after its first attempt had a response with status 500 (spec §7).

        The condition and the wait are tenacity's.

        Returns:
            The last response, and the reason for making no further attempt if its status is 500.
        """
        is_fault = retry_if_result(is_system_fault)
        jitter = wait_random_exponential(multiplier=self.retry.base, max=self.retry.cap)
        state = RetryCallState(AsyncRetrying(), None, (), {})
        last: Response | NoResponse = fault
        state.set_result(last)
        while is_fault(state):
            fault = cast("Response", last)
            backoff = jitter(state)
            wait = min(max(backoff, retry_after(fault.headers)), backoff + MAX_EXTRA_WAIT)
            if (reason := self._stopped_by(wait)) is not None:
                return fault, reason
            self.release_slot()
            await self.resources.wait(self._pipeline.sleep(wait))
            self._has_slot = self.resources.slots.take()
            if not (self._has_slot or await self._wait_for_slot()):
                return fault, "slot"
            if self.resources.waits.is_closed:
                return fault, "closed"
            last = await self._attempt()
            state.prepare_for_next_attempt()
            state.set_result(last)
        return last, None

    def _stopped_by(self, wait: float) -> StoppedBy | None:
        """Return the reason for making no further attempt after a wait, or pay for the attempt."""
        if not self.callers:
            return "cancelled"
        if self.attempts >= self.retry.attempts:
            return "attempts"
        if wait >= self._remaining():
            return "deadline"
        return None if self._pipeline.quota.take() else "quota"

    async def _attempt(self) -> Response | NoResponse:
        call, resources, timeout = self.call, self.resources, self.timeout
        left = self._remaining()
        if left <= 0 or resources.waits.is_closed:
            return _TOO_LATE if left <= 0 else SESSION_CLOSED
        token = None
        if not isinstance(call.shop.auth_token, str):
            obtained = await obtain_token(call.shop, resources.waits, self._remaining)
            if isinstance(obtained, NoResponse):
                return obtained
            token, left = obtained, self._remaining()
        # The response to an approval is read and settled even if its callers have left.
        within = timeout.attempt if call.endpoint is APPROVE else min(timeout.attempt, left)
        self.attempts += 1
        is_current = self.telemetry.is_recording and is_of_user(resources.transport)
        attempt = AttemptTelemetry(self.telemetry, self.attempts, is_current=is_current)
        response: Response | NoResponse | None = None
        try:
            request = self._sending = call.request(attempt.headers, token)
            try:
                response = await resources.transport.send(
                    request, connect=min(timeout.connect, left), within=within
                )
            except (Exception, asyncio.CancelledError) as error:
                if _must_be_raised(error, resources.transport):
                    raise
                name = type(error).__name__
                is_foreign = is_of_user(resources.transport)
                response = _no_response(request, name if is_foreign else PROGRAM_FAILED + name)
            if isinstance(response, Response):
                if response.status == SYSTEM_FAULT:  # it may be retried, and is then not read
                    _judge(response, "wrong")
                if type(response.body) is not bytes:  # of a user's transport
                    response.body = _as_bytes(response.body)
                self.last = response  # before any effect that can fail
                return response
            response = _valid_no_response(response, request)
            if response.error is ReadTimeoutError and within < timeout.attempt:
                response = evolve(response, error=DeadlineExceededError)
            return response
        finally:
            is_unsent = isinstance(response, NoResponse) and not response.is_sent
            is_sent = self.is_reading if response is None else not is_unsent  # None: it was cancelled
            self._is_written = self._is_written or is_sent
            self._sending = None
            attempt.end(response, self.entry)

    def _remaining(self) -> float:
        return self.deadline - self._pipeline.now()

    # --- the result

    def received_decision(self) -> Decision | None:
        """Return the decision that had arrived when an exception ended the call, or None."""
        with suppress(Exception):  # reading may be what has failed
            result = None if self.last is None else self._read(self.last, None)
            if isinstance(result, Approved | Refused):
                return result
        return None

    def _read(self, last: Response | NoResponse, stopped_by: StoppedBy | None) -> Outcome | LoanError:
        """Return the outcome or the error for the last response of the call.

        Args:
            last: The last response, or the reason why none arrived.
            stopped_by: The reason for making no further attempt, if the last response has status 500.
        """
        if isinstance(last, NoResponse):
            return self.transport_error(last.error, last.cause_type, is_sent=last.is_sent)
        meta = Meta(
            last.status,
            self.attempts,
            self._pipeline.now() - self.started,
            self.trace_id,
            (),
            *correlation(last.headers),
            self.entry,
            self.after_unknown,
        )
        result = self.call.read(last, meta)
        _judge(last, self.call.judgement_on(result))
        if isinstance(result, SystemFaultError) and stopped_by is not None:
            return evolve(result, stopped_by=stopped_by)
        return result

    def transport_error(
        self, kind: type[TransportError], cause_type: str, *, is_sent: bool = False
    ) -> TransportError:
        """Return the error of a call without a response."""
        # After a 500 the outcome is unknown, even if the last attempt was not sent.
        outcome: TransportOutcome = "unknown" if is_sent or self.may_be_evaluated else "not_sent"
        return kind(
            self.call.endpoint.operation, cause_type, outcome, self.attempts, self.trace_id, self.entry
        )


async def run_call(pipeline: Pipeline, call: Call, timeout: Timeout, retry: RetryPolicy) -> Outcome:
    """Run a call that is no approval, from start to end.

    An error is raised outside of any `except` block. Otherwise an error of aiohttp could become its context,
    and the text of that error contains the token and the URL.

    Raises:
        LoanError: The call failed.
    """
    with Run(pipeline, call, timeout, retry) as run:
        result = run.finish(await run.make_attempts())
    if not isinstance(result, LoanError):
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


def _must_be_raised(error: BaseException, transport: Transport) -> bool:
    """Return True if an error of a transport is raised to the caller, and not turned into a `NoResponse`.

    These are cancellations by the caller, all errors of transports that set `raises_errors` (those of this
    package), and the AssertionError of a test in a transport of the user or in a mock.
    """
    if getattr(transport, "raises_errors", False):
        return True
    if isinstance(error, asyncio.CancelledError):
        return was_cancelled()
    return isinstance(error, AssertionError) and is_of_user(transport)


def _as_bytes(body: object) -> bytes:
    """Return the body of a response as bytes; an empty one for a type that is neither text nor bytes."""
    if isinstance(body, str):
        return body.encode()
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else b""


def _valid_no_response(response: object, request: Request) -> NoResponse:
    """Return the result of a transport that has no response. Replace a result of a wrong type."""
    if isinstance(response, NoResponse):
        error: object = response.error
        if isinstance(error, type) and issubclass(error, TransportError):
            return response
    return _no_response(request, type(response).__name__)


def _no_response(request: Request, cause_type: str) -> NoResponse:
    """Return the result for a transport that raised an error or returned a wrong type."""
    error = ConnectionLostError if request.is_sent else ConnectError
    return NoResponse(error=error, cause_type=cause_type, is_sent=request.is_sent)


def _judge(response: Response, judgement: Judgement) -> None:
    """Ask the transport to keep or close the connection of a response."""
    if response.judge is not None:
        try:  # noqa: SIM105  (`suppress` is slower)
            response.judge(judgement)
        except Exception:  # noqa: BLE001, S110  (an error here must not replace the response)
            pass
