"""One call from its span to its outcome: slot, attempts, deadline, retries."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from attrs import define, evolve

from loanasync._lifecycle import Waits
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._results import Approved, Meta, Refused
from loanasync._runtime.per_loop import PerLoop
from loanasync._runtime.retry import Quota, Sleep, Stop, is_system_fault, repeat
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry.spans import CallRecord, Telemetry
from loanasync.errors import (
    ClientClosedError,
    ConnectError,
    DeadlineExceededError,
    LedgerError,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    SystemFaultError,
)
from loanasync.errors.service import StoppedBy

if TYPE_CHECKING:
    from loanasync.errors.transport import Sent


Claim: TypeAlias = Callable[[], Awaitable[LoanError | None]]


class Sender(Protocol):
    """One event loop's way to the service: over aiohttp (`_transport`), or a script in a shop's tests."""

    def check(self) -> None:
        """Look whether a call can begin."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""

    async def aclose(self) -> None:
        """Close what was opened."""


class Guard(Protocol):
    """What stands around a call that may be made once only, such as a ledger."""

    async def __call__(
        self, record: CallRecord, ask: Callable[[Claim], Awaitable[Outcome | LoanError]], *, is_busy: bool
    ) -> Outcome | LoanError:
        """Come to an outcome, asking the service or not.

        Args:
            record: What the call tells.
            ask: Asks the service; what it is given is called when the call has its place, just before the
                first byte, and an error that comes of it is the outcome, with nothing sent.
            is_busy: Whether a call has to wait for its place now.
        """


class _Lane:
    """One event loop's transport, the slots for its calls, and the number of calls in progress."""

    def __init__(self, transport: Sender, slots: int | None) -> None:
        self.transport = transport
        self.waits = Waits()
        self._slots = None if slots is None else asyncio.Semaphore(slots)
        self._calls = 0
        self._idle: asyncio.Event | None = None  # set when the last call has ended, for `close`

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls and self._idle is not None:
            self._idle.set()

    def keep_until(self, late: "asyncio.Future[Response | NoResponse]", call: Call) -> None:
        """Count a call as in progress, and keep its slot, until its late response has come."""
        self.__enter__()
        late.add_done_callback(lambda _: self.release_slot(call))
        late.add_done_callback(self.__exit__)

    @property
    def is_full(self) -> bool:
        """Whether the next call has to wait for another to end."""
        return self._slots is not None and self._slots.locked()

    async def take_slot(self, call: Call, within: float, *, has_to_wait: bool) -> bool:
        """Take a slot for a call; if all are taken, wait at most `within` seconds."""
        if self._slots is None:
            call.has_slot = True
        elif not has_to_wait:
            call.has_slot = await self._slots.acquire()  # at once
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    call.has_slot = await self._slots.acquire()
        return call.has_slot

    def obstacle(self, call: Call) -> StoppedBy | None:
        """Return why a call cannot make another attempt, or None if it can."""
        if not call.has_slot:
            return "slot"
        return "closed" if self.waits.is_closed else None

    def release_slot(self, call: Call) -> None:
        """Give a call's slot back, if it has one."""
        if call.has_slot:
            call.has_slot = False
            if self._slots is not None:
                self._slots.release()

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
            if self._calls:
                self._idle = self._idle or asyncio.Event()  # it may be closed twice at once
                async with asyncio.timeout(within):
                    await self._idle.wait()
        except TimeoutError:
            pass
        finally:  # also when the closing itself is cancelled
            self.waits.close()
            await self.transport.aclose()


@define
class _Answer:
    """The last response of a call's attempts, or the reason why none arrived."""

    last: Response | NoResponse
    stopped_by: StoppedBy | None = None


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


