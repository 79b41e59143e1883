"""The values that calls return: decisions, and the metadata of responses and errors."""

from collections.abc import Mapping
from typing import Literal, NoReturn, TypeAlias

from attrs import field, frozen

from loanasync._display.masking import JSON, NO_MEMBERS, mask
from loanasync._enums import Citizenship


@frozen
class Problem:
    """One broken rule, in one shape whether this package or the service found it.

    Args:
        field: Our name of the field, such as ``postal_code``; a wire name we do not know as it came.
        wire_name: The name under which the service knows it, such as ``postalCode``.
        message: A sentence that helps to correct it. It never repeats the value.

    Example:
        >>> print(Problem("amount", "amount", "must be between 5000 and 1500000 (euro cents)"))
        amount: must be between 5000 and 1500000 (euro cents)
    """

    field: str
    """Our name of the field; a wire name that we do not know as it came (spec §7)."""
    wire_name: str
    """The name under which the service knows it (spec §7)."""
    message: str
    """A sentence that helps to correct it; never the value (spec §7)."""

    def __str__(self) -> str:
        # spec §7: the one message of a 403 and of a 409 belongs to no field
        return f"{self.field}: {self.message}" if self.field else self.message


@frozen(slots=False)  # made with each call, and so in half the time
class Meta:
    """Metadata of a response or an error, without personal data: safe to log.

    Args:
        status: HTTP status of the last answer. If a person settled the decision, the status of the response
            that the ledger keeps; without one, 201 if it is approved and 422 if it is refused.
        attempts: How many requests were sent for this call; more than 1 only after a 500.
        elapsed: Seconds from the call's first step to its answer, waiting and sleeping included.
        trace_id: The trace's 32 hex digits when a trace was recorded or passed on, else None.
        unread: Wire names of members that came with a type outside spec §2 and therefore are None as
            attributes; ``raw`` still holds them. ``body`` if the body as a whole could not be read.
        request_id: The service's id of the request, from a response header such as ``X-Request-Id``.
        date: The response header ``Date``.
        retry_after: The response header ``Retry-After``.
        entry: Key of the call's entry in the ledger, None without a ledger.
        after_unknown: True if an earlier call for this approval has an unknown outcome.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> decision.meta.status, decision.meta.attempts, decision.meta.unread
        (201, 1, ())
    """

    status: int
    """HTTP status of the last answer (spec §4); by the state of the entry if a person settled it."""
    attempts: int
    """Requests sent for this call; more than 1 only after a 500 (spec §7)."""
    elapsed: float
    """Seconds from the call's first step to its answer, waiting and sleeping included."""
    trace_id: str | None = None
    """The trace's 32 hex digits, when a trace was recorded or passed on."""
    unread: tuple[str, ...] = ()
    """Wire names of members that came with a type outside the specification (spec §2)."""
    request_id: str | None = None
    """The service's id of the request, from a response header."""
    date: str | None = None
    """The response header ``Date``."""
    retry_after: str | None = None
    """The response header ``Retry-After``."""
    entry: str | None = None
    """Key of the call's entry in the ledger."""
    after_unknown: bool = False
    """True if an earlier call for this approval has an unknown outcome."""


@frozen
class RawResponse:
    """A response as it was received, kept so that nothing is lost. It is personal, and masked when printed.

    Args:
        status: HTTP status.
        body: The bytes that arrived, at most 1 MiB; incomplete if the connection broke.

    Example:
        >>> from loanasync import RawResponse
        >>> RawResponse(201, b"{")
        RawResponse(status=201, body=***)
    """

    status: int
    """HTTP status (spec §4)."""
    body: bytes = field(repr=mask)
    """The bytes that arrived (spec §2.1)."""


# No slots here: twenty frozen fields are set in a dict three times as fast, and each call makes one of these.
@frozen(kw_only=True, slots=False)
class _Echo:
    """The members that both decisions share (spec §2.1, response); None is what did not come."""

    email: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    last_name: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1, ``lastname``)."""
    first_name: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1, ``firstname``)."""
    fiscal_code: str | None = field(default=None, repr=mask)
    """The customer's fiscal code (spec §2.1)."""
    mobile_phone: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    city: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    address: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    province: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    postal_code: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    street_number: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1, ``streetNumber`` or ``civicNumber``)."""
    citizenship: Citizenship | str | None = field(default=None, repr=mask)
    """As it was sent; a value that this version does not know stays a str (spec §2.1)."""
    iban: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    amount: int | None = None
    """Amount requested, euro cents (spec §2.1)."""
    net_amount: int | None = None
    """What the shop receives on successful payment, euro cents (spec §2.1)."""
    instalments: int | None = None
    """Number of instalments (spec §2.1)."""
    zero_interest_rate: bool | None = None
    """Whether the zero rate is enabled (spec §2.1)."""
    order_token: str | None = field(default=None, repr=mask)
    """Token of the order (spec §2.1)."""
    payment_day_of_month: int | None = None
    """Day of the month on which instalments are paid (spec §2.1)."""
    raw: Mapping[str, JSON] = field(default=NO_MEMBERS, hash=False)
    """The body as it came, read-only, unknown members included (spec §2.1)."""
    meta: Meta
    """How the answer came about: status, attempts, seconds, trace id (spec §4.1)."""

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a decision is neither true nor false: read decision.approved, "
            "or use match with case Approved() and case Refused()"
        )


@frozen(kw_only=True, slots=False)
class Approved(_Echo):
    """The order may be financed (spec §3, 201): send the customer to `redirect_url`.

    The answer comes once. Keep it before anything else is done with it. The echo of what was sent has the
    names of `ApprovalRequest`; a member that did not come, or came with a type outside the specification
    (then named in ``meta.unread``), is None.

    Args:
        redirect_url: Where the customer must be sent (spec §1.3, mandatory where it is returned); opaque,
            holds a token, never log it. None where the service does not return one.
        amount: Amount requested, euro cents.
        net_amount: What the shop receives on successful payment, euro cents.
        instalments: Number of instalments.
        zero_interest_rate: Whether the zero rate is enabled.
        payment_day_of_month: Day of the month on which instalments are paid.
        raw: The body as it came, read-only, unknown members included.
        meta: Status, attempts, elapsed seconds, trace id.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> match decision:
        ...     case Approved(redirect_url=url):
        ...         print("send the customer on:", url is not None)
        ...     case Refused():
        ...         print("offer another way to pay")
        send the customer on: True
    """

    approved: Literal[True] = field(default=True, init=False)
    """True: the service approved (spec §3)."""
    redirect_url: str | None = field(default=None, repr=mask)
    """Where the customer must be sent (spec §1.3); it holds a token: opaque, never log it."""


@frozen(kw_only=True, slots=False)
class Refused(_Echo):
    """The service refused the customer (spec §3, 422): final, and the call must not be repeated.

    Its members are those of `Approved`, without a redirect.

    Example:
        >>> Refused(amount=45_000, meta=Meta(status=422, attempts=1, elapsed=0.2)).approved
        False
    """

    approved: Literal[False] = field(default=False, init=False)
    """False: the service refused, which is final (spec §3)."""


Decision: TypeAlias = Approved | Refused
"""What an approval comes to: match it over `Approved` and `Refused`; nothing else can come (spec §3)."""
