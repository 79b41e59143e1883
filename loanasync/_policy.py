"""Settings for retries and timeouts, for a client or for a single call."""

import math

from attrs import frozen

from loanasync.errors import ConfigurationError

__all__ = ["RetryPolicy", "Timeout"]


def _require_seconds(owner: str, **settings: object) -> None:
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigurationError(f"{owner}.{name}", "must be a number of seconds above 0")


def _require_count(owner: str, least: int, **settings: object) -> None:
    for name, value in settings.items():
        if type(value) is not int or value < least:
            raise ConfigurationError(f"{owner}.{name}", f"must be an int of at least {least}")


@frozen(kw_only=True)
class RetryPolicy:
    """When a call that was answered with HTTP 500 is repeated; no other response or failure is retried.

    The wait before attempt n is random between 0 and ``base * 2 ** (n - 2)`` seconds, at most `cap`. A longer
    ``Retry-After`` of the response is honoured for at most 5 more seconds. While a call waits, its slot is
    free for others. Repeating ends at `attempts`, when the wait would pass the call's deadline, when the
    client's quota is used up, or when the call gets no slot again.

    Args:
        attempts: Requests sent at the most, the first included; 1 never repeats.
        base: Seconds of the first wait at the most.
        cap: Seconds of any wait at the most.
        quota: Retries that a client may have in hand for all its calls. A retry takes one; ten calls
            answered with anything but a 500 give one back. It keeps a failing service from being hit
            harder. The quota of the client is the one that counts, also for calls with their own policy.

    Raises:
        ConfigurationError: A value that cannot be.

    Example:
        >>> RetryPolicy(attempts=1).attempts
        1
    """

    attempts: int = 3
    """Requests sent at the most, the first included; again only after a 500 (spec §7)."""
    base: float = 0.2
    """Seconds of the first wait at the most."""
    cap: float = 5.0
    """Seconds of any wait at the most."""
    quota: int = 50
    """Retries that a client may have in hand for all its calls."""

    def __attrs_post_init__(self) -> None:
        _require_count("retry", 1, attempts=self.attempts)
        _require_count("retry", 0, quota=self.quota)
        _require_seconds("retry", base=self.base, cap=self.cap)


@frozen(kw_only=True)
class Timeout:
    """Time limits of a call, in seconds; the specification names no time-outs (§8).

    Args:
        total: Seconds for the whole call: the wait for a slot, the ledger, all attempts, and the waits
            between them. The deadline also holds for a request whose caller was cancelled.
        attempt: Seconds for one attempt, from connecting to the last byte of the response.
        connect: Seconds to establish a connection; less than `attempt`. If no connection was established, the
            attempt was not sent, whichever limit ended it.

    Raises:
        ConfigurationError: A value that cannot be.

    Example:
        >>> Timeout(total=10, attempt=8, connect=2).total
        10
    """

    total: float = 60.0
    """Seconds for the whole call, waits included (spec §8)."""
    attempt: float = 30.0
    """Seconds for one attempt (spec §8)."""
    connect: float = 5.0
    """Seconds to establish a connection; less than `attempt` (spec §8)."""

    def __attrs_post_init__(self) -> None:
        _require_seconds("timeout", total=self.total, attempt=self.attempt, connect=self.connect)
        if self.connect >= self.attempt:
            raise ConfigurationError("timeout.connect", "must be less than timeout.attempt")
