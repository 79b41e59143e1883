"""Settings of a client: retries, time limits, circuit breaker, limits, telemetry and dialect."""

import math
import re
import sys
from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal, Self, get_args

import attrs
from attrs import Factory, field, frozen
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from loanasync._models import values
from loanasync._models.masking import ValueObject
from loanasync._models.requests import APPROVAL_NAMES
from loanasync._shop import AuthToken, Shop, configure
from loanasync.errors import ConfigurationError

Propagate = Literal["traceparent", "global", "off"]

_LARGEST = sys.float_info.max  # an int may be larger
_DEFAULT_MAX_CONCURRENCY = 100  # with the client's own session


def require(expected_type: type, setting: str, value: object) -> None:
    """Check the type of a setting when the client is created, not when the setting is first used.

    Raises:
        ConfigurationError: The value has another type.
    """
    if not isinstance(value, expected_type) or (expected_type is int and isinstance(value, bool)):
        raise ConfigurationError(
            setting, f"must be of type {expected_type.__name__}, not {values.type_name(value)}"
        )


def require_seconds(owner: str, **settings: object) -> None:
    """Check the seconds of time limits.

    Raises:
        ConfigurationError: A value is no finite number greater than 0.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            raise ConfigurationError(f"{owner}.{name}", "must be a number of seconds greater than 0")


def problem_of_wait(value: object) -> str | None:
    """Return why a value is no number of seconds to wait for another owner, or None. Infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return "must be a number of seconds, 0 or more"
    if _LARGEST < value < math.inf:
        return "is too large; use math.inf to wait without this limit"
    return None


def require_wait(setting: str, value: object) -> None:
    """Check the number of seconds that a call waits for another owner.

    Raises:
        ConfigurationError: `problem_of_wait` returns a problem.
    """
    if (problem := problem_of_wait(value)) is not None:
        raise ConfigurationError(setting, problem)


def _require_count(owner: str, minimum: int, **settings: object) -> None:
    for name, value in settings.items():
        if type(value) is not int or value < minimum:
            raise ConfigurationError(f"{owner}.{name}", f"must be an int of at least {minimum}")


@frozen(kw_only=True, eq=False, repr=False)
class RetryPolicy(ValueObject):
    """Retries after HTTP status 500 (spec §7). No other response or error is retried.

    The wait before attempt n is a random time between 0 and ``base * 2 ** (n - 2)`` seconds, at most `cap`.
    If the response has a ``Retry-After`` that is longer, the call waits up to 5 seconds longer. Other calls
    can use the slot of a call that waits.

    A call is not retried if it has used all `attempts` or if the wait would pass its deadline. It is also not
    retried if the client's quota is used up, or if no slot is free after the wait.

    Args:
        attempts: Maximum number of requests, including the first. 1 disables retries.
        base: Maximum of the first wait, seconds.
        cap: Maximum of any wait, seconds.
        quota: Maximum number of retries that all calls of a client have in reserve. Each retry uses one, and
            ten calls whose first response is not a 500 restore one. So retries do not overload a failing
            service.
            A policy that is passed to a single call does not change the quota of the client.

    Raises:
        ConfigurationError: A value is invalid.

    Example:
        >>> RetryPolicy(attempts=1).attempts
        1
    """

    attempts: int = 3
    """Maximum number of requests, including the first; only a 500 is retried (spec §7)."""
    base: float = 0.2
    """Maximum of the first wait, seconds."""
    cap: float = 5.0
    """Maximum of any wait, seconds."""
    quota: int = 50
    """Maximum number of retries that all calls of a client have in reserve."""

    def __attrs_post_init__(self) -> None:
        _require_count("retry", 1, attempts=self.attempts)
        _require_count("retry", 0, quota=self.quota)
        require_seconds("retry", base=self.base, cap=self.cap)


def _shorter(seconds: float, limit: object) -> float:
    """Return the smaller of two times; a limit of a wrong type is refused later."""
    return min(seconds, limit) if isinstance(limit, int | float) else seconds


