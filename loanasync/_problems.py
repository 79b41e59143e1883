"""What the service complains about (spec §7), in its five shapes, as problems under our field names."""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from loanasync._dialect import field_of
from loanasync._json import Malformed, decode
from loanasync._meta import Problem
from loanasync.errors import (
    AlreadyEvaluatedError,
    DomainError,
    InvalidFiscalCodeError,
    ShopNotAllowedError,
    UserNotFoundError,
)

__all__ = ["personal_values", "read_problems"]

# An answer may have a million bytes, and the event loop waits while they are read.
_MOST_MESSAGES = 100
_LONGEST_READ = 5000
_LONGEST_MESSAGE = 300
_LONGEST_NAME = 60
_SHORTEST_SECRET = 4  # shorter values ("RM", "12") would be found in innocent words
_UNMISTAKABLE = 8  # so long a value stands in no innocent word
_NOBODYS = frozenset({"amount"})  # spec §2.1: the order's; a limit that equals it must stay readable

# spec §7, domain errors. The service has no codes and may word its texts anew: match what they are about.
_DOMAIN = (
    (re.compile("already evaluated|già (stato )?valutat", re.IGNORECASE), AlreadyEvaluatedError),
    (re.compile("user not found|utente non trovato", re.IGNORECASE), UserNotFoundError),
    (
        re.compile("cannot apply for a loan|sales point|punto vendita", re.IGNORECASE),
        ShopNotAllowedError,
    ),
    (re.compile("invalid fiscal ?code|codice fiscale", re.IGNORECASE), InvalidFiscalCodeError),
)


def read_problems(
    body: bytes, personal: Collection[str]
) -> tuple[tuple[Problem, ...], type[DomainError] | None]:
    """The messages of an error body, and the class of a 400 under ``domain`` if that is what it is.

    Personal values that the messages repeat are taken out of them.

    Raises:
        Malformed: The body is not JSON, or holds no message where spec §7 says that it does.
    """
    said = tuple(islice(_messages(decode(body)), _MOST_MESSAGES))
    if not said:
        raise Malformed("errors: missing")
    problems = tuple(
        Problem(field_of(wire_name), wire_name, _tidy(message, personal, _LONGEST_MESSAGE))
        for wire_name, message in ((_tidy(name, personal, _LONGEST_NAME), text) for name, text in said)
    )
    return problems, _domain_error([message for name, message in said if name == "domain"])


def _domain_error(messages: list[str]) -> type[DomainError] | None:
    for pattern, error in _DOMAIN:
        if any(pattern.search(message[:_LONGEST_READ]) for message in messages):
            return error
    return DomainError if messages else None


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
