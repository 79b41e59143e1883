"""The retry quota and Retry-After."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from loanasync._settings import RetryPolicy

_RETRY_COST = 10  # tokens of the quota; each call without a 500 returns one
MAX_EXTRA_WAIT = 5.0  # seconds that a Retry-After header may add to the backoff

Sleep = Callable[[float], Awaitable[None]]


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


def backoff_after(attempts: int, retry: RetryPolicy) -> float:
    """Return the seconds to wait after some attempts: tenacity's exponential backoff with full jitter."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = attempts
    return wait_random_exponential(multiplier=retry.base, max=retry.cap)(state)


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
