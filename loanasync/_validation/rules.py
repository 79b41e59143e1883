"""The rules of the specification for requests: all broken ones are found before anything is sent."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import lru_cache, partial
from operator import attrgetter
from typing import SupportsIndex

import attrs
from attrs import evolve

from loanasync._enums import Citizenship, DocumentType, EducationalQualification, Residence, SalaryType
from loanasync._models.dialect import APPROVAL_NAMES, READ_ALIASES, USER_DATA_NAMES, Dialect
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync._results import Problem
from loanasync._settings import Limits
from loanasync._validation import validators as values
from loanasync._validation.validators import Rule, Text


def normalize_fiscal_code(value: str) -> str:
    """Trim a fiscal code and put it in upper case, as people type it in either.

    Example:
        >>> normalize_fiscal_code(" tstxyz00a00a000a ")
        'TSTXYZ00A00A000A'
    """
    return value.strip().upper()


def check_fiscal_code(value: object, *, strict: bool = False) -> Iterator[Problem]:
    """The shape of a fiscal code (spec §7, "Invalid fiscal code"); its check letter only when strict."""
    if not strict and isinstance(value, str) and _FISCAL_CODE.fullmatch(value):  # as nearly all are
        return
    wrong = values.text(value.strip() if isinstance(value, str) else value)
    if wrong is None:
        code = normalize_fiscal_code(str(value))
        # Upper case makes two letters of a sharp s and an ASCII one of a dotless i: look at what was typed.
        if not str(value).isascii() or not _FISCAL_CODE.fullmatch(code):
            wrong = "must be 16 letters and digits"
        elif strict and not _has_right_check_letter(code):
            wrong = "has a wrong check letter: let the customer type it again"
    if wrong is not None:
        yield Problem("fiscal_code", "fiscalCode", wrong)


def check_approval(
    request: object, *, additional_data_needed: bool, dialect: Dialect, limits: Limits
) -> Iterator[Problem]:
    """Every broken rule of an approval request (spec §2.1, §8), in the order of its fields."""
    if not isinstance(request, ApprovalRequest):
        yield _not_a(ApprovalRequest, request)
        return
    names = dialect.approval_names
    yield from _broken(_approval_rules(limits).left_for(request), names, request)
    if dialect.order_token_required and _is_blank(request.order_token):
        yield Problem("order_token", names["order_token"], "is required in this dialect")
    for field, sent in (
        ("iban", dialect.sends_iban),
        ("payment_day_of_month", dialect.sends_payment_day_of_month),
    ):
        if not sent and getattr(request, field) is not None:
            yield Problem(
                field,
                names[field],
                f"is not part of this dialect: leave it out or set sends_{field}",
            )
    yield from _check_additional(request.additional, limits, needed=additional_data_needed)
    yield from _check_extra(request.extra, _APPROVAL_MEMBERS)


def check_scope(scope: object) -> Iterator[Problem]:
    """Text alone tells applications apart: None would go past the ledger, and 7 is another than "7"."""
    if not isinstance(scope, str):
        yield Problem("scope", "", f"must be a str, not {values.kind(scope)}")


def check_user_data(data: object, limits: Limits = Limits()) -> Iterator[Problem]:
    """Every broken rule of the additional user data (spec §2.2)."""
    if not isinstance(data, UserData):
        yield _not_a(UserData, data)
        return
    yield from _broken(_user_data_rules(limits), USER_DATA_NAMES, data)
    yield from _check_extra(data.extra, _USER_DATA_MEMBERS)


def check_payload(payload: object, name: str = "payload") -> Iterator[Problem]:
    """Spec §4: every body is a JSON object, also where the specification leaves its members open."""
    if not isinstance(payload, Mapping):
        yield Problem(name, "", f"must be a mapping, not {values.kind(payload)}")
        return
    try:
        json.dumps(dict(payload), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):  # the text of these errors quotes values
        yield Problem(name, "", "must hold JSON values only: str, int, finite float, bool, None, list, dict")
    if not all(isinstance(member, str) for member in payload):
        yield Problem(name, "", "must have member names of type str")


def _check_additional(additional: object, limits: Limits, *, needed: bool) -> Iterator[Problem]:
    if additional is None and not needed:
        return
    if additional is not None and not isinstance(additional, AdditionalData):
        yield Problem("additional", "", f"must be an AdditionalData, not {values.kind(additional)}")
        return
    for field, rule in _additional_rules(limits).items():
        value = getattr(additional, field, None)
        # spec §2.1: each field is required when additionalDataNeeded is true, and only then
        is_missing = needed and value is None
        wrong = "is required: the service asked for additional data" if is_missing else rule(value)
        if wrong is not None:
            yield Problem(field, APPROVAL_NAMES[field], wrong)


def _check_extra(extra: object, known: frozenset[str]) -> Iterator[Problem]:
    if isinstance(extra, Mapping) and not extra:  # as a rule
        return
    yield from check_payload(extra, "extra")
    if isinstance(extra, Mapping):
        for member in sorted(known.intersection(extra)):
            yield Problem("extra", member, f"must not hold {member}, which has a field of its own")


def _not_a(model: type, value: object) -> Problem:
    return Problem(
        "data" if model is UserData else "request",
        "",
        f"must be {model.__name__}(...), not {values.kind(value)}",
    )


def _broken(
    rules: Mapping[str, Callable[..., str | None]],
    names: Mapping[str, str],
    model: ApprovalRequest | AdditionalData | UserData,
) -> Iterator[Problem]:
    for field, rule in rules.items():
        wrong = rule(getattr(model, field))
        if wrong is not None:
            yield Problem(field, names[field], wrong)


def _has_right_check_letter(code: str) -> bool:
    from stdnum.it import codicefiscale  # noqa: PLC0415  (of the extra `strict`, needed by it alone)

    return bool(codicefiscale.is_valid(code))


def _optional(rule: Rule) -> Rule:
    def optional(value: object) -> str | None:
        if value is None:
            return None
        wrong = rule(value)
        return f"{wrong}; give None where there is none" if wrong and values.nothing(value) else wrong

    return optional


def _address(value: str) -> str | None:
    if "," in value:
        return "must be the street's name without commas; its number goes into street_number"
    return None


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _mobile_phone(pattern: str | None) -> Callable[[str], str | None]:
    matches = None if pattern is None else re.compile(pattern).fullmatch

    def rule(value: str) -> str | None:
        if _PREFIX.match(value):
            return "must come without the international prefix: that goes into country_calling_code"
        if matches is None or matches(value):
            return None
        return f"must be a mobile number {_OF_YOUR_LIMITS}"

    return rule


def _misread_province(value: object) -> str:
    if value is None or isinstance(value, float) or values.nothing(value):
        return '; if it was NA (Napoli), a table reader took it for "not available": read it as text'
    return (
        "; if it was NO (Novara), YAML took it for false: put it in quotes" if isinstance(value, bool) else ""
    )


def _misread_postal_code(value: object) -> str:
    if isinstance(value, SupportsIndex | float) and not values.nothing(value):
        return " of five digits: a number loses its leading zeros (00100 is Roma)"
    return ""


class _Rules(dict[str, Rule]):
    """Rules by field, of a model some of whose fields must be texts."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        super().__init__(rules)
        self._texts = attrgetter(*(field for field, rule in rules.items() if isinstance(rule, Text)))
        own = {field: rule.own if isinstance(rule, Text) else rule for field, rule in rules.items()}
        self._own = {field: rule for field, rule in own.items() if rule is not None}

    def left_for(self, model: object) -> "Mapping[str, Callable[..., str | None]]":
        """The rules that one look at all texts leaves to be asked."""
        return self._own if values.are_texts(self._texts(model)) else self


