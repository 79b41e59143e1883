"""What of a call may be shown: a list of what is not personal; all else is masked."""

from collections.abc import Mapping
from typing import Any

from loanasync.sandbox.outcomes import UnknownTagError, read_email, words_of

__all__ = ["MASK", "is_shown", "masked", "masked_email"]

MASK = "***"

# spec §2.1 and §2.2: the order, not the person; what is not listed here, unknown fields too, is masked.
_SHOWN = frozenset(
    {
        *("amount", "netAmount", "instalments", "installments", "loanFinality", "zeroInterestRate"),
        *("approved", "paymentDayOfMonth", "additionalDataNeeded", "documentOfType", "documents"),
        *("error", "errors"),  # the service's own sentences, which quote nothing
    }
)


def is_shown(name: str) -> bool:
    """Whether a field's value may be shown."""
    return name in _SHOWN


def masked(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A body with the names of all its fields and the values that are nobody's."""
    if body is None:
        return None
    return {
        name: masked_email(value) if name == "email" else value if name in _SHOWN else MASK
        for name, value in body.items()
    }


def masked_email(email: object) -> str:
    """An address of which only the sandbox's tag is left."""
    try:
        read_email(email)
    except UnknownTagError:  # what stands there may be a name
        return MASK
    words = words_of(email)
    return f"{MASK}+{words}@{MASK}" if words else MASK
