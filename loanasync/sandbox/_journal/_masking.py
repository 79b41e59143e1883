"""What of a call may be shown: a list of what is not personal; all else is masked."""

import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from loanasync.sandbox._outcomes import UnknownTagError, read_email, words_of

__all__ = ["MASK", "masked", "masked_answer", "masked_email", "pseudonym", "shown"]

MASK = "***"
_KEY = secrets.token_bytes(16)

# spec §2.1 and §2.2: the order, not the person; what is not listed here, unknown fields too, is masked.
_NUMBERS = frozenset({"amount", "netAmount", "instalments", "installments", "paymentDayOfMonth"})
_FLAGS = frozenset({"approved", "zeroInterestRate", "additionalDataNeeded"})
_WORDS = {
    "loanFinality": {"ecommerce_shop"},
    "documentOfType": {"identity_card", "driving_license", "passport"},
    "paymentDayOfMonth": {str(day) for day in range(1, 32)},
}


def shown(name: str, value: object) -> object:
    """A field's value where it is nobody's, and is what the field is for; else the mask."""
    if name == "email":
        return masked_email(value)
    number = isinstance(value, int | float) and not isinstance(value, bool) and name in _NUMBERS
    flag = isinstance(value, bool) and name in _FLAGS
    word = isinstance(value, str) and value in _WORDS.get(name, ())
    return value if number or flag or word else MASK


def masked(body: Mapping[str, Any] | None, *, told: bool = False) -> dict[str, Any] | None:
    """A body with the names of all its fields and the values that are nobody's.

    Args:
        body: A JSON object.
        told: It is an answer of the service's own, whose sentences quote nothing.
    """
    if body is None:
        return None
    sentences = ("error", "errors") if told else ()
    return {name: value if name in sentences else shown(name, value) for name, value in body.items()}


def masked_answer(
    body: Mapping[str, Any] | list[Any] | None, *, told: bool = False
) -> dict[str, Any] | list[Any] | None:
    """Mask the body of a response: an object as in `masked`, an array element by element."""
    if isinstance(body, list):
        return [masked(each, told=told) if isinstance(each, Mapping) else MASK for each in body]
    return masked(body, told=told)


def masked_email(email: object) -> str:
    """An address of which only the sandbox's tag is left."""
    try:
        read_email(email)
    except UnknownTagError:  # what stands there may be a name
        return MASK
    words = words_of(email)
    return f"{MASK}+{words}@{MASK}" if words else MASK


def pseudonym(code: str) -> str:
    """A name for a customer that tells nothing of them, the same for as long as this process lives."""
    return blake2b(code.encode(), key=_KEY, digest_size=6).hexdigest() if code else ""
