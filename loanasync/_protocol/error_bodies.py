"""Error bodies of the service in their five shapes (spec §7), as problems and error classes."""

import html
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any
from unicodedata import normalize

from loanasync._models.decisions import UNLISTED, Problem
from loanasync._models.requests import APPROVAL_NAMES, READ_ALIASES, USER_DATA_NAMES, field_name
from loanasync.errors import (
    AlreadyEvaluatedError,
    DomainError,
    InvalidFiscalCodeError,
    RejectedError,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    UserNotFoundError,
)

# A body may have a million bytes, and reading it blocks the event loop.
_MAX_MESSAGES = 100
_MAX_READ_LENGTH = 5000
_MAX_MESSAGE_LENGTH = 300
_MAX_NAME_LENGTH = 60

# Domain errors that prove that the customer was not evaluated (spec §7), in the form of `_normalized`.
_RELEASABLE: Mapping[str, type[DomainError]] = {
    "user not found": UserNotFoundError,
    "this sales point cannot apply for a loan": ShopNotAllowedError,
    "invalid fiscalcode": InvalidFiscalCodeError,
}
# Also the Italian messages, for the calls that do not evaluate a customer (spec §7: may be localized).
_LOCALIZED: Mapping[str, type[DomainError]] = {
    **_RELEASABLE,
    "utente non trovato": UserNotFoundError,
    "questo punto vendita non può richiedere un finanziamento": ShopNotAllowedError,
    "invalid fiscal code": InvalidFiscalCodeError,
    "codice fiscale non valido": InvalidFiscalCodeError,
}
_DOMAIN_RULES: Mapping[type[DomainError], str] = {
    UserNotFoundError: "user_not_found",
    ShopNotAllowedError: "shop_not_allowed",
    InvalidFiscalCodeError: "format",  # of the field `fiscal_code`, as if this package had found it
}
_NO_MESSAGES = "errors: expected messages by field"
_SYSTEM = "system"  # the name in the body of a 500
_NO_TEXT = "is not accepted"  # in place of a message that is not a text
# Messages for fields (spec §7), in the form of `_normalized`: the rule, and the params of its texts.
_FIELD_RULES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "invalid date format": ("date", {}),
    "invalid fiscal code": ("format", {}),
    "system error": ("error", {}),
    "the number of installments must be between 3 and 60": ("range", {"least": 3, "most": 60}),
    "this value should be between 5000 and 1500000": ("range", {"least": 5_000, "most": 1_500_000}),
    "this value should be equal to 'true'": ("accepted", {}),
    "this value should be one of the available options": ("choice", {}),
    "this value should not be blank": ("blank", {}),
    _NO_TEXT: ("not_accepted", {}),
}
_REJECTED: tuple[str, Mapping[str, int]] = (UNLISTED, {})
_MESSAGE_RULES: Mapping[str, str] = {  # of messages without a field
    "access denied": "access_denied",
    "user already evaluated for approval": "already_evaluated",
}
# Pairs of words that mean "already evaluated": the English ones in any order, the Italian ones in this order.
_WORDS = re.compile(r"(already)|(evaluat)|(?<![^\W_])(gi(?:à|a))(?![^\W_])|(valutat)", re.IGNORECASE)
_PRECEDING_GROUP = {1: 2, 2: 1, 4: 3}  # maps a group of `_WORDS` to the group that must precede it
_MAX_DISTANCE = 70  # characters between the two words
# Whole words that mention an evaluation; in a message of JSON one of them is enough to doubt a release.
_EVALUATION = re.compile(
    r"(?<![^\W_])(evaluated|evaluation|valutat[oaie]|valutazion[ei])(?![^\W_])", re.IGNORECASE
)
_DOUBTS = {"decided": "approved: contradicts the status", "mentioned": "errors: mention an evaluation"}
_DECISION = re.compile(r"""["']approved["']\s*(?:\Z|:\s*(?:\Z|[tf]))""", re.IGNORECASE)
_LONG_LIGATURES = "\ufdfa\ufdfb"  # NFKC replaces these Arabic letters by eighteen and eight characters
_MIN_TEXT_LENGTH = len("valutato")
_PART = 100  # characters that are normalized together

# spec §2.1, and two fields that are only mentioned in spec §7
_FIELDS = frozenset({*APPROVAL_NAMES.values(), *READ_ALIASES, "actualJobEndingDate", "privacy"})
_KNOWN_NAMES = _FIELDS.union(USER_DATA_NAMES.values())


