"""Masking of personal data in calls: only values on a list of harmless ones are shown."""

import re
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from loanasync.sandbox.outcomes import UnknownTagError, decision_texts, parse_email, tag_of
from loanasync.sandbox.validation import DOCUMENT_TYPES

MASK = "***"
_MESSAGES = ("error", "errors")  # spec §7
_FIELD = re.compile("[a-z][A-Za-z0-9_]{0,39}")
_MAX_NAME_DIGITS = 4  # a fiscal code in lower case has more
_KEY = secrets.token_bytes(16)
_TEXTS = [text for approved in (True, False) for text in decision_texts(approved=approved).values()]

# spec §2.1 and §2.2: fields of the order with their harmless types and values. All other fields, also unknown
# ones, are masked.
_HARMLESS: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("amount", "netAmount", "instalments", "installments"), (int, float)),
    **dict.fromkeys(("approved", "zeroInterestRate", "additionalDataNeeded"), (bool,)),
    "loanFinality": ("ecommerce_shop",),
    "documentOfType": DOCUMENT_TYPES,
    "paymentDayOfMonth": (int, float, *(str(day) for day in range(1, 32))),
    # texts of the sandbox itself
    "documents": ("received",),
    **dict.fromkeys(decision_texts(approved=True), tuple(_TEXTS)),
}


def masked_value(name: str, value: object) -> object:
    """Return the value of a field if it is not personal and is valid for the field, else the mask."""
    if name == "email":
        return masked_email(value)
    harmless = _HARMLESS.get(name, ())
    return value if type(value) in harmless or (isinstance(value, str) and value in harmless) else MASK


def masked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with all field names and with personal values masked."""
    return {_masked_name(name): masked_value(name, value) for name, value in body.items()}


def _masked_name(name: str) -> str:
    """Return a member name, masked if it may be personal: members of documents can be named like a person."""
    digits = sum(map(str.isdecimal, name))
    return name if _FIELD.fullmatch(name) and digits < _MAX_NAME_DIGITS else MASK


def masked_response(response: Mapping[str, Any], request: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the body of a response of the sandbox; its messages, which contain no values, stay readable.

    Args:
        response: Body of the response.
        request: Body of the request. A completion returns all fields that were sent, also one that is named
            like a member with messages.
    """
    sent = request or {}
    messages = {name: response[name] for name in _MESSAGES if name in response and name not in sent}
    return masked(response) | messages


def masked_email(email: object) -> str:
    """Return an e-mail address in which only the sandbox's tag is readable."""
    try:
        parse_email(email)
    except UnknownTagError:  # the text may be a person's name
        return MASK
    words = tag_of(email)
    return f"{MASK}+{words}@{MASK}" if words else MASK


def pseudonym(code: str) -> str:
    """Return a keyed hash that identifies a customer without personal data until the process ends."""
    return blake2b(code.encode(), key=_KEY, digest_size=6).hexdigest() if code else ""