class Pipeline:
    """What a client and its light copies share: sessions, places, quota and instruments."""

    def __init__(
        self,
        open_transport: Callable[[], Sender],
        telemetry: Telemetry,
        quota: Quota,
        places: int | None,
        *,
        forgotten: Callable[[], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        # No method of ours goes in: without a cycle, a forgotten client is noticed when it is dropped.
        self._lanes = PerLoop(lambda: _Lane(open_transport(), places), _Lane.close, forgotten)
        self._telemetry = telemetry
        self._quota = quota
        self._places = places
        self._now = now
        self._sleep = sleep
        self._closed = False

    def left(self, call: Call, timeout: Timeout) -> Timeout:
        """Return the time limits for the rest of a call that has begun."""
        spent = self._now() - call.started
        return evolve(timeout, total=max(timeout.total - spent, _LEAST))

    def over(
        self, open_transport: Callable[[], Sender], *, now: Callable[[], float], sleep: Sleep
    ) -> "Pipeline":
        """The same instruments, quota and places over another way to the service and another clock."""
        return Pipeline(open_transport, self._telemetry, self._quota, self._places, now=now, sleep=sleep)

    async def run(
        self, call: Call, timeout: Timeout, retry: RetryPolicy, guard: "Guard | None" = None
    ) -> Outcome:
        """Make a call; with a guard, only what it lets through.

        Raises:
            LoanError: Whatever the call came to, if it is not an outcome.
        """
        if self._closed:
            raise ClientClosedError
        started = call.started = self._now()
        lane = self._lanes.here()
        lane.transport.check()
        with lane, self._telemetry.call(call) as record:
            call.trace_id = record.trace_id
            if guard is None:
                outcome = await self._outcome(call, lane, record, started, timeout, retry)
            else:
                ask = partial(self._outcome, call, lane, record, started, timeout, retry)
                outcome = await guard(record, ask, is_busy=lane.is_full)
            if isinstance(outcome, LoanError):
                if isinstance(outcome, LedgerError):
                    outcome.trace_id = record.trace_id
                # Raised here, where no `except` is near: nothing of aiohttp's, whose errors print the
                # token and the URL, is its cause or context.
                try:
                    raise outcome
                finally:
                    del outcome  # or error, traceback and frame would hold each other
            return outcome

    async def _outcome(
        self,
        call: Call,
        lane: _Lane,
        record: CallRecord,
        started: float,
        timeout: Timeout,
        retry: RetryPolicy,
        claim: Claim | None = None,
    ) -> Outcome | LoanError:
        operation = call.endpoint.operation
        deadline = started + timeout.total
        has_to_wait = lane.is_full
        # A ledger may have taken a part of the time.
        await lane.take_slot(call, deadline - self._now(), has_to_wait=has_to_wait)
        try:
            if has_to_wait:
                record.queued(self._now() - started, None if call.has_slot else "PoolTimeoutError")
            if not call.has_slot:
                outcome: Sent = "unknown" if call.after_unknown or call.fault else "not_sent"
                return PoolTimeoutError(
                    operation, "TimeoutError", outcome, call.attempts, record.trace_id, call.entry
                )
            if claim is not None and (obstacle := await claim()) is not None:
                return obstacle
            answer = await self._answer(call, lane, record, deadline, timeout, retry)
        finally:
            if call.sending is None or call.sending.late is None:
                lane.release_slot(call)
            else:  # cancelled, and the response is still read
                lane.keep_until(call.sending.late, call)
        call.has_ended = True
        if answer.stopped_by is not None:
            record.stopped(answer.stopped_by)
        ended = self._concluded(call, answer)
        if isinstance(ended, Approved | Refused):
            record.decided(approved=ended.approved)
        return ended

    def conclude(self, call: Call, answer: Response | NoResponse) -> Outcome | LoanError:
        """Return what a late response means, whose caller was cancelled: it is not retried."""
        return self._concluded(call, _Answer(answer, "cancelled" if is_system_fault(answer) else None))

    def _concluded(self, call: Call, answer: _Answer) -> Outcome | LoanError:
        last, operation = answer.last, call.endpoint.operation
        if isinstance(last, NoResponse):
            # After a 500 the service has seen the request, whatever became of the last attempt.
            outcome: Sent = "unknown" if call.after_unknown or call.fault or last.is_sent else "not_sent"
            return last.error(operation, last.cause_type, outcome, call.attempts, call.trace_id, call.entry)
        meta = Meta(
            last.status,
            call.attempts,
            self._now() - call.started,
            call.trace_id,
            (),
            *_correlation(last.headers, call),
            call.entry,
            call.after_unknown,
        )
        ended = call.read(last, meta)
        if isinstance(ended, SystemFaultError) and answer.stopped_by is not None:
            return evolve(ended, stopped_by=answer.stopped_by)
        return ended

    async def _answer(
        self,
        call: Call,
        lane: _Lane,
        record: CallRecord,
        deadline: float,
        timeout: Timeout,
        retry: RetryPolicy,
    ) -> _Answer:
        def remaining() -> float:
            return deadline - self._now()

        async def attempt() -> Response | NoResponse:
            within = min(timeout.attempt, remaining())
            if within <= 0 or lane.waits.is_closed:
                return _TOO_LATE if within <= 0 else _CLOSED
            call.attempts += 1
            with record.attempt(call.attempts) as sending:
                request = call.sending = call.request(sending.headers)
                answer = await lane.transport.send(request, connect=timeout.connect, within=within)
                if isinstance(answer, Response):
                    sending.answered(answer.status, answer.fault)
                    return answer
                if answer.error is ReadTimeoutError and within < timeout.attempt:
                    answer = evolve(answer, error=DeadlineExceededError)
                sending.unanswered(answer.cause_type)
                return answer

        # A call may go on after a 500 that another caller was waiting for, who left.
        last = call.fault or await attempt()
        if isinstance(last, NoResponse) or not is_system_fault(last):
            if isinstance(last, Response):
                self._quota.earn()
            return _Answer(last)

        async def pause(seconds: float) -> None:
            call.sending = None
            lane.release_slot(call)
            await lane.wait(self._sleep(seconds))

        async def again() -> Response | NoResponse | StoppedBy:
            await lane.take_slot(call, remaining(), has_to_wait=lane.is_full)
            return lane.obstacle(call) or await attempt()

        call.fault = last
        return _Answer(*await repeat(last, again, retry, Stop(call, retry, self._quota, remaining), pause))

    async def aclose(self, drain: float) -> None:
        """Take no more calls, wait for those under way at most `drain` seconds, and close the sessions."""
        self._closed = True
        await self._lanes.aclose(drain)

    def close_from_outside(self, drain: float) -> None:
        """`aclose` for who stands in no event loop, such as a fixture between two tests."""
        self._closed = True
        self._lanes.close_from_outside(drain)
