"""Error bodies of the service (spec §7), in their five shapes, as problems under our field names."""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

from loanasync._dialect import APPROVAL_NAMES, READ_ALIASES, field_of
from loanasync._meta import Problem
from loanasync.errors import (
    AlreadyEvaluatedError,
    DomainError,
    InvalidFiscalCodeError,
    RejectedError,
    ShopNotAllowedError,
    UserNotFoundError,
)

__all__ = ["is_already_evaluated", "personal_values", "read_problems", "rejection"]

Rejection: TypeAlias = type[RejectedError | DomainError]

# An answer may have a million bytes, and the event loop waits while they are read.
_MOST_MESSAGES = 100
_LONGEST_READ = 5000
_LONGEST_MESSAGE = 300
_LONGEST_NAME = 60
_SHORTEST_SECRET = 4  # shorter values ("RM", "12") would be found in innocent words
_UNMISTAKABLE = 8  # so long a value stands in no innocent word
_NOBODYS = frozenset({"amount"})  # spec §2.1: the order's; a limit that equals it must stay readable

# spec §7, the domain errors that prove that nothing was evaluated, as `_plain` writes them
_RELEASABLE: Mapping[str, type[DomainError]] = {
    "user not found": UserNotFoundError,
    "this sales point cannot apply for a loan": ShopNotAllowedError,
    "invalid fiscalcode": InvalidFiscalCodeError,
}
# Other wordings and languages of them, for calls that evaluate nobody.
_SIMILAR = (
    (re.compile("user not found|utente non trovato", re.IGNORECASE), UserNotFoundError),
    (re.compile("cannot apply for a loan|sales point|punto vendita", re.IGNORECASE), ShopNotAllowedError),
    (re.compile("invalid fiscal ?code|codice fiscale", re.IGNORECASE), InvalidFiscalCodeError),
)
_ALREADY = re.compile(
    r"\balready\b.{0,60}\bevaluat|\bevaluat\w*\b.{0,60}\balready\b|\bgi(à|a\W?)\W.{0,60}\bvalutat",
    re.IGNORECASE | re.DOTALL,
)
# spec §2.1, and the two of §7 that are in no table of fields
_FIELDS = frozenset({*APPROVAL_NAMES.values(), *READ_ALIASES, "actualJobEndingDate", "privacy"})


def read_problems(members: Mapping[str, Any], personal: Collection[str]) -> tuple[Problem, ...]:
    """Return the messages of an error body; personal values that they repeat are replaced by ``***``."""
    return tuple(
        _problem(_tidy(name, personal, _LONGEST_NAME), _tidy(message, personal, _LONGEST_MESSAGE))
        for name, message in islice(_messages(members), _MOST_MESSAGES)
    )


def _problem(wire_name: str, message: str) -> Problem:
    # spec §7 knows an invalid fiscal code as a validation error and as a domain error.
    is_code = _is_domain(wire_name) and _RELEASABLE.get(_plain(message)) is InvalidFiscalCodeError
    return Problem("fiscal_code" if is_code else field_of(wire_name), wire_name, message)


def is_already_evaluated(members: Mapping[str, Any]) -> bool:
    """Return True if an error body says, in any wording, that the customer was evaluated before (spec §3)."""
    messages = islice(_messages(members), _MOST_MESSAGES)
    return any(_ALREADY.search(message[:_LONGEST_READ]) for _, message in messages)


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
    is_unclear = any(map(_is_domain, members)) or (sent is not None and not _is_read_whole(members))
    if not isinstance(errors, dict) or not errors or is_unclear:
        return None
    domain = [message for name, message in _messages(members) if _is_domain(name)]
    if any(map(_is_domain, errors)):
        return _domain_error(domain, is_alone=len(errors) == 1, is_exact=sent is not None)
    if not all(map(_is_message, errors.values())):
        return None
    if sent is not None and not errors.keys() <= _FIELDS.union(sent):
        return None
    return RejectedError


def _domain_error(messages: list[str], *, is_alone: bool, is_exact: bool) -> type[DomainError]:
    if is_exact:
        found = {_RELEASABLE.get(_plain(message)) for message in messages}
        [kind] = found if is_alone and len(found) == 1 else [None]
        return kind or DomainError
    for pattern, kind in _SIMILAR:
        if any(pattern.search(message[:_LONGEST_READ]) for message in messages):
            return kind
    return DomainError


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


def _tidy(text: str, personal: Collection[str], longest: int) -> str:
    cut = len(text) > _LONGEST_READ
    text = text[:_LONGEST_READ]
    # A text holds nothing longer than itself: no pattern is made of a whole picture.
    for value in sorted((each for each in personal if len(each) <= len(text)), key=len, reverse=True):
        pattern = re.escape(value)
        if len(value) < _UNMISTAKABLE:
            # As a whole only: the name Prova must not tear a hole into "approval".
            pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
        text = re.sub(pattern, "***", text, flags=re.IGNORECASE)
    if cut:  # the beginning of a value may stand at the end
        text = text[: max(0, len(text) - max(map(len, personal), default=0))] + "…"
    printable = "".join(character if character.isprintable() else " " for character in text)
    return printable if len(printable) <= longest else printable[: longest - 1] + "…"


def personal_values(*sent: object) -> frozenset[str]:
    """Every text and number in what was sent that is long enough to tell something about a person."""
    found: set[str] = set()
    for value in sent:
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.add(str(value))
        elif isinstance(value, dict):
            found |= personal_values(*(each for name, each in value.items() if name not in _NOBODYS))
        elif isinstance(value, list):
            found |= personal_values(*value)
    return frozenset(value for value in found if len(value) >= _SHORTEST_SECRET)
