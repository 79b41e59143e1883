"""Retries: after HTTP 500 only, within the attempts, the deadline and the retry quota."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeGuard

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_random_exponential

from loanasync._protocol.endpoints import SYSTEM_FAULT, Call
from loanasync._protocol.messages import NoResponse, Response
from loanasync._settings import RetryPolicy
from loanasync.errors.service import StoppedBy

_PRICE = 10  # so many calls that were answered well pay for one retry
_PATIENCE = 5.0  # seconds that a Retry-After may add to our own backoff

Sleep = Callable[[float], Awaitable[None]]


def is_system_fault(answer: Response | NoResponse | StoppedBy | None) -> TypeGuard[Response]:
    """Return True for the one response after which a call may be repeated (spec §7)."""
    return isinstance(answer, Response) and answer.status == SYSTEM_FAULT


class Quota:
    """A token bucket that keeps a failing service from being hit by every client's every retry."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity * _PRICE
        self._left = self._capacity

    def take(self) -> bool:
        """Take a retry out, if one is left."""
        if self._left < _PRICE:
            return False
        self._left -= _PRICE
        return True

    def earn(self) -> None:
        """Put a part of a retry back, for an answer that was no system fault."""
        self._left = min(self._capacity, self._left + 1)


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that an answer asks to wait, in either form that HTTP knows; 0 when it does not ask."""
    asked = headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdigit():
        return float(asked[:10])
    try:
        until = parsedate_to_datetime(asked)
    except (ValueError, OverflowError):  # a year of twenty digits is no reason to lose the answer
        return 0.0
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


class Stop:
    """Ends the attempts of a call (a stop condition of tenacity), and keeps the reason.

    Args:
        call: The call.
        policy: Number of attempts.
        quota: Of the client.
        remaining: Seconds until the call's deadline.
    """

    def __init__(self, call: Call, policy: RetryPolicy, quota: Quota, remaining: Callable[[], float]) -> None:
        self._call = call
        self._policy = policy
        self._quota = quota
        self._remaining = remaining
        self.reason: StoppedBy | None = None

    def __call__(self, state: RetryCallState) -> bool:
        if self._call.is_abandoned:
            self.reason = "cancelled"
        elif self._call.attempts >= self._policy.attempts:
            self.reason = "attempts"
        elif state.upcoming_sleep >= self._remaining():
            self.reason = "deadline"
        elif not self._quota.take():
            self.reason = "quota"
        return self.reason is not None


async def repeat(
    fault: Response,
    again: Callable[[], Awaitable[Response | NoResponse | StoppedBy]],
    policy: RetryPolicy,
    stop: Stop,
    sleep: Sleep,
) -> tuple[Response | NoResponse, StoppedBy | None]:
    """Repeat after a first response with status 500.

    Args:
        fault: That response.
        again: Makes another attempt, or returns why the call cannot make one.
        policy: Backoff.
        stop: Ends the attempts.
        sleep: Waits the given seconds.

    Returns:
        The last response, and what ended the attempts if it is a 500 too.
    """
    jitter = wait_random_exponential(multiplier=policy.base, max=policy.cap)
    is_first = True
    given_up: BaseException | None = None

    async def attempt() -> Response | NoResponse | StoppedBy | None:
        # tenacity counts attempts from its first call, and the first attempt has been made.
        nonlocal fault, is_first, given_up
        if is_first:
            is_first = False
            return fault
        try:
            answer = await again()
        except BaseException as error:  # noqa: BLE001  (raised below: tenacity would tie it into a cycle)
            given_up = error
            return None
        if isinstance(answer, Response):
            fault = answer
        return answer

    def wait(state: RetryCallState) -> float:
        assert state.outcome is not None  # noqa: S101  (tenacity's order: outcome, wait, stop)
        backoff = jitter(state)
        return min(max(backoff, retry_after(state.outcome.result().headers)), backoff + _PATIENCE)

    def last(state: RetryCallState) -> Response:
        assert state.outcome is not None  # noqa: S101  (as above)
        reply: Response = state.outcome.result()
        return reply

    retrying = AsyncRetrying(
        retry=retry_if_result(is_system_fault),
        wait=wait,
        stop=stop,
        sleep=sleep,
        retry_error_callback=last,
    )
    try:
        answer: Response | NoResponse | StoppedBy | None = await retrying(attempt)
        if given_up is not None:
            raise given_up
        return (answer, stop.reason) if isinstance(answer, Response | NoResponse) else (fault, answer)
    finally:
        given_up = None
        retrying.iter_state.reset()  # its actions refer to itself
