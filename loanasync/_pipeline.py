"""The way of one call: span, place, attempts, answer; deadlines and retries are kept here."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeAlias

from attrs import define, evolve

from loanasync._calls import Call, NoAnswer, Outcome, Reply, Request
from loanasync._decisions import Approved, Refused
from loanasync._loops import PerLoop
from loanasync._meta import Meta
from loanasync._policy import RetryPolicy, Timeout
from loanasync._retry import Quota, Sleep, is_system_fault, repeat
from loanasync._telemetry import CallRecord, Telemetry
from loanasync.errors import (
    ClientClosedError,
    DeadlineExceededError,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    SystemFaultError,
)
from loanasync.errors._service import StoppedBy

__all__ = ["Claim", "Guard", "Pipeline", "Sender"]

Claim: TypeAlias = Callable[[], Awaitable[LoanError | None]]


class Sender(Protocol):
    """One event loop's way to the service: over aiohttp (`_transport`), or a script in a shop's tests."""

    def check(self) -> None:
        """Look whether a call can begin."""

    async def send(self, request: Request, *, connect: float, within: float) -> Reply | NoAnswer:
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
    """One event loop's transport, the places for its calls, and the calls that are under way."""

    def __init__(self, transport: Sender, places: int | None) -> None:
        self.transport = transport
        self._places = None if places is None else asyncio.Semaphore(places)
        self._calls = 0
        self._idle: asyncio.Event | None = None  # who closes waits for it

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls and self._idle is not None:
            self._idle.set()

    @property
    def is_full(self) -> bool:
        """Whether the next call has to wait for another to end."""
        return self._places is not None and self._places.locked()

    async def take_place(self, within: float, *, has_to_wait: bool) -> bool:
        """Take a place, and wait for one at most so many seconds if they are all taken."""
        if self._places is None:
            return True
        if not has_to_wait:
            return await self._places.acquire()  # at once
        try:
            async with asyncio.timeout(within):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def leave_place(self) -> None:
        """Let the next call in."""
        if self._places is not None:
            self._places.release()

    async def close(self, within: float) -> None:
        """Wait for the calls under way, at most so many seconds, and close the transport."""
        try:
            if self._calls:
                self._idle = self._idle or asyncio.Event()  # it may be closed twice at once
                async with asyncio.timeout(within):
                    await self._idle.wait()
        except TimeoutError:
            pass
        finally:  # also when the closing itself is cancelled
            await self.transport.aclose()


@define
class _Answer:
    """What the attempts of a call came to."""

    last: Reply | NoAnswer
    attempts: int
    after_fault: bool = False
    stopped_by: StoppedBy | None = None


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
        started = self._now()
        lane = self._lanes.here()
        lane.transport.check()
        with lane, self._telemetry.call(call) as record:
            if guard is None:
                outcome = await self._outcome(call, lane, record, started, timeout, retry)
            else:
                ask = partial(self._outcome, call, lane, record, started, timeout, retry)
                outcome = await guard(record, ask, is_busy=lane.is_full)
            if isinstance(outcome, LoanError):
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
        has_place = await lane.take_place(deadline - self._now(), has_to_wait=has_to_wait)
        try:
            if has_to_wait:
                record.queued(self._now() - started, None if has_place else "PoolTimeoutError")
            if not has_place:
                return PoolTimeoutError(operation, "TimeoutError", "no", 0, record.trace_id)
            if claim is not None and (obstacle := await claim()) is not None:
                return obstacle
            answer = await self._answer(call, lane, record, deadline, timeout, retry)
        finally:
            if has_place:
                lane.leave_place()
        if answer.stopped_by is not None:
            record.stopped(answer.stopped_by)
        last = answer.last
        if isinstance(last, NoAnswer):
            # After a 500 the service has seen the request, whatever became of the last attempt.
            sent = "maybe" if answer.after_fault else last.request_sent
            return last.error(operation, last.cause_type, sent, answer.attempts, record.trace_id)
        meta = Meta(last.status, answer.attempts, self._now() - started, record.trace_id)
        outcome = call.read(last, meta)
        if isinstance(outcome, SystemFaultError) and answer.stopped_by is not None:
            return evolve(outcome, stopped_by=answer.stopped_by)
        if isinstance(outcome, Approved | Refused):
            record.decided(approved=outcome.approved)
        return outcome

    async def _answer(
        self,
        call: Call,
        lane: _Lane,
        record: CallRecord,
        deadline: float,
        timeout: Timeout,
        retry: RetryPolicy,
    ) -> _Answer:
        attempts = 0

        def remaining() -> float:
            return deadline - self._now()

        async def attempt() -> Reply | NoAnswer:
            nonlocal attempts
            within = min(timeout.attempt, remaining())
            if within <= 0:  # a busy loop woke us late: ask nothing whose answer we could not wait for
                return NoAnswer(error=DeadlineExceededError, cause_type="TimeoutError", request_sent="no")
            attempts += 1
            with record.attempt(attempts) as sending:
                answer = await lane.transport.send(
                    call.request(sending.headers), connect=timeout.connect, within=within
                )
                if isinstance(answer, Reply):
                    sending.answered(answer.status, answer.fault)
                    return answer
                if answer.error is ReadTimeoutError and within < timeout.attempt:
                    answer = evolve(answer, error=DeadlineExceededError)
                sending.unanswered(answer.cause_type)
                return answer

        last = await attempt()
        if isinstance(last, NoAnswer):
            return _Answer(last, attempts)
        if not is_system_fault(last):
            self._quota.earn()
            return _Answer(last, attempts)
        last, stopped_by = await repeat(last, attempt, retry, self._quota, remaining, self._sleep)
        return _Answer(last, attempts, after_fault=True, stopped_by=stopped_by)

    async def aclose(self, drain: float) -> None:
        """Take no more calls, wait for those under way at most `drain` seconds, and close the sessions."""
        self._closed = True
        await self._lanes.aclose(drain)

    def close_from_outside(self, drain: float) -> None:
        """`aclose` for who stands in no event loop, such as a fixture between two tests."""
        self._closed = True
        self._lanes.close_from_outside(drain)
