"""Dialects: the differences between the two descriptions of the approval call (spec §2.1)."""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Literal, get_args

import attrs
from attrs import frozen

from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync.errors import ConfigurationError


def wire_names(model: type) -> dict[str, str]:
    """Return the wire names of a model's fields; a field without the entry "wire" could be lost in silence.

    Raises:
        TypeError: The metadata of a field does not say its wire name.
    """
    names = {}
    for each in attrs.fields(model):
        if "wire" not in each.metadata:
            raise TypeError(f'{model.__name__}.{each.name}: add metadata={{"wire": ...}}, None if never sent')
        names[each.name] = each.metadata["wire"]
    return {name: wire for name, wire in names.items() if wire is not None}


# spec §2.1: where the descriptions differ, the name of Dialect.street_number().
APPROVAL_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **wire_names(ApprovalRequest),
        **wire_names(AdditionalData),
        # of the response only
        "fiscal_code": "fiscalCode",
        "net_amount": "netAmount",
        "redirect_url": "redirectUrl",
    }
)
# spec §2.2
USER_DATA_NAMES: Mapping[str, str] = MappingProxyType(wire_names(UserData))

# Read as the name on the right, whichever dialect is spoken.
READ_ALIASES: Mapping[str, str] = MappingProxyType(
    {"civicNumber": "streetNumber", "installments": "instalments"}
)

_FIELDS = {
    **{wire: name for name, wire in USER_DATA_NAMES.items()},
    **{wire: name for name, wire in APPROVAL_NAMES.items()},
}


def field_of(wire_name: str) -> str:
    """Our name for a wire name of either description; one that we do not know stays as it is.

    Example:
        >>> field_of("civicNumber"), field_of("lastname"), field_of("privacy")
        ('street_number', 'last_name', 'privacy')
    """
    return _FIELDS.get(READ_ALIASES.get(wire_name, wire_name), wire_name)


@frozen(kw_only=True, slots=False, cache_hash=True)  # each call looks its converter up
class Dialect:
    """Which of the two descriptions of the approval call is written (spec §2.1).

    Reading accepts the spellings of both. The specification says that the descriptions differ in these
    points; it does not say which differences belong together, nor which server speaks which. Each
    preset therefore turns only the knob that its name says. Spellings default to the ones that the
    service's own validation messages and responses use. Set every other knob with ``Dialect(...)``.

    Args:
        street_number_field: Wire name of the street number.
        instalments_field: Wire name of the number of instalments.
        italian: Spelling of the Italian citizenship.
        order_token_required: Whether `ApprovalRequest.order_token` must be given.
        sends_iban: Whether `ApprovalRequest.iban` is part of the call.
        sends_payment_day_of_month: Whether `ApprovalRequest.payment_day_of_month` is part of the call.

    Raises:
        ConfigurationError: A knob has a value that neither description knows.

    Example:
        >>> mine = Dialect(street_number_field="civicNumber", order_token_required=True)
        >>> mine.street_number_field, mine.instalments_field
        ('civicNumber', 'instalments')
    """

    street_number_field: Literal["streetNumber", "civicNumber"] = "streetNumber"
    """Wire name of the street number (spec §2.1)."""
    instalments_field: Literal["instalments", "installments"] = "instalments"
    """Wire name of the number of instalments (spec §2.1)."""
    italian: Literal["italian", "Italian"] = "italian"
    """Spelling of the Italian citizenship (spec §2.1)."""
    order_token_required: bool = False
    """Whether `ApprovalRequest.order_token` must be given (spec §2.1)."""
    sends_iban: bool = True
    """Whether `ApprovalRequest.iban` is part of the call (spec §2.1)."""
    sends_payment_day_of_month: bool = True
    """Whether `ApprovalRequest.payment_day_of_month` is part of the call (spec §2.1)."""

    def __attrs_post_init__(self) -> None:
        for knob in attrs.fields(Dialect):
            allowed = get_args(knob.type)  # empty unless the type is a Literal
            if allowed and getattr(self, knob.name) not in allowed:
                raise ConfigurationError(f"dialect.{knob.name}", f"must be {' or '.join(allowed)}")

    @classmethod
    def street_number(cls) -> "Dialect":
        """The description with ``streetNumber``, which the service's validation messages use too.

        Example:
            >>> Dialect.street_number().street_number_field
            'streetNumber'
        """
        return cls()

    @classmethod
    def civic_number(cls) -> "Dialect":
        """The description with ``civicNumber``; nothing else differs from `street_number` (spec §2.1).

        Example:
            >>> Dialect.civic_number().street_number_field, Dialect.civic_number().instalments_field
            ('civicNumber', 'instalments')
        """
        return cls(street_number_field="civicNumber")

    @cached_property
    def approval_names(self) -> Mapping[str, str]:
        """Wire names of the approval's fields in this dialect."""
        return {
            **APPROVAL_NAMES,
            "street_number": self.street_number_field,
            "instalments": self.instalments_field,
        }
