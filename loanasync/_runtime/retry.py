"""Retries: after HTTP 500 only, within the attempts, the deadline and the retry quota."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeGuard

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_random_exponential

from loanasync._protocol.endpoints import SYSTEM_FAULT, Call, content_of
from loanasync._protocol.error_bodies import states_decision
from loanasync._protocol.messages import NoResponse, Response
from loanasync._settings import RetryPolicy
from loanasync.errors.service import StoppedBy

_RETRY_COST = 10  # tokens of the quota; each call without a 500 returns one
_MAX_EXTRA_WAIT = 5.0  # seconds that a Retry-After header may add to the backoff

Sleep = Callable[[float], Awaitable[None]]


def is_system_fault(response: Response | NoResponse | StoppedBy | None) -> TypeGuard[Response]:
    """Return True for a status 500 without a decision: only then may a call be retried (spec §7)."""
    if not isinstance(response, Response) or response.status != SYSTEM_FAULT:
        return False
    content, _ = content_of(response)
    return not states_decision(content)


class Quota:
    """A token bucket for the retries of one client, so that they do not overload a failing service."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity * _RETRY_COST
        self.used: int = 0  # tokens

    def take(self) -> bool:
        """Pay for one retry; return False if there are too few tokens."""
        if self.used + _RETRY_COST > self._capacity:
            return False
        self.used += _RETRY_COST
        return True

    def refill(self) -> None:
        """Return one token, after a response without a system fault."""
        if self.used:
            self.used -= 1


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the wait of a Retry-After header in seconds; 0 without a valid one.

    The header may be a number of seconds or a date (RFC 9110 §10.2.3).
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:10])
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # a year of twenty digits, for example
        return 0.0
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


class Stop:
    """The stop condition of a call's retries, for tenacity. `reason` is set when it stops them.

    Args:
        call: The call.
        policy: Its retry policy, for the number of attempts.
        quota: The retry quota of the client.
        remaining: Returns the seconds until the deadline of the call.
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


async def retry_request(
    fault: Response,
    retry_attempt: Callable[[], Awaitable[Response | NoResponse | StoppedBy]],
    policy: RetryPolicy,
    stop: Stop,
    sleep: Sleep,
) -> tuple[Response | NoResponse, StoppedBy | None]:
    """Retry a request after its first attempt had a response with status 500.

    Args:
        fault: The response of the first attempt.
        retry_attempt: Makes another attempt, or returns the reason why it cannot be made.
        policy: The backoff.
        stop: Decides whether to make another attempt.
        sleep: Waits the given number of seconds.

    Returns:
        The last response, and the reason for making no further attempt if its status is 500.
    """
    jitter = wait_random_exponential(multiplier=policy.base, max=policy.cap)
    is_first = True
    failure: BaseException | None = None

    async def attempt() -> Response | NoResponse | StoppedBy | None:
        # The first attempt was made before. Return its response first, so that tenacity counts it.
        nonlocal fault, is_first, failure
        if is_first:
            is_first = False
            return fault
        try:
            response = await retry_attempt()
        except BaseException as error:  # noqa: BLE001  (raised below, as tenacity would put it in a cycle)
            failure = error
            return None
        if isinstance(response, Response):
            fault = response
        return response

    def wait(state: RetryCallState) -> float:
        assert state.outcome is not None  # noqa: S101  (tenacity sets it before it calls this)
        backoff = jitter(state)
        return min(max(backoff, retry_after(state.outcome.result().headers)), backoff + _MAX_EXTRA_WAIT)

    def last(state: RetryCallState) -> Response:
        assert state.outcome is not None  # noqa: S101  (tenacity sets it before it calls this)
        response: Response = state.outcome.result()
        return response

    retrying = AsyncRetrying(
        retry=retry_if_result(is_system_fault),
        wait=wait,
        stop=stop,
        sleep=sleep,
        retry_error_callback=last,
    )
    try:
        result: Response | NoResponse | StoppedBy | None = await retrying(attempt)
        if failure is not None:
            raise failure
        return (result, stop.reason) if isinstance(result, Response | NoResponse) else (fault, result)
    finally:
        # These break reference cycles: of error, traceback and frame, and of tenacity's list of actions.
        failure = None
        retrying.iter_state.reset()
