"""Repeating after HTTP 500 and after nothing else, within attempts, deadline and quota."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_random_exponential

from loanasync._calls import SYSTEM_FAULT, NoAnswer, Reply
from loanasync._policy import RetryPolicy
from loanasync.errors._service import StoppedBy

__all__ = ["Quota", "is_system_fault", "repeat", "retry_after"]

_PRICE = 10  # so many calls that were answered well pay for one retry

Sleep = Callable[[float], Awaitable[None]]


def is_system_fault(answer: Reply | NoAnswer) -> bool:
    """Whether an answer is the one after which a call may be repeated (spec §7)."""
    return isinstance(answer, Reply) and answer.status == SYSTEM_FAULT


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


class _Stop:
    """Ends the attempts, and knows why."""

    def __init__(self, policy: RetryPolicy, quota: Quota, remaining: Callable[[], float]) -> None:
        self._policy = policy
        self._quota = quota
        self._remaining = remaining
        self.reason: StoppedBy | None = None

    def __call__(self, state: RetryCallState) -> bool:
        if state.attempt_number >= self._policy.attempts:
            self.reason = "attempts"
        elif state.upcoming_sleep >= self._remaining():
            self.reason = "deadline"
        elif not self._quota.take():
            self.reason = "quota"
        return self.reason is not None


async def repeat(
    fault: Reply,
    again: Callable[[], Awaitable[Reply | NoAnswer]],
    policy: RetryPolicy,
    quota: Quota,
    remaining: Callable[[], float],
    sleep: Sleep,
) -> tuple[Reply | NoAnswer, StoppedBy | None]:
    """Go on after a first answer with status 500: the last answer, and what ended it if it is a 500 too."""
    jitter = wait_random_exponential(multiplier=policy.base, max=policy.cap)
    stop = _Stop(policy, quota, remaining)
    first: Reply | None = fault
    given_up: BaseException | None = None

    async def attempt() -> Reply | NoAnswer | None:
        # tenacity counts attempts from its first call, and the first attempt has been made.
        nonlocal first, given_up
        if first is not None:
            reply, first = first, None
            return reply
        try:
            return await again()
        except BaseException as error:  # noqa: BLE001  (raised below: tenacity would tie it into a cycle)
            given_up = error
            return None

    def wait(state: RetryCallState) -> float:
        assert state.outcome is not None  # noqa: S101  (tenacity's order: outcome, wait, stop)
        return max(jitter(state), retry_after(state.outcome.result().headers))

    def last(state: RetryCallState) -> Reply:
        assert state.outcome is not None  # noqa: S101  (as above)
        reply: Reply = state.outcome.result()
        return reply

    retrying = AsyncRetrying(
        retry=retry_if_result(is_system_fault),
        wait=wait,
        stop=stop,
        sleep=sleep,
        retry_error_callback=last,
    )
    try:
        answer: Reply | NoAnswer = await retrying(attempt)
        if given_up is not None:
            raise given_up
        return answer, stop.reason
    finally:
        given_up = None
        retrying.iter_state.reset()  # its actions refer to itself