def _each(model: type, names: Mapping[str, str], limits: Limits, own: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the rule of each field that is sent: its own, or else the rule for values of its type."""
    text = Text(single_line=limits.single_line)
    by_type: Mapping[object, Rule] = {
        str: text,
        str | None: _optional(evolve(text, may_be_blank=True)),
        bool | None: _optional(values.boolean),
        date | None: _optional(values.day),
    }
    fields = [each for each in attrs.fields(model) if each.name in names]
    return {each.name: own[each.name] if each.name in own else by_type[each.type] for each in fields}


def _make_approval_rules(limits: Limits) -> _Rules:
    text = Text(single_line=limits.single_line)
    matching = partial(values.matching, single_line=limits.single_line)
    own: dict[str, Rule] = {
        "amount": values.number(
            limits.amount_min, limits.amount_max, "euro cents", "; 125.50 euro are 12550 cents"
        ),
        "instalments": values.number(limits.instalments_min, limits.instalments_max, "instalments"),
        # spec §2.1: a valid e-mail address; whether it exists is the service's business
        "email": matching(
            r"[^@\s]+@[^@\s]+", "an e-mail address: one @ with something on both sides, and no spaces"
        ),
        "mobile_phone": evolve(text, own=_mobile_phone(limits.mobile_phone)),
        "address": evolve(text, own=_address),
        "province": matching(limits.province, "two upper-case letters, such as RM", _misread_province),
        "postal_code": matching(
            limits.postal_code,
            "five digits; a shorter one may have lost leading zeros",
            _misread_postal_code,
        ),
        "citizenship": values.choice((*Citizenship, "Italian")),
        "payment_day_of_month": _optional(values.day_of_month),
    }
    if limits.country_calling_code is not None:
        own["country_calling_code"] = _optional(
            matching(limits.country_calling_code, f"a calling code {_OF_YOUR_LIMITS}")
        )
    if limits.street_number is not None:
        own["street_number"] = matching(limits.street_number, f"a street number {_OF_YOUR_LIMITS}")
    return _Rules(_each(ApprovalRequest, APPROVAL_NAMES, limits, own))


def _make_additional_rules(limits: Limits) -> Mapping[str, Rule]:
    euros = "whole euros"
    own: dict[str, Rule] = {
        "residence": values.choice(Residence),
        "educational_qualification": values.choice(EducationalQualification),
        # "0" is not among the specification's examples, and customers without children are real.
        "children": values.choice(("0", "1", "2", "3", "4", "5+"), ", as a str"),
        "salary_type": values.choice(SalaryType),
        "salary": values.integer(euros, "; cents are not sent")
        if limits.salary_max is None
        else values.number(0, limits.salary_max, euros, "; cents are not sent"),
    }
    own = {field: _optional(rule) for field, rule in own.items()}
    return _each(AdditionalData, APPROVAL_NAMES, limits, own)


def _make_user_data_rules(limits: Limits) -> Mapping[str, Rule]:
    text = Text(single_line=limits.single_line)  # spec §7: blank values are refused on PATCH
    own: dict[str, Rule] = {
        "document_type": values.choice(DocumentType),
        "document_code": text,
        "document_city": text,
        "payment_day_of_month": values.day_of_month,
    }
    own = {field: _optional(rule) for field, rule in own.items()}
    return _each(UserData, USER_DATA_NAMES, limits, own)


# No decorator: mutation testing leaves decorated functions out, and these are the rules.
_approval_rules = lru_cache(maxsize=32)(_make_approval_rules)
_additional_rules = lru_cache(maxsize=32)(_make_additional_rules)
_user_data_rules = lru_cache(maxsize=32)(_make_user_data_rules)

_FISCAL_CODE = re.compile("[A-Z0-9]{16}")
_PREFIX = re.compile(r"[\s(]*(\+|00)")  # of a mobile number
_OF_YOUR_LIMITS = "of the form that your Limits ask for"

_APPROVAL_MEMBERS = frozenset((*APPROVAL_NAMES.values(), *READ_ALIASES))
_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
