"""The steps of one call: its telemetry, its slot, its attempts and its result."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from loanasync._models.decisions import DECISIONS, Decision, Meta
from loanasync._protocol.endpoints import APPROVE, Call, Outcome, correlation
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._runtime.breaker import Verdict
from loanasync._runtime.pipeline import CLOSE_TIMEOUT, LoopResources, Pipeline
from loanasync._runtime.retry import MAX_EXTRA_WAIT, backoff_after, retry_after
from loanasync._runtime.token import obtain_token
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry.spans import CallTelemetry
from loanasync._transport.aiohttp_internals import is_replaced
from loanasync._transport.base import Transport
from loanasync._transport.connection import DirectConnection
from loanasync._transport.failures import SESSION_CLOSED
from loanasync._transport.selection import is_of_user
from loanasync._transport.waits import Caller, was_cancelled
from loanasync.errors import (
    PROGRAM_FAILED,
    CircuitOpenError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    LedgerError,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    StoppedBy,
    TransportError,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from loanasync.errors import TransportOutcome

Result = TypeVar("Result")

_TOO_LATE = NoResponse(error=DeadlineExceededError, cause_type="TimeoutError", is_sent=False)


class Run:
    """One call in progress: its record in the telemetry, its slot, its attempts and its result.

    Its methods are steps. `Flight`, a subclass, decides which one follows, and who awaits it.

    Args:
        pipeline: The state that the calls of the client share.
        call: The call.
        timeout: Its time limits.
        retry: Its retry policy.

    Attributes:
        started: Time of the start, by the client's clock.
        is_mocked: True if a mock replaces the methods of aiohttp.
        approval: Digest of shop and customer, followed by that of its order.
        payload: Digest of the members of its body.
        callers: The futures in which callers wait for the end.
        guests: The number of callers of other clients.
        entry: Key of its ledger entry, set by the guard.
        after_unknown: True if an earlier call for the same approval has an unknown outcome, set by the guard.
        trace_id: Id of its trace.
        span: Its span, if tracing is on.
        attempts: Number of requests sent.
        last: The last response, if one has arrived.
        is_settling: True if no further request is sent.

    Raises:
        ClientClosedError: The client was closed.
        ConfigurationError: The client's session belongs to another event loop.
    """

    # Class attributes for what is set later, if at all.
    approval: bytes = b""
    payload: bytes = b""
    guests: int = 0
    entry: str | None = None
    after_unknown: bool = False
    telemetry: CallTelemetry  # set by `begin`
    trace_id: str | None = None
    span: "Span | None" = None
    attempts: int = 0
    last: Response | None = None
    is_settling: bool = False
    _sending: Request | None = None  # the request of the attempt in progress
    _within: float  # its time limit in seconds
    _until: float  # the same as a time of the event loop's clock
    _is_written: bool = False  # an earlier request of this call was written
    _is_recorded: bool = True  # False from `begin` until the end of the call is recorded
    _trial: int = 0  # number of its trial while the circuit breaker is open, else 0
    _pause: float | None = None  # the change of the circuit breaker, see `Breaker.record`

    def __init__(self, pipeline: Pipeline, call: Call, timeout: Timeout, retry: RetryPolicy) -> None:
        self._pipeline = pipeline
        self.resources: LoopResources = pipeline.resources(call.endpoint.operation)
        self.call = call
        self.timeout: Timeout = timeout
        self.retry: RetryPolicy = retry
        self.started: float = pipeline.now()  # after opening the first transport, which takes time
        self.deadline: float = self.started + timeout.total
        self.callers: list[Caller] = []
        self.is_mocked: bool = is_replaced()

    @property
    def is_reading(self) -> bool:
        """True while the response to a written request is awaited."""
        return self._sending is not None and self._sending.is_sent

    @property
    def was_written(self) -> bool:
        """True if a request of this call may have reached the service."""
        return self._is_written or self.is_reading

    @property
    def is_overdue(self) -> bool:
        """True if the call should have ended. Its event loop may have stopped."""
        return self._pipeline.now() > self.started + self.timeout.longest + CLOSE_TIMEOUT

    @property
    def may_be_evaluated(self) -> bool:
        """True if a request of this call, or of an earlier one, may have reached the service."""
        return self.after_unknown or self.was_written

    def begin(self) -> None:
        """Begin to record the call."""
        self.resources.calls.add(self)
        instruments = self._pipeline.telemetry
        counts, name = instruments.metrics.inflight.counts, self.call.endpoint.operation
        self.telemetry = CallTelemetry(instruments, self.call)
        self._is_recorded, counts[name] = False, counts[name] + 1  # an interrupt changes both or none
        self.trace_id, self.span = self.telemetry.trace_id, self.telemetry.span

    def record(self, result: object) -> None:
        """Release what the call has, and record its end; None: it begins again."""
        try:
            if self._trial:  # it has no result, for example because it was cancelled
                self._record_verdict("unknown" if self.was_written else "other")
            if self._is_recorded:
                return
            counts, name = self._pipeline.telemetry.metrics.inflight.counts, self.call.endpoint.operation
            self._is_recorded, counts[name] = True, counts[name] - 1  # as above
            telemetry, error = self.telemetry, None
            if isinstance(result, DECISIONS):
                telemetry.outcome = "approved" if result.approved else "refused"
            elif isinstance(result, BaseException):
                error = result
                if isinstance(error, LedgerError):
                    error.trace_id = self.trace_id
            elif self.call.endpoint is not APPROVE:
                telemetry.outcome = "done"
            may_be_evaluated = error is not None and self.may_be_evaluated
            telemetry.end(error, self.entry, self._pause, may_be_evaluated=may_be_evaluated)
        finally:
            self.resources.end_call(self)

    @property
    def is_dead(self) -> bool:
        """True if the call will never end, see `Flight`."""
        return False

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process in which the call runs, see `Flight`."""
        return False

    # --- slots

    @property
    def cannot_send_now(self) -> bool:
        """True if no slot is free, or the circuit breaker is open."""
        return not self.resources.slots.free or self._pipeline.open_circuit() is not None

    def take_slot_now(self) -> bool:
        """Take a slot if one is free, and the circuit breaker need not be asked."""
        breaker = self._pipeline.breaker
        if breaker is not None and not breaker.is_quiet:
            return False
        return self.resources.slots.take(self)

    async def acquire_slot(self) -> LoanError | None:
        """Acquire a slot of the concurrency limit, unless the call has one.

        Return an error if no slot becomes free in time, or if the circuit breaker refuses the call.
        """
        slots = self.resources.slots
        if slots.has(self):
            return None
        if (refusal := self._refusal()) is not None:
            return refusal
        if slots.take(self):
            return None
        if not await self._wait_for_slot():
            return self.transport_error(PoolTimeoutError, "TimeoutError")
        return self._refusal()  # the circuit breaker may have opened while the call waited

    async def _wait_for_slot(self) -> bool:
        """Wait for a slot, at most until the deadline of the call. Return False if none became free."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._remaining()):
                await self.resources.slots.wait(self)
        return self.resources.slots.has(self)

    def release_slot(self) -> None:
        """Release the slot, if the call has one."""
        if self._trial and not self.attempts:
            self._record_verdict("other")  # not sent: another call may try
        self.resources.slots.release(self)

    # --- the circuit breaker

    def _refusal(self) -> CircuitOpenError | None:
        """Return an error if the circuit breaker refuses this call. If not, the call may become its trial."""
        breaker, call = self._pipeline.breaker, self.call
        # Most calls find it quiet, and then need not ask.
        if breaker is None or breaker.is_quiet or call.endpoint is not APPROVE or self._trial:
            return None
        until = self.deadline + self.timeout.attempt
        trial = breaker.admit(self._pipeline.now(), until)
        if trial is None:
            wait = breaker.wait(self._pipeline.now()) or 0.0
            return CircuitOpenError(call.endpoint.operation, wait, self.entry)
        self._trial = trial
        return None

    def _record_verdict(self, verdict: Verdict) -> None:
        """Inform the circuit breaker of the end of an approval. Its changes are reported later."""
        call, breaker = self.call, self._pipeline.breaker
        if breaker is not None and call.endpoint is APPROVE:
            self._pause = breaker.record(call.fiscal_code or "", verdict, self._trial, self._pipeline.now())
            self._trial = 0

    # --- attempts

    async def wait_for_retry(self, fault: Response) -> StoppedBy | None:
        """Wait, and take a slot again. Return the reason for making no further attempt, or None."""
        backoff = backoff_after(self.attempts, self.retry)
        wait = min(max(backoff, retry_after(fault.headers)), backoff + MAX_EXTRA_WAIT)
        if (reason := self._stopped_by(wait)) is not None:
            return reason
        self.release_slot()
        await self.resources.wait(self._pipeline.sleep(wait))
        if not (self.resources.slots.take(self) or await self._wait_for_slot()):
            return "slot"
        return "closed" if self.resources.waits.is_closed else None

    def _stopped_by(self, wait: float) -> StoppedBy | None:
        """Return the reason for making no further attempt after a wait, or pay for the attempt."""
        if not self.callers:
            return "cancelled"
        if self.attempts >= self.retry.attempts:
            return "attempts"
        if wait >= self._remaining():
            return "deadline"
        return None if self._pipeline.quota.take() else "quota"

    def take_connection(self, now: float) -> DirectConnection | None:
        """Return an idle connection, if the request can be sent now, a time of the event loop's clock."""
        direct, shop = self.resources.direct, self.call.shop
        if direct is None or self.is_mocked or not isinstance(shop.auth_token, str):
            return None
        return direct.take(shop.base_url, now, approves=self.call.endpoint is APPROVE)

    async def prepare_attempt(self) -> NoResponse | None:
        """Begin the next attempt. Return the reason instead, if nothing can be sent."""
        call, waits = self.call, self.resources.waits
        left, token = self._remaining(), None
        if left <= 0 or waits.is_closed:
            return _TOO_LATE if left <= 0 else SESSION_CLOSED
        if not isinstance(call.shop.auth_token, str):
            obtained = await obtain_token(call.shop, waits, self._remaining)
            if isinstance(obtained, NoResponse):
                return obtained
            token = obtained
        self.begin_attempt(self.resources.loop.time(), token)
        return None

    def begin_attempt(self, now: float, token: str | None = None) -> None:
        """Begin the next attempt, with this token if the shop has a function for it."""
        resources, attempt = self.resources, self.timeout.attempt
        # The response to an approval is read and settled even if its callers have left.
        self._within = attempt if self.call.endpoint is APPROVE else min(attempt, self._remaining())
        self._until = now + self._within
        self.attempts += 1
        is_current = self.telemetry.is_recording and is_of_user(resources.transport)
        self.telemetry.begin_attempt(self.attempts, is_current=is_current)
        self._sending = self.call.request(self.telemetry.headers, token)
        if resources.direct is not None:  # else it counts as sent, unless `Transport.send` says otherwise
            self._sending.is_sent = False

    async def connect_or_send(self) -> DirectConnection | Response | NoResponse:
        """Return a connection for the request of the attempt, or the result of `Transport.send`."""
        direct, transport, request = self.resources.direct, self.resources.transport, self._sending
        assert request is not None  # noqa: S101  (of the attempt)
        connect = min(self.timeout.connect, self._remaining())
        if direct is not None and not is_replaced():
            return await direct.open(request, connect=connect, deadline=self._until)
        try:
            response = await transport.send(request, connect=connect, within=self._within)
        except (Exception, asyncio.CancelledError) as error:
            if _must_be_raised(error, transport):
                raise
            name = type(error).__name__
            return no_response(request, name if is_of_user(transport) else PROGRAM_FAILED + name)
        if not isinstance(response, Response):
            return _valid_no_response(response, request)
        if type(response.body) is not bytes:  # of a user's transport
            response.body = _as_bytes(response.body)
        return response

    def may_resend(self, last: NoResponse, connection: DirectConnection | None) -> bool:
        """Return True if a used connection has not sent the request, and another one may do it."""
        direct = self.resources.direct
        if direct is None or connection is None or not connection.was_used:
            return False
        return not (last.is_sent or direct.is_closed) and self.resources.loop.time() < self._until

    def end_attempt(self, last: Response | NoResponse | None) -> None:
        """End the attempt in progress, if there is one; None: it was cancelled.

        After an interrupt, its span may have begun without a request.
        """
        if self._sending is None and not (self.attempts and self.telemetry.attempt_span):
            return
        if isinstance(last, Response):
            self.last, self._is_written = last, True  # before any effect that can fail
        else:
            self._is_written |= self.is_reading if last is None else last.is_sent
        self._sending = None
        self.telemetry.end_attempt(last, self.entry)

    def _remaining(self) -> float:
        return self.deadline - self._pipeline.now()

    # --- the result

    def received_decision(self) -> Decision | None:
        """Return the decision that had arrived when an exception ended the call, or None."""
        with suppress(Exception):  # reading may be what has failed
            result = None if self.last is None else self.read(self.last)
            if isinstance(result, DECISIONS):
                return result
        return None

    def read(self, last: Response | NoResponse) -> Outcome | LoanError:
        """Return the outcome or the error for a response, or for the reason why none arrived."""
        if isinstance(last, NoResponse):
            is_callers_limit = last.error is ReadTimeoutError and self._within < self.timeout.attempt
            kind = DeadlineExceededError if is_callers_limit else last.error
            return self.transport_error(kind, last.cause_type, is_sent=last.is_sent)
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
        self.call.judge(last, result)
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


def copy_error(result: Result) -> Result:
    """Return a copy of an error, so that each caller raises its own, with its own traceback."""
    if isinstance(result, asyncio.CancelledError | GeneratorExit):
        return type(result)()
    if not isinstance(result, LoanError):
        return result
    again = type(result)(*result.args)
    again.__dict__.update(result.__dict__)  # what was added later, such as the trace id
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
    return no_response(request, type(response).__name__)


def no_response(request: Request, cause_type: str) -> NoResponse:
    """Return the result for a transport that raised an error or returned a wrong type."""
    error = ConnectionLostError if request.is_sent else ConnectError
    return NoResponse(error=error, cause_type=cause_type, is_sent=request.is_sent)
