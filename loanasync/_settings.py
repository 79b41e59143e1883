"""Settings of a client: time limits, retries, and the limits of requests."""

import math
import re

from attrs import frozen

from loanasync.errors import ConfigurationError


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


@frozen(kw_only=True, cache_hash=True)  # each call looks its rules up
class Limits:
    """The limits that requests are checked against before anything is sent (spec §2.1, §8).

    Args:
        amount_min: Least loan amount, euro cents.
        amount_max: Greatest loan amount, euro cents.
        instalments_min: Fewest instalments.
        instalments_max: Most instalments.
        province: Pattern that the whole province matches.
        postal_code: Pattern that the whole postal code matches.
        street_number: Pattern that the whole street number matches. One description says five digits;
            numbers such as ``12/A`` or ``SNC`` are real, so by default it is only not blank.
        mobile_phone: Pattern that the whole mobile number matches, such as ``[0-9]+``. By default the
            number is only not blank and has no international prefix.
        country_calling_code: Pattern that the whole calling code matches, such as ``[+][0-9]{1,4}``.
        salary_max: Greatest salary, whole euros; with it, a salary below 0 is refused, too.
        single_line: Refuse texts with line breaks or other control characters.

    The last five are not in the specification: each is off by default.

    Raises:
        ConfigurationError: A range is empty, a pattern does not compile, or a value has a wrong type.

    Example:
        >>> Limits(amount_max=1_000_000, street_number="[0-9]{1,5}").amount_max
        1000000
    """

    amount_min: int = 5_000
    """Least loan amount, euro cents (spec §8)."""
    amount_max: int = 1_500_000
    """Greatest loan amount, euro cents (spec §8)."""
    instalments_min: int = 3
    """Fewest instalments (spec §8)."""
    instalments_max: int = 60
    """Most instalments (spec §8)."""
    province: str = "[A-Z]{2}"
    """Pattern that the whole province matches (spec §8)."""
    postal_code: str = "[0-9]{5}"
    """Pattern that the whole postal code matches (spec §8)."""
    street_number: str | None = None
    """Pattern that the whole street number matches; by default only blank ones are refused (spec §2.1)."""
    mobile_phone: str | None = None
    """Pattern that the whole mobile number matches; None accepts every number (spec §2.1)."""
    country_calling_code: str | None = None
    """Pattern that the whole calling code matches; None accepts every code (spec §2.1)."""
    salary_max: int | None = None
    """Greatest salary, whole euros; None accepts every salary (spec §2.1)."""
    single_line: bool = False
    """Refuse texts with line breaks or other control characters (spec §2)."""

    def __attrs_post_init__(self) -> None:
        for name in ("amount", "instalments"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if type(least) is not int or type(most) is not int or least > most:
                raise ConfigurationError(
                    f"limits.{name}_min", f"must be an int and no more than {name}_max, an int too"
                )
        for name in ("province", "postal_code", "street_number", "mobile_phone", "country_calling_code"):
            try:
                re.compile(getattr(self, name) or "")
            except (re.error, TypeError):
                raise ConfigurationError(f"limits.{name}", "must be a regular expression as a str") from None
        if self.salary_max is not None and (type(self.salary_max) is not int or self.salary_max < 0):
            raise ConfigurationError("limits.salary_max", "must be a positive int of whole euros, or None")
        if type(self.single_line) is not bool:
            raise ConfigurationError("limits.single_line", "must be True or False")