@frozen(kw_only=True, eq=False, repr=False)
class Timeout(ValueObject):
    """Time limits of a call, in seconds. The specification does not state any (spec §8).

    Args:
        total: Seconds that a caller waits: for a slot, the ledger, all attempts, and the waits between them.
            No attempt begins later. A caller of `approve` whose time is over gets a `DeadlineExceededError`;
            the response is still read and remembered, or written to the ledger.
        attempt: Seconds for one attempt, from connecting to the last byte of the response. For an approval,
            it may end after `total`.
        connect: Seconds to establish a connection, at most `attempt`; by default 5, or `attempt` if that is
            less. Without a connection, the attempt counts as not sent.

    Raises:
        ConfigurationError: A value is invalid.

    Example:
        >>> Timeout(total=10, attempt=3).connect
        3
    """

    total: float = 20.0
    """Seconds that a caller waits (spec §8)."""
    attempt: float = 30.0
    """Seconds for one attempt (spec §8)."""
    connect: float = field(default=Factory(lambda self: _shorter(5.0, self.attempt), takes_self=True))
    """Seconds to establish a connection, at most `attempt` (spec §8)."""

    def __attrs_post_init__(self) -> None:
        require_seconds("timeout", total=self.total, attempt=self.attempt, connect=self.connect)
        if self.connect > self.attempt:
            raise ConfigurationError("timeout.connect", "must not be greater than timeout.attempt")

    @property
    def longest(self) -> float:
        """The seconds after which an approval has ended, as its last attempt begins before `total`.

        Example:
            >>> Timeout(total=10, attempt=3).longest
            13
        """
        return self.total + self.attempt


@frozen(kw_only=True, eq=False, repr=False)
class CircuitBreaker(ValueObject):
    """Pause of approvals while the service decides none. A client and its copies share one breaker.

    It opens after failures of several customers, without a decision between them. While it is open,
    `approve` raises `CircuitOpenError` and sends nothing. It still returns a known decision. After `pause`
    seconds, one call at a time tries. A decision closes the breaker. A further failure opens it for another
    pause.

    A 4xx, such as a 403 or a 409, and a decision that cannot be read never count: shoppers can cause a 409,
    and a 403 evaluates nobody. A request that was not sent does not count either.

    Args:
        unknown: Number of customers whose approval ended without a response or, after its last attempt, with
            a 5xx.
        within: Seconds in which these failures must happen.
        pause: Seconds until a call tries again.

    Raises:
        ConfigurationError: A value is invalid.

    Example:
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> shop = scripted_client(connection_lost(), breaker=CircuitBreaker(unknown=1))
        >>> for code in ("TSTXYZ00A00A000A", "TSTXYZ00A00A000B"):
        ...     try:
        ...         run(shop.approve(code, request))
        ...     except LoanError as error:
        ...         print(type(error).__name__, error.outcome)
        ConnectionLostError unknown
        CircuitOpenError not_sent
    """

    unknown: int = 5
    """Number of customers whose approval ended with a 5xx or without a response (spec §7)."""
    within: float = 60.0
    """Seconds in which these failures must happen."""
    pause: float = 30.0
    """Seconds until a call tries again."""

    def __attrs_post_init__(self) -> None:
        _require_count("breaker", 1, unknown=self.unknown)
        require_seconds("breaker", within=self.within, pause=self.pause)