def read_problems(members: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return the messages of a whole error body."""
    return tuple(_problem(*each) for each in islice(_messages(members), _MAX_MESSAGES))


def _problem(name: str, message: str) -> Problem:
    message = " ".join(message[:_MAX_READ_LENGTH].split())  # the same part is compared and shown
    text = _normalized(message)
    is_domain = _is_domain(name)
    # spec §7: "User not found" means that the fiscal code is incorrect or omitted.
    is_code = is_domain and _LOCALIZED.get(text) in (InvalidFiscalCodeError, UserNotFoundError)
    wire_name = _cut(name, _MAX_NAME_LENGTH)
    field = "fiscal_code" if is_code else field_name(wire_name)
    is_known = is_domain or name in _KNOWN_NAMES or name == _SYSTEM
    # Any other name is a text of the service, which is no part of a stable code.
    rule, params = _rule(text, is_field=bool(name) and not is_domain) if is_known or not name else _REJECTED
    code = f"{field.casefold() if is_domain else field}.{rule}" if is_known else rule
    return Problem(field, wire_name, _cut(message, _MAX_MESSAGE_LENGTH), code, params)


def _cut(text: str, max_length: int) -> str:
    cut = text if len(text) <= max_length else f"{text[: max_length - 1]}…"
    return "".join(each if each.isprintable() else " " for each in cut)


def _rule(text: str, *, is_field: bool) -> tuple[str, Mapping[str, int]]:
    """Return the rule that a known message reports (spec §7), and its params; that of unlisted ones else.

    A problem is printed unless its rule is that of unlisted messages, so the whole text must be known.
    """
    if is_field:
        return _FIELD_RULES.get(text, _REJECTED)
    if text in _LOCALIZED:
        return _DOMAIN_RULES[_LOCALIZED[text]], {}
    return _MESSAGE_RULES.get(text, UNLISTED), {}


def error_class(
    kind: type[ServiceError], content: object, sent: Collection[str] | None, *, is_proof: bool
) -> type[ServiceError] | str:
    """Return the error class of a response, or the reason why it is ambiguous (spec §7).

    This is the only place that decides if a response proves that nothing was evaluated: the outcome of the
    class says so. A 500 may be retried if its class is `SystemFaultError`.

    Args:
        kind: The class for the status. `RejectedError` for a 400, which may become another class.
        content: The body as `decode_all` returns it, or as text if it is not JSON or not complete.
        is_proof: False if the status needs proof and the response is no proof: a decision may be missing.
        sent: Names of the fields that an approval sent. None for the other calls, whose fields may have any
            name and whose messages may be localized.
    """
    may_decide = sent is not None or kind is SystemFaultError
    claim = claim_in(content)
    if claim == "evaluated" and (may_decide or kind is RejectedError):
        return AlreadyEvaluatedError
    if may_decide and claim in _DOUBTS:
        return _DOUBTS[claim]
    if may_decide and not is_proof:
        return "response: incomplete, or not the only one"
    return _rejection_class(content, sent) if kind is RejectedError else kind


def claim_in(content: object) -> str:
    """Return the claim about an evaluation that a body contains in any text, the strongest one first.

    - ``evaluated``: the customer was already evaluated (spec §3).
    - ``decided``: a boolean `approved` at any depth. In a text, such as a part of a body or JSON within JSON,
      a value that is missing or cut off counts, too.
    - ``mentioned``: a message in JSON has a word such as "evaluation".
    - The empty text: none of them.
    """
    found = ""
    for name, value in _members(content):
        if name == "approved" and isinstance(value, bool):
            found = "decided"
        for text in (name, value):
            if not isinstance(text, str) or len(text) < _MIN_TEXT_LENGTH:
                continue
            plain = _plain(text)
            if _means_evaluated(plain):
                return "evaluated"
            if _DECISION.search(plain):
                found = "decided"
            elif not found and text is not content and _EVALUATION.search(plain):
                found = "mentioned"
    return found


def _members(content: object) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of all members at any depth. Items of lists have an empty name."""
    waiting = [("", content)]
    while waiting:
        name, value = waiting.pop()
        yield name, value
        if isinstance(value, Mapping):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [("", each) for each in value]


def _plain(text: str) -> str:
    """Return a text without HTML entities and compatibility characters such as full-width letters."""
    plain = html.unescape(text)
    if plain.isascii():
        return plain
    for ligature in _LONG_LIGATURES:
        plain = plain.replace(ligature, " ")
    # In parts, because the order of many combining marks takes quadratic time.
    parts = (plain[at : at + _PART] for at in range(0, len(plain), _PART))
    return "".join(normalize("NFKC", part) for part in parts)


def _means_evaluated(plain: str) -> bool:
    ends: dict[int | None, int] = {}
    for match in _WORDS.finditer(plain):
        first_end = ends.get(_PRECEDING_GROUP.get(match.lastindex or 0))
        if first_end is not None and match.start() - first_end <= _MAX_DISTANCE:
            return True
        ends[match.lastindex] = match.end()
    return False


def _rejection_class(content: object, sent: Collection[str] | None) -> type[ServiceError] | str:
    if not isinstance(content, dict) or not _is_fully_read(content):
        return _NO_MESSAGES
    errors = content["errors"]
    if not isinstance(errors, dict) or not errors:
        return _NO_MESSAGES
    if any(map(_is_domain, errors)):
        known = _LOCALIZED if sent is None else _RELEASABLE
        texts = [message for _, message in _messages(content)]
        is_alone = len(texts) == len(errors) == 1
        return known.get(_normalized(texts[0]), DomainError) if is_alone else DomainError
    is_known = sent is None or errors.keys() <= _FIELDS.union(sent)
    return RejectedError if is_known and all(map(_is_message, errors.values())) else _NO_MESSAGES


def _is_fully_read(members: Mapping[str, Any]) -> bool:
    """Return True if a body contains only messages, within the limits of number and length."""
    messages = [message for _, message in _messages(members)]
    return (
        members.keys() == {"errors"}
        and len(messages) <= _MAX_MESSAGES
        and all(len(message) <= _MAX_READ_LENGTH for message in messages)
    )


def _is_domain(name: str) -> bool:
    return name.casefold() == "domain"


def _is_message(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) and text.strip() for text in texts)


def _normalized(message: str) -> str:
    """Return a message for comparison, without differences of case, whitespace and a final full stop."""
    return " ".join(message[:_MAX_READ_LENGTH].casefold().split()).removesuffix(".")


def _messages(members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    errors = members.get("errors", members.get("error"))  # spec §7: "error", singular, in a 403
    if isinstance(errors, str):  # spec §7: one text in a 403 and a 409
        yield "", errors
    elif isinstance(errors, dict):
        for name, messages in errors.items():
            for message in messages if isinstance(messages, list) else [messages]:
                yield name, message if isinstance(message, str) else _NO_TEXT
