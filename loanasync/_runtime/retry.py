"""The condition of retries (HTTP 500 without a decision), the retry quota and Retry-After."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeGuard

from loanasync._protocol.endpoints import SYSTEM_FAULT, content_of
from loanasync._protocol.error_bodies import states_decision
from loanasync._protocol.messages import NoResponse, Response
from loanasync.errors import StoppedBy

_RETRY_COST = 10  # tokens of the quota; each call without a 500 returns one
MAX_EXTRA_WAIT = 5.0  # seconds that a Retry-After header may add to the backoff

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
