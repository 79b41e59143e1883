"""Error bodies of the service (spec §7), in their five shapes, as problems under our field names."""

import html
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias
from unicodedata import normalize

from loanasync._models.dialect import APPROVAL_NAMES, READ_ALIASES, USER_DATA_NAMES, field_of
from loanasync._protocol.redaction import Redactor
from loanasync._results import Problem
from loanasync.errors import (
    AlreadyEvaluatedError,
    DomainError,
    InvalidFiscalCodeError,
    RejectedError,
    ShopNotAllowedError,
    UserNotFoundError,
)

Rejection: TypeAlias = type[RejectedError | DomainError]

# An answer may have a million bytes, and the event loop waits while they are read.
_MOST_MESSAGES = 100
_LONGEST_READ = 5000
_LONGEST_MESSAGE = 300
_LONGEST_NAME = 60

# spec §7, the domain errors that prove that nothing was evaluated, as `_plain` writes them
_RELEASABLE: Mapping[str, type[DomainError]] = {
    "user not found": UserNotFoundError,
    "this sales point cannot apply for a loan": ShopNotAllowedError,
    "invalid fiscalcode": InvalidFiscalCodeError,
}
# Their Italian wordings, for calls that evaluate nobody (spec §7: messages may be localized).
_LOCALIZED: Mapping[str, type[DomainError]] = {
    **_RELEASABLE,
    "utente non trovato": UserNotFoundError,
    "questo punto vendita non può richiedere un finanziamento": ShopNotAllowedError,
    "invalid fiscal code": InvalidFiscalCodeError,
    "codice fiscale non valido": InvalidFiscalCodeError,
}
# Two words that say together that the customer was evaluated; the Italian ones in this order only.
_SIGNS = re.compile(r"(already)|(evaluat)|(?<![^\W_])(gi(?:à|a))(?![^\W_])|(valutat)", re.IGNORECASE)
_FIRST_WORDS = {1: 2, 2: 1, 4: 3}  # the number of a group, and of the group that stands before it
_FARTHEST = 70  # characters between them
_LONG_LIGATURES = "\ufdfa\ufdfb"  # Arabic, of which NFKC makes eighteen and eight characters
_SHORTEST_SENTENCE = len("già valutato")

# spec §2.1, and the two of §7 that are in no table of fields
_FIELDS = frozenset({*APPROVAL_NAMES.values(), *READ_ALIASES, "actualJobEndingDate", "privacy"})
_KNOWN_NAMES = _FIELDS.union(USER_DATA_NAMES.values())


def read_problems(members: Mapping[str, Any], *sent: object) -> tuple[Problem, ...]:
    """Return the messages of an error body; personal values that they repeat are replaced by ``***``.

    Args:
        members: The whole body.
        sent: The values that were sent: texts, and objects with texts in them.
    """
    messages = [*islice(_messages(members), _MOST_MESSAGES)]
    if not messages:
        return ()
    redacted = Redactor(*sent)
    return tuple(
        _problem(
            name if name in _KNOWN_NAMES else redacted(name, _LONGEST_NAME),
            redacted(message, _LONGEST_MESSAGE),
        )
        for name, message in messages
    )


def _problem(wire_name: str, message: str) -> Problem:
    # spec §7 knows an invalid fiscal code as a validation error and as a domain error.
    is_code = _is_domain(wire_name) and _RELEASABLE.get(_plain(message)) is InvalidFiscalCodeError
    return Problem("fiscal_code" if is_code else field_of(wire_name), wire_name, message)


def is_already_evaluated(body: object) -> bool:
    """Return True if an error body says, in any wording, that the customer was evaluated before (spec §3).

    All texts of the body are read, wherever in it they stand.
    """
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if len(value) >= _SHORTEST_SENTENCE and _says_evaluated(value):
                return True
        elif isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
    return False


def _says_evaluated(text: str) -> bool:
    ends: dict[int | None, int] = {}
    plain = html.unescape(text)
    for ligature in _LONG_LIGATURES:
        plain = plain.replace(ligature, " ")
    for found in _SIGNS.finditer(normalize("NFKC", plain)):
        first_end = ends.get(_FIRST_WORDS.get(found.lastindex or 0))
        if first_end is not None and found.start() - first_end <= _FARTHEST:
            return True
        ends[found.lastindex] = found.end()
    return False


def rejection(members: Mapping[str, Any], sent: Collection[str] | None) -> Rejection | None:
    """Return the error class of a 400 (spec §7), None if its body does not prove what it means.

    Args:
        members: The whole body.
        sent: Names of the fields that an approval sent; None for calls that evaluate nobody, whose fields
            may have any name and whose messages may be localized.
    """
    if is_already_evaluated(members):
        return AlreadyEvaluatedError
    errors = members.get("errors")
    if not isinstance(errors, dict) or not errors or not _is_read_whole(members):
        return None
    if any(map(_is_domain, errors)):
        texts = [message for _, message in _messages(members)] if len(errors) == 1 else []
        return _domain_error(texts, _LOCALIZED if sent is None else _RELEASABLE)
    if not all(map(_is_message, errors.values())):
        return None
    if sent is not None and not errors.keys() <= _FIELDS.union(sent):
        return None
    return RejectedError


def _domain_error(texts: Collection[str], known: Mapping[str, type[DomainError]]) -> type[DomainError]:
    """Return the class of domain messages that all say the same, and `DomainError` for any others."""
    kinds = {known.get(_plain(text)) for text in texts}
    return (kinds.pop() if len(kinds) == 1 else None) or DomainError


def _is_read_whole(members: Mapping[str, Any]) -> bool:
    """Return True if a body has nothing but messages that are all read: the others could say anything."""
    messages = [message for _, message in _messages(members)]
    return (
        members.keys() == {"errors"}
        and len(messages) <= _MOST_MESSAGES
        and all(len(message) <= _LONGEST_READ for message in messages)
    )


def _is_domain(name: str) -> bool:
    return name.casefold() == "domain"


def _is_message(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) and text.strip() for text in texts)


def _plain(message: str) -> str:
    """A message for comparison: case, runs of whitespace and a final full stop make no difference."""
    return " ".join(message[:_LONGEST_READ].casefold().split()).removesuffix(".")


def _messages(members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    errors = members.get("errors", members.get("error"))  # spec §7: a 403 says "error", singular
    if isinstance(errors, str):  # spec §7: so do a 403 and a 409
        yield "", errors
    elif isinstance(errors, dict):
        for name, said in errors.items():
            for message in said if isinstance(said, list) else [said]:
                yield name, message if isinstance(message, str) else "is not accepted"
