"""Masking of calls: values on a list of harmless ones are shown, all others are masked."""

import re
import secrets
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from loanasync.sandbox.outcomes import UnknownTagError, read_email, words_of
from loanasync.sandbox.validation import USER_DATA

MASK = "***"
_MESSAGES = ("error", "errors")  # spec §7
_FIELD = re.compile("[a-z][A-Za-z0-9_]{0,39}")
_FIELD_DIGITS = 4  # fewer than a fiscal code in small letters has
_DIGITS = 5  # shorter numbers stand in messages by chance, such as "between 3 and 60"
_KEY = secrets.token_bytes(16)

# spec §2.1 and §2.2: the order, not the person; what is not listed here, unknown fields too, is masked.
_NUMBERS = frozenset({"amount", "netAmount", "instalments", "installments", "paymentDayOfMonth"})
_FLAGS = frozenset({"approved", "zeroInterestRate", "additionalDataNeeded"})
_WORDS = {
    "loanFinality": {"ecommerce_shop"},
    "documentOfType": set(USER_DATA["documentOfType"].schema["enum"]),
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


def masked(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a body with the names of all its fields, and the values that belong to nobody."""
    return None if body is None else {_field(name): shown(name, value) for name, value in body.items()}


def _field(name: str) -> str:
    """Return the name of a member, or the mask: a document may have the name of a file or a person."""
    digits = sum(map(str.isdecimal, name))
    return name if _FIELD.fullmatch(name) and digits < _FIELD_DIGITS else MASK


def masked_answer(
    answer: Mapping[str, Any] | list[Any] | None, request: Mapping[str, Any] | None, code: str
) -> dict[str, Any] | list[Any] | None:
    """Return the body of the service's own response: its messages are readable, the rest is as in `masked`.

    Args:
        answer: The body, an object or an array.
        request: The body of the request. Its values are taken out of the messages.
        code: The customer's fiscal code, which is taken out, too.
    """
    if isinstance(answer, list):
        return [masked(each) if isinstance(each, Mapping) else MASK for each in answer]
    body = masked(answer)
    if answer is None or body is None:
        return None
    # A completion returns the fields that were sent, whatever their names are.
    own = [name for name in _MESSAGES if name in answer and name not in (request or {})]
    return body | {name: _without(_personal(request, code), answer[name]) for name in own}


def _personal(request: object, code: str) -> re.Pattern[str]:
    values = sorted({code, *_texts(request)}, key=len, reverse=True)  # the longest first: they hold others
    found = [re.escape(value) for value in values if len(value) >= (_DIGITS if value.isdecimal() else 2)]
    return re.compile(rf"(?<!\w)(?:{'|'.join(found) or '(?!)'})(?!\w)", re.IGNORECASE)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "email" or shown(name, inner) == MASK:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str | int | float):
        yield str(value).strip()


def _without(personal: re.Pattern[str], message: object) -> object:
    if isinstance(message, Mapping):
        return {name: _without(personal, inner) for name, inner in message.items()}
    if isinstance(message, list):
        return [_without(personal, inner) for inner in message]
    return personal.sub(MASK, message) if isinstance(message, str) else MASK


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
