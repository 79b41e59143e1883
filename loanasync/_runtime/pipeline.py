"""One call: its span, its slot, its attempts within a deadline, and its outcome."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from attrs import evolve

from loanasync._lifecycle import Waits
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._results import Approved, Meta, Refused
from loanasync._runtime.per_loop import PerLoop
from loanasync._runtime.retry import Quota, Sleep, Stop, is_system_fault, repeat
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry.spans import CallRecord, Telemetry
from loanasync._transport.base import Transport
from loanasync._transport.failures import was_cancelled
from loanasync.errors import (
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    LedgerError,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    SystemFaultError,
    TransportError,
)
from loanasync.errors.service import StoppedBy

if TYPE_CHECKING:
    from loanasync.errors.transport import TransportOutcome


class _Lane:
    """One event loop's transport, the slots for its calls, and the number of calls in progress."""

    def __init__(self, transport: Transport, slots: int | None) -> None:
        self.transport = transport
        self.waits: Waits = Waits()
        self.slots: asyncio.Semaphore | None = None if slots is None else asyncio.Semaphore(slots)
        self.calls: int = 0
        self._idle: asyncio.Event | None = None  # set when the last call has ended, for `close`

    def end_call(self, _: object = None) -> None:
        """Count a call as ended."""
        self.calls -= 1
        if not self.calls and self._idle is not None:
            self._idle.set()

    async def wait(self, waiting: Awaitable[None]) -> None:
        """Wait, at most until the lane is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                self.waits.add(limit)
                try:
                    await waiting
                finally:
                    self.waits.discard(limit)

    async def close(self, within: float) -> None:
        """Wait at most `within` seconds for the calls in progress, end the others, close the transport."""
        try:
            if self.calls:
                self._idle = self._idle or asyncio.Event()  # it may be closed twice at once
                async with asyncio.timeout(within):
                    await self._idle.wait()
        except TimeoutError:
            pass
        finally:  # also when the closing itself is cancelled
            self.waits.close()
            await self.transport.aclose()


# The event loop was blocked until the deadline: no response could be waited for.
_TOO_LATE = NoResponse(error=DeadlineExceededError, cause_type="TimeoutError", is_sent=False)
_CLOSED = NoResponse(error=ConnectError, cause_type="SessionClosed", is_sent=False)
_LEAST = 1e-3  # seconds that a limit is at least
_REQUEST_IDS = ("X-Request-Id", "X-Correlation-Id", "Request-Id")
_RANDOM_ID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{32}")
_ID = re.compile(r"[A-Za-z0-9:/._+=-]{1,100}")
_TIME = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT|[0-9]{1,10}")


def _correlation(headers: Mapping[str, str], call: Call) -> tuple[str | None, str | None, str | None]:
    """Return request id, date and Retry-After of a response; no other header is kept."""
    request_id = None
    for name in _REQUEST_IDS:
        if (request_id := headers.get(name)) is not None:
            if _RANDOM_ID.fullmatch(request_id):  # as most are; the search costs more than all the rest
                break
            if not _ID.fullmatch(request_id) or call.is_repeated_in(request_id):
                request_id = None
            break
    date, retry_after = headers.get("Date"), headers.get("Retry-After")
    return (
        request_id,
        date if date is not None and _TIME.fullmatch(date) else None,
        retry_after if retry_after is not None and _TIME.fullmatch(retry_after) else None,
    )


def _no_response(request: Request, cause_type: str) -> NoResponse:
    """Return the outcome of a user's transport that broke the rules of `Transport`."""
    error = ConnectionLostError if request.is_sent else ConnectError
    return NoResponse(error=error, cause_type=cause_type, is_sent=request.is_sent)


def _must_be_raised(error: BaseException, transport: Transport) -> bool:
    """Return True for a cancellation by the caller, and for errors that a transport may raise.

    A transport of this package may raise errors (`raises_errors`), such as those of a session's hooks. Any
    other transport may raise the AssertionError of a test.
    """
    if getattr(transport, "raises_errors", False):
        return True
    return was_cancelled() if isinstance(error, asyncio.CancelledError) else isinstance(error, AssertionError)


def _is_transport_error(error: object) -> bool:
    return isinstance(error, type) and issubclass(error, TransportError)