@frozen(kw_only=True, cache_hash=True)  # each call uses it as a cache key
class Limits:
    """Limits that requests are checked against before they are sent (spec §2.1, §8).

    A pattern is a regular expression that the whole text must match.

    Args:
        amount_min: Minimum loan amount, euro cents.
        amount_max: Maximum loan amount, euro cents.
        instalments_min: Minimum number of instalments.
        instalments_max: Maximum number of instalments.
        province: Pattern of the province.
        postal_code: Pattern of the postal code.
        mobile_phone: Pattern of the mobile number, such as ``[0-9]+``. The specification states none, so by
            default only blank numbers and numbers with an international prefix are refused.

    Raises:
        ConfigurationError: A range is empty, a pattern does not compile, or a value has a wrong type.

    Example:
        >>> Limits(amount_max=1_000_000, mobile_phone="[0-9]+").amount_max
        1000000
    """

    amount_min: int = 5_000
    """Minimum loan amount, euro cents (spec §8)."""
    amount_max: int = 1_500_000
    """Maximum loan amount, euro cents (spec §8)."""
    instalments_min: int = 3
    """Minimum number of instalments (spec §8)."""
    instalments_max: int = 60
    """Maximum number of instalments (spec §8)."""
    province: str = "[A-Z]{2}"
    """Pattern of the province (spec §8)."""
    postal_code: str = "[0-9]{5}"
    """Pattern of the postal code (spec §8)."""
    mobile_phone: str | None = None
    """Pattern of the mobile number; None refuses only blank ones and international prefixes (spec §2.1)."""

    def __attrs_post_init__(self) -> None:
        for name in ("amount_min", "amount_max", "instalments_min", "instalments_max"):
            if type(value := getattr(self, name)) is not int:
                raise ConfigurationError(f"limits.{name}", f"must be an int, not {type(value).__name__}")
        for name in ("amount", "instalments"):
            if getattr(self, f"{name}_min") > getattr(self, f"{name}_max"):
                raise ConfigurationError(f"limits.{name}_min", f"must not be greater than {name}_max")
        for name in ("province", "postal_code", "mobile_phone"):
            try:
                re.compile(getattr(self, name) or "")
            except (re.error, TypeError):
                raise ConfigurationError(f"limits.{name}", "must be a regular expression as a str") from None


@frozen(kw_only=True, eq=False, repr=False)
class Telemetry(ValueObject):
    """OpenTelemetry's providers for the spans and metrics of a client, and the trace headers that it sends.

    Args:
        tracer_provider: Tracer provider, by default the global one.
        meter_provider: Meter provider, by default the global one.
        propagate: Trace headers to send: ``traceparent``, those of the ``global`` propagator, or ``off``.

    Raises:
        ConfigurationError: A value has a wrong type, or `propagate` is unknown.

    Example:
        >>> from opentelemetry.trace import NoOpTracerProvider
        >>> Telemetry(tracer_provider=NoOpTracerProvider(), propagate="off").propagate
        'off'
    """

    tracer_provider: TracerProvider | None = None
    """Tracer provider; None uses the global one."""
    meter_provider: MeterProvider | None = None
    """Meter provider; None uses the global one."""
    propagate: Propagate = "traceparent"
    """Trace headers to send."""

    def __attrs_post_init__(self) -> None:
        for product in ("Tracer", "Meter"):
            setting = f"{product.lower()}_provider"
            value = getattr(self, setting)
            if value is not None and not callable(getattr(value, f"get_{product.lower()}", None)):
                raise ConfigurationError(
                    f"telemetry.{setting}",
                    f"must be an OpenTelemetry {product}Provider, not {type(value).__name__}",
                )
        if self.propagate not in get_args(Propagate):
            choices = ", ".join(get_args(Propagate))
            raise ConfigurationError("telemetry.propagate", f"must be one of {choices}")


