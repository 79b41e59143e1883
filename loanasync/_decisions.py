"""What comes back from an approval: a decision, approved or refused, and never anything in between."""

from collections.abc import Mapping
from typing import Literal, NoReturn, TypeAlias

from attrs import field, frozen

from loanasync._display import JSON, NO_MEMBERS, mask
from loanasync._meta import Meta
from loanasync._models import Citizenship

__all__ = ["Approved", "Decision", "Refused"]


# No slots here: twenty frozen fields are set in a dict three times as fast, and each call makes one of these.
@frozen(kw_only=True, slots=False)
class _Echo:
    """The members that both decisions share (spec §2.1, response); None is what did not come."""

    email: str | None = field(default=None, repr=mask)
    last_name: str | None = field(default=None, repr=mask)
    first_name: str | None = field(default=None, repr=mask)
    fiscal_code: str | None = field(default=None, repr=mask)
    mobile_phone: str | None = field(default=None, repr=mask)
    city: str | None = field(default=None, repr=mask)
    address: str | None = field(default=None, repr=mask)
    province: str | None = field(default=None, repr=mask)
    postal_code: str | None = field(default=None, repr=mask)
    street_number: str | None = field(default=None, repr=mask)
    citizenship: Citizenship | str | None = field(default=None, repr=mask)
    iban: str | None = field(default=None, repr=mask)
    amount: int | None = None
    net_amount: int | None = None
    instalments: int | None = None
    zero_interest_rate: bool | None = None
    order_token: str | None = field(default=None, repr=mask)
    payment_day_of_month: int | None = None
    raw: Mapping[str, JSON] = field(default=NO_MEMBERS, hash=False)
    meta: Meta

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a decision is neither true nor false: read decision.approved, "
            "or use match with case Approved() and case Refused()"
        )

    def _repr_html_(self) -> str:
        from loanasync import _html as html  # noqa: PLC0415  (in a notebook only)

        pairs = html.rows(self, amount=html.euro, net_amount=html.euro)
        order = [(name, value) for name, value in pairs if name not in ("approved", "raw", "meta")]
        tone: html.Tone = "good" if isinstance(self, Approved) else "bad"
        return html.card(type(self).__name__, tone, pairs=order, notes=[html.line(self.meta)])


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
    redirect_url: str | None = field(default=None, repr=mask)


@frozen(kw_only=True, slots=False)
class Refused(_Echo):
    """The service refused the customer (spec §3, 422): final, and the call must not be repeated.

    Its members are those of `Approved`, without a redirect.

    Example:
        >>> Refused(amount=45_000, meta=Meta(status=422, attempts=1, elapsed=0.2)).approved
        False
    """

    approved: Literal[False] = field(default=False, init=False)


Decision: TypeAlias = Approved | Refused