class Pipeline:
    """The transports, slots, retry quota and telemetry that a client and its light copies share."""

    def __init__(
        self,
        open_transport: Callable[[], Transport],
        telemetry: Telemetry,
        quota: Quota,
        slots: int | None,
        *,
        on_unclosed: Callable[[], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        # No method of this object goes in: without a cycle, an unclosed client is noticed when it is dropped.
        self._lanes = PerLoop(lambda: _Lane(open_transport(), slots), _Lane.close, on_unclosed)
        self._telemetry = telemetry
        self.quota = quota
        self.now = now
        self.sleep = sleep
        self._closed = False

    def left(self, call: Call, timeout: Timeout) -> Timeout:
        """Return the time limits for the rest of a call that has begun."""
        spent = self.now() - call.started
        return evolve(timeout, total=max(timeout.total - spent, _LEAST))

    def start(self, call: Call, timeout: Timeout, retry: RetryPolicy) -> "Run":
        """Start a call: use it in a ``with`` block, and end the block with `Run.end`.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: The client's session belongs to another event loop.
        """
        if self._closed:
            raise ClientClosedError
        call.started = self.now()
        lane = self._lanes.here()
        lane.transport.check()
        return Run(self, lane, CallRecord(self._telemetry, call), call, timeout, retry)

    async def run(self, call: Call, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Make a call: take a slot, and send the request.

        Raises:
            LoanError: The call ended without an outcome.
        """
        with self.start(call, timeout, retry) as run:
            try:
                return run.end(await run.take_slot() or await run.send())
            finally:
                run.release_slot()

    def read(
        self, call: Call, last: Response | NoResponse, stopped_by: StoppedBy | None
    ) -> Outcome | LoanError:
        """Return the outcome or the error that a call's last response means.

        Args:
            call: The call.
            last: The last response, or the reason why none arrived.
            stopped_by: The reason why the attempts ended, if the response has status 500.
        """
        if isinstance(last, NoResponse):
            # After a 500 the service has seen the request, whatever became of the last attempt.
            outcome: TransportOutcome = (
                "unknown" if call.after_unknown or call.fault or last.is_sent else "not_sent"
            )
            operation = call.endpoint.operation
            return last.error(operation, last.cause_type, outcome, call.attempts, call.trace_id, call.entry)
        meta = Meta(
            last.status,
            call.attempts,
            self.now() - call.started,
            call.trace_id,
            (),
            *_correlation(last.headers, call),
            call.entry,
            call.after_unknown,
        )
        ended = call.read(last, meta)
        if isinstance(ended, SystemFaultError) and stopped_by is not None:
            return evolve(ended, stopped_by=stopped_by)
        return ended

    async def aclose(self, drain: float) -> None:
        """Take no more calls, wait `drain` seconds for those in progress, and close the transports."""
        self._closed = True
        await self._lanes.aclose(drain)

    def close_from_outside(self, drain: float) -> None:
        """Close from outside of any event loop, such as in a fixture between two tests."""
        self._closed = True
        self._lanes.close_from_outside(drain)


class Run:
    """One call in progress: its steps, its time and its telemetry.

    The steps are `take_slot`, `send` and `release_slot`. The claim of a ledger stands between the first two.
    """

    __slots__ = ("_call", "_deadline", "_lane", "_pipeline", "_retry", "_timeout", "record")

    def __init__(
        self,
        pipeline: Pipeline,
        lane: _Lane,
        record: CallRecord,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
    ) -> None:
        self._pipeline = pipeline
        self._lane = lane
        self._call = call
        self._timeout = timeout
        self._retry = retry
        self._deadline = call.started + timeout.total
        self.record: CallRecord = record

    def __enter__(self) -> Self:
        self.record.__enter__()
        self._call.trace_id = self.record.trace_id
        self._lane.calls += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.record.__exit__(kind, error, traceback)
        finally:
            self._lane.end_call()

    def end(self, ended: Outcome | LoanError) -> Outcome:
        """Return an outcome, or raise an error.

        Raises:
            LoanError: The call ended with it.
        """
        if isinstance(ended, LoanError):
            if isinstance(ended, LedgerError):
                ended.trace_id = self._call.trace_id
            # Raised here, where no `except` is near: nothing of aiohttp's, whose errors print the
            # token and the URL, is its cause or context.
            try:
                raise ended
            finally:
                del ended  # or error, traceback and frame would hold each other
        return ended

    @property
    def has_to_wait(self) -> bool:
        """True if all slots are taken."""
        slots = self._lane.slots
        return slots is not None and slots.locked()

    async def take_slot(self) -> LoanError | None:
        """Take a slot of the concurrency limit; return an error if none became free in time."""
        call, slots = self._call, self._lane.slots
        if slots is None or not slots.locked():
            call.has_slot = slots is None or await slots.acquire()  # at once
            return None
        await self._acquire()
        self.record.queued(self._pipeline.now() - call.started, None if call.has_slot else "PoolTimeoutError")
        if call.has_slot:
            return None
        outcome: TransportOutcome = "unknown" if call.after_unknown or call.fault else "not_sent"
        return PoolTimeoutError(
            call.endpoint.operation, "TimeoutError", outcome, call.attempts, call.trace_id, call.entry
        )

    def release_slot(self, _: object = None) -> None:
        """Give the slot back; after a cancelled call, once the response to its request has been read."""
        call, lane = self._call, self._lane
        late = None if call.sending is None else call.sending.late
        if late is not None and not late.done():
            lane.calls += 1
            late.add_done_callback(self.release_slot)
            late.add_done_callback(lane.end_call)
        elif call.has_slot:
            call.has_slot = False
            if lane.slots is not None:
                lane.slots.release()

    async def send(self) -> Outcome | LoanError:
        """Send the request, repeat it after a 500, and read the last response."""
        call, pipeline = self._call, self._pipeline
        # A call may go on after a 500 that another caller was waiting for, who left.
        last = call.fault or await self._attempt()
        stopped_by = None
        if is_system_fault(last):
            call.fault = last
            stop = Stop(call, self._retry, pipeline.quota, self._remaining)
            last, stopped_by = await repeat(last, self._attempt_again, self._retry, stop, self._pause)
        elif isinstance(last, Response):
            pipeline.quota.earn()
        call.has_ended = True
        if stopped_by is not None:
            self.record.stopped(stopped_by)
        ended = pipeline.read(call, last, stopped_by)
        if isinstance(ended, Approved | Refused):
            self.record.decided(approved=ended.approved)
        return ended

    async def _attempt(self) -> Response | NoResponse:
        call, lane, timeout = self._call, self._lane, self._timeout
        within = min(timeout.attempt, self._remaining())
        if within <= 0 or lane.waits.is_closed:
            return _TOO_LATE if within <= 0 else _CLOSED
        call.attempts += 1
        with self.record.attempt(call.attempts) as sending:
            request = call.sending = call.request(sending.headers)
            try:
                answer = await lane.transport.send(request, connect=timeout.connect, within=within)
            except (Exception, asyncio.CancelledError) as error:
                if _must_be_raised(error, lane.transport):
                    raise
                answer = _no_response(request, type(error).__name__)
            if isinstance(answer, Response):
                sending.answered(answer.status, answer.fault)
                return answer
            if not (isinstance(answer, NoResponse) and _is_transport_error(answer.error)):
                answer = _no_response(request, type(answer).__name__)
            if answer.error is ReadTimeoutError and within < timeout.attempt:
                answer = evolve(answer, error=DeadlineExceededError)
            sending.unanswered(answer.cause_type)
            return answer

    async def _pause(self, seconds: float) -> None:
        self._call.sending = None
        self.release_slot()
        await self._lane.wait(self._pipeline.sleep(seconds))

    async def _attempt_again(self) -> Response | NoResponse | StoppedBy:
        await self._acquire()
        if not self._call.has_slot:
            return "slot"
        return "closed" if self._lane.waits.is_closed else await self._attempt()

    async def _acquire(self) -> None:
        """Take a slot, or wait for one at most until the call's deadline."""
        slots = self._lane.slots
        with suppress(TimeoutError):
            async with asyncio.timeout(self._remaining()):
                self._call.has_slot = slots is None or await slots.acquire()

    def _remaining(self) -> float:
        return self._deadline - self._pipeline.now()
