"""`Dialect`, the differences between the two descriptions of the approval call (spec §2.1)."""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Literal, get_args

import attrs
from attrs import frozen

from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync.errors import ConfigurationError


def wire_names(model: type) -> dict[str, str]:
    """Return the wire names of a model's fields that are sent.

    Raises:
        TypeError: A field has no metadata "wire", so it would never be sent.
    """
    names = {}
    for each in attrs.fields(model):
        if "wire" not in each.metadata:
            raise TypeError(f'{model.__name__}.{each.name}: add metadata={{"wire": ...}}, None if never sent')
        names[each.name] = each.metadata["wire"]
    return {name: wire for name, wire in names.items() if wire is not None}


# spec §2.1: where the descriptions differ, the name in Dialect.street_number().
APPROVAL_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **wire_names(ApprovalRequest),
        **wire_names(AdditionalData),
        # in the response only
        "fiscal_code": "fiscalCode",
        "net_amount": "netAmount",
        "redirect_url": "redirectUrl",
    }
)
# spec §2.2
USER_DATA_NAMES: Mapping[str, str] = MappingProxyType(wire_names(UserData))

# Names that are accepted in responses, whichever dialect is used, and the names that replace them.
READ_ALIASES: Mapping[str, str] = MappingProxyType(
    {"civicNumber": "streetNumber", "installments": "instalments"}
)

_FIELD_NAMES = {
    **{wire: name for name, wire in USER_DATA_NAMES.items()},
    **{wire: name for name, wire in APPROVAL_NAMES.items()},
}


def field_name(wire_name: str) -> str:
    """Return the field name for a wire name of either description. Unknown wire names stay unchanged.

    Example:
        >>> field_name("civicNumber"), field_name("lastname"), field_name("privacy")
        ('street_number', 'last_name', 'privacy')
    """
    return _FIELD_NAMES.get(READ_ALIASES.get(wire_name, wire_name), wire_name)


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