@frozen(kw_only=True, slots=False, cache_hash=True)  # each call uses it as a cache key
class Dialect:
    """Format of the approval request, where the two descriptions of the call differ (spec §2.1).

    Responses are read in either format. The specification lists the differences. It does not say which of
    them belong together, nor which server uses which. Each preset therefore sets only the option in its name;
    set all others with ``Dialect(...)``. The defaults are the names in the service's validation messages and
    responses.

    Args:
        street_number_field: Wire name of the street number.
        instalments_field: Wire name of the number of instalments.
        italian: Spelling of the Italian citizenship.
        order_token_required: True if `ApprovalRequest.order_token` is required.
        sends_iban: True if `ApprovalRequest.iban` may be sent.
        sends_payment_day_of_month: True if `ApprovalRequest.payment_day_of_month` may be sent.

    Raises:
        ConfigurationError: An option has a value that neither description lists.

    Example:
        >>> dialect = Dialect(street_number_field="civicNumber", order_token_required=True)
        >>> dialect.street_number_field, dialect.instalments_field
        ('civicNumber', 'instalments')
    """

    street_number_field: Literal["streetNumber", "civicNumber"] = "streetNumber"
    """Wire name of the street number (spec §2.1)."""
    instalments_field: Literal["instalments", "installments"] = "instalments"
    """Wire name of the number of instalments (spec §2.1)."""
    italian: Literal["italian", "Italian"] = "italian"
    """Spelling of the Italian citizenship (spec §2.1)."""
    order_token_required: bool = False
    """True if `ApprovalRequest.order_token` is required (spec §2.1)."""
    sends_iban: bool = True
    """True if `ApprovalRequest.iban` may be sent (spec §2.1)."""
    sends_payment_day_of_month: bool = True
    """True if `ApprovalRequest.payment_day_of_month` may be sent (spec §2.1)."""

    def __attrs_post_init__(self) -> None:
        for option in attrs.fields(Dialect):
            allowed = get_args(option.type)  # empty unless the type is a Literal
            if allowed and getattr(self, option.name) not in allowed:
                raise ConfigurationError(f"dialect.{option.name}", f"must be {' or '.join(allowed)}")

    @classmethod
    def street_number(cls) -> "Dialect":
        """Return the dialect with ``streetNumber``, the name in the service's validation messages.

        Example:
            >>> Dialect.street_number().street_number_field
            'streetNumber'
        """
        return cls()

    @classmethod
    def civic_number(cls) -> "Dialect":
        """Return the dialect with ``civicNumber`` that otherwise equals `street_number` (spec §2.1).

        Example:
            >>> Dialect.civic_number().street_number_field, Dialect.civic_number().instalments_field
            ('civicNumber', 'instalments')
        """
        return cls(street_number_field="civicNumber")

    @cached_property
    def approval_names(self) -> Mapping[str, str]:
        """Wire names of the fields of an approval in this dialect."""
        return {
            **APPROVAL_NAMES,
            "street_number": self.street_number_field,
            "instalments": self.instalments_field,
        }


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class Options(ValueObject):
    """The options of a client: shop, dialect, limits, retries, timeouts and strictness."""

    shop: Shop
    dialect: Dialect
    limits: Limits
    retry: RetryPolicy
    timeout: Timeout
    strict: bool

    def __attrs_post_init__(self) -> None:
        require(Dialect, "dialect", self.dialect)
        require(Limits, "limits", self.limits)
        require(RetryPolicy, "retry", self.retry)
        require(Timeout, "timeout", self.timeout)
        require(bool, "strict", self.strict)
        if self.strict and find_spec("stdnum") is None:
            raise ConfigurationError(
                "strict", "needs python-stdnum; run: pip install '.[strict]' in a checkout"
            )

    def with_changes(
        self, *, shop_id: str | None = None, auth_token: AuthToken | None = None, **changes: object
    ) -> Self:
        """Return a copy with the changes that are not None.

        Raises:
            ConfigurationError: A setting is invalid; the error names it.
        """
        new: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        try:
            if (shop_id is None) != (auth_token is None):
                raise ConfigurationError("shop_id", "must be given together with auth_token")
            if shop_id is not None:
                new["shop"] = configure(self.shop.base_url, shop_id, auth_token)
        finally:
            del auth_token  # secret: must not be in a traceback
        return attrs.evolve(self, **new)


def slot_count(session: object, max_concurrency: int | None) -> int | None:
    """Return the number of slots per event loop, None if the user's session limits the connections.

    Raises:
        ConfigurationError: `max_concurrency` is not a positive int.
    """
    if max_concurrency is None:
        return _DEFAULT_MAX_CONCURRENCY if session is None else None
    require(int, "max_concurrency", max_concurrency)
    if max_concurrency < 1:
        raise ConfigurationError("max_concurrency", "must be at least 1, or None")
    return max_concurrency
