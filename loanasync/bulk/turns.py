"""The moments at which rows are sent: evenly at a rate, and one at a time while nothing can be sent."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import cast

from loanasync._models.decisions import Decision
from loanasync.bulk.next_steps import next_step, seconds_to_wait
from loanasync.errors import CircuitOpenError, ClientClosedError, InFlightError, LoanError

_TIMER_DELAY = 0.01  # seconds by which a timer may be late; a longer delay is a pause of the caller
_CHECK = 1.0  # longest time, in seconds, after which a waiting row notices that the pause is over
_LONGEST_DELAY = 30.0  # seconds between two attempts while the service or the ledger cannot be reached
_LONGEST_PAUSE = 3600.0  # seconds of waiting without a success, after which the run stops


class Rate:
    """Limits how many calls start in a second. After a pause there is no burst to catch up.

    Args:
        rate: Calls in a second.
        now: Clock, in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        rate: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._interval = 1 / rate
        self._now = now
        self._sleep = sleep
        self._next_start = -float("inf")

    async def wait(self) -> None:
        """Wait until the next call may start."""
        now = self._now()
        start = now if self._next_start < now - _TIMER_DELAY else self._next_start
        self._next_start = start + self._interval
        if start > now:
            await self._sleep(start - now)


class Turns:
    """Sends rows. While nothing can be sent, rows wait, and one at a time tries again.

    Nothing can be sent while the circuit breaker is open. After the first decision, this is also so while the
    service or the ledger cannot be reached: before, a setting may be wrong.

    Args:
        open_circuit: Returns the error of the circuit breaker if it is open, else None.
        sleep: Waits a number of seconds.
    """

    def __init__(
        self,
        open_circuit: Callable[[], CircuitOpenError | None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.has_decision: bool = False  # of any row
        self.given_up: str = ""  # the reason to stop the run: nothing could be sent for an hour
        self._open_circuit = open_circuit
        self._sleep = sleep
        self._error: LoanError | None = None  # because of which rows wait, besides that of the breaker
        self._delay = _CHECK  # seconds until a row tries again
        self._waited = 0.0  # seconds since the last success
        self._trials: set[int] = set()  # rows in progress that were sent while the circuit breaker was open
        self._turn = asyncio.Lock()  # held by the one row that tries
        self._is_stopped = False
        # Tasks whose row waits until it may be sent, in the order in which they began. `stop` cancels them.
        self._waiting: dict[asyncio.Task[None], None] = {}

    @property
    def paused(self) -> LoanError | None:
        """The error because of which rows wait, None if they are sent."""
        return self._open_circuit() or self._error

    def stop(self) -> None:
        """Send no row that waits."""
        self._is_stopped = True
        for task in self._waiting:
            task.cancel()

    def is_counted(self, index: int) -> bool:
        """Return False for a row that was in progress when the breaker opened, which has counted it."""
        is_trial = index in self._trials
        self._trials.discard(index)
        return is_trial or self._open_circuit() is None

    async def send(self, index: int, approve: Callable[[], Awaitable[Decision]]) -> Decision:
        """Send a row as soon as it may be sent, again if nothing could be sent.

        Raises:
            LoanError: The last error that says what became of a request.
        """
        own: LoanError | None = None
        while True:
            try:
                if (refusal := self.paused) is None:
                    return await approve()
                await self._wait(own or refusal)
                try:
                    if self.paused is not None:
                        if self._open_circuit() is not None:
                            self._trials.add(index)
                        return await self._try(approve)
                finally:
                    self._turn.release()
            except LoanError as error:
                if own is None or own.outcome == "not_sent" or error.outcome != "not_sent":
                    own = error
                if self._is_stopped or not self._may_wait(error):
                    raise own from None
                error.__traceback__ = None
                if not isinstance(error, CircuitOpenError):
                    self._error = error

    async def _try(self, approve: Callable[[], Awaitable[Decision]]) -> Decision:
        """Send the row whose turn it is. Unless it ends as before, the other rows are sent, too."""
        try:
            decision = await approve()
        except LoanError as error:
            if not self._may_wait(error):
                self._end_pause()
            elif not isinstance(error, CircuitOpenError):
                self._delay = min(2 * self._delay, _LONGEST_DELAY)
            raise
        self._end_pause()
        return decision

    def _end_pause(self) -> None:
        self._error, self._delay, self._waited = None, _CHECK, 0.0

    def _may_wait(self, error: LoanError) -> bool:
        """Return True if the row is to be tried again: a restart of the service or the ledger may end soon.

        A row in flight elsewhere may take long.
        """
        if isinstance(error, CircuitOpenError):
            return True
        if not self.has_decision or isinstance(error, InFlightError | ClientClosedError):
            return False
        if next_step(error) != "put back":
            return False
        if self._waited < _LONGEST_PAUSE:
            return True
        self.given_up = f"stopped after an hour in which no row could be sent ({type(error).__name__})"
        self.stop()
        return False

    async def _wait(self, refusal: LoanError) -> None:
        """Wait until the row may try, or until the pause is over. Then hold `_turn`.

        Raises:
            LoanError: The run was stopped.
            CancelledError: The task was cancelled. The cause of this error is a `LoanError`.
        """
        if self._is_stopped:
            raise refusal
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._waiting[task] = None
        try:
            await self._turn.acquire()
            try:
                await self._wait_out()
            except BaseException:
                self._turn.release()
                raise
        except asyncio.CancelledError as error:
            raise error from refusal
        finally:
            self._waiting.pop(task, None)

    async def _wait_out(self) -> None:
        left = max(self._delay, 0.0 if self._error is None else seconds_to_wait(self._error))
        while True:
            if (circuit := self._open_circuit()) is not None:
                seconds = circuit.retry_after
            else:
                seconds = left if self._error is not None else 0.0
            if seconds <= 0:
                return
            seconds = min(seconds, _CHECK)
            await self._sleep(seconds)
            if circuit is None:
                left -= seconds
                self._waited += seconds
