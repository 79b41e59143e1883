"""Checks of requests against the rules of the specification, run before anything is sent."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache, partial
from typing import SupportsIndex

import attrs
from attrs import evolve

from loanasync._display.masking import EMPTY_BODY
from loanasync._enums import Citizenship, DocumentType, EducationalQualification, Residence, SalaryType
from loanasync._models import (
    APPROVAL_NAMES,
    READ_ALIASES,
    USER_DATA_NAMES,
    AdditionalData,
    ApprovalRequest,
    Dialect,
    UserData,
)
from loanasync._results import Problem
from loanasync._settings import Limits
from loanasync._validation import validators as values
from loanasync._validation.validators import (
    Boolean,
    Choice,
    Day,
    Integer,
    Number,
    Optional,
    Rule,
    Text,
    Violation,
)


def normalize_fiscal_code(value: str) -> str:
    """Return a fiscal code in upper case and without surrounding spaces.

    Example:
        >>> normalize_fiscal_code(" tstxyz00a00a000a ")
        'TSTXYZ00A00A000A'
    """
    return value.strip().upper()


def check_fiscal_code(value: object, *, strict: bool = False) -> Iterator[Problem]:
    """Yield the problems of a fiscal code (spec §7, "Invalid fiscal code").

    The check letter is only verified if `strict` is True.
    """
    if not strict and isinstance(value, str) and _FISCAL_CODE.fullmatch(value):  # the usual case
        return
    violation = values.text(value.strip() if isinstance(value, str) else value)
    if violation is None:
        code = normalize_fiscal_code(str(value))
        # `upper()` turns some non-ASCII letters, such as the dotless i, into ASCII: check the original text.
        if not str(value).isascii() or not _FISCAL_CODE.fullmatch(code):
            violation = Violation("format", "must be 16 letters and digits")
        elif strict and not _has_right_check_letter(code):
            violation = _WRONG_CHECK_LETTER
    if violation is not None:
        yield violation.problem("fiscal_code", "fiscalCode")


def check_approval(
    request: object, *, additional_data_needed: bool, dialect: Dialect, limits: Limits
) -> Iterator[Problem]:
    """Yield the problems of an approval request (spec §2.1, §8), in the order of its fields."""
    if not isinstance(request, ApprovalRequest):
        yield _wrong_type(ApprovalRequest, request)
        return
    names = dialect.approval_names
    if not _accepts_approval(limits)(request):
        yield from _check_fields(approval_rules(limits), names, request)
    if dialect.order_token_required and _is_blank(request.order_token):
        required = Violation("required", "is required", "this dialect requires it")
        yield required.problem("order_token", names["order_token"])
    for field, is_sent in (
        ("iban", dialect.sends_iban),
        ("payment_day_of_month", dialect.sends_payment_day_of_month),
    ):
        if not is_sent and getattr(request, field) is not None:
            hint = f"omit it, or set sends_{field}=True in the Dialect"
            yield Violation("dialect", "is not part of this dialect", hint).problem(field, names[field])
    yield from check_additional(request.additional, limits, needed=additional_data_needed)
    yield from check_extra(request.extra, APPROVAL_MEMBERS)


def check_scope(scope: object) -> Iterator[Problem]:
    """Yield a problem if a scope is not a str.

    None would bypass the ledger and the client's memory, and 7 and "7" would be different scopes.
    """
    if not isinstance(scope, str):
        hint = f"use a str, not {values.type_name(scope)}"
        yield Violation("type", "must be text", hint).problem("scope", "")


def check_user_data(data: object, limits: Limits = Limits()) -> Iterator[Problem]:
    """Yield the problems of additional user data (spec §2.2)."""
    if not isinstance(data, UserData):
        yield _wrong_type(UserData, data)
        return
    yield from _check_fields(user_data_rules(limits), USER_DATA_NAMES, data)
    yield from check_extra(data.extra, _USER_DATA_MEMBERS)


def check_payload(payload: object, name: str = "payload") -> Iterator[Problem]:
    """Yield the problems of a payload. Each body is a JSON object (spec §4)."""
    if not isinstance(payload, Mapping):
        yield _wrong_object(name, "must be a mapping", payload)
        return
    try:
        json.dumps(dict(payload), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):  # their messages may quote personal values
        hint = "use str, int, finite float, bool, None, list and dict"
        yield Violation("json", "must contain only JSON values", hint).problem(name, "")
    if not all(isinstance(member, str) for member in payload):
        yield Violation("keys", "must have only texts as keys").problem(name, "")


def check_additional(additional: object, limits: Limits, *, needed: bool) -> Iterator[Problem]:
    """Yield the problems of the additional data of an approval (spec §2.1)."""
    if additional is None and not needed:
        return
    if additional is not None and not isinstance(additional, AdditionalData):
        yield _wrong_object("additional", "must be an AdditionalData", additional)
        return
    if not needed and _accepts_additional(limits)(additional):
        return
    for field, rule in additional_rules(limits).items():
        value = getattr(additional, field, None)
        # spec §2.1: each field is required when additionalDataNeeded is true, and only then
        is_missing = needed and value is None
        violation = _ASKED_FOR if is_missing else rule(value)
        if violation is not None:
            yield violation.problem(field, APPROVAL_NAMES[field])


def check_extra(extra: object, known: frozenset[str]) -> Iterator[Problem]:
    """Yield the problems of further members, which must not have the name of a known one."""
    if extra is EMPTY_BODY:  # the usual case
        return
    yield from check_payload(extra, "extra")
    if isinstance(extra, Mapping):
        for member in sorted(known.intersection(extra)):
            message, hint = f"must not contain {member}", "extra is for members without a field"
            yield Violation("known", message, hint, {"member": member}).problem("extra", member)


def _wrong_type(model: type, value: object) -> Problem:
    name = "data" if model is UserData else "request"
    return _wrong_object(name, f"must be an instance of {model.__name__}", value)


def _wrong_object(name: str, message: str, value: object) -> Problem:
    return Violation("object", message, f"not {values.type_name(value)}").problem(name, "")


def _check_fields(
    rules: Mapping[str, Rule],
    names: Mapping[str, str],
    model: ApprovalRequest | AdditionalData | UserData,
) -> Iterator[Problem]:
    for field, rule in rules.items():
        if (violation := rule(getattr(model, field))) is not None:
            yield violation.problem(field, names[field])


def _has_right_check_letter(code: str) -> bool:
    from stdnum.it import codicefiscale  # noqa: PLC0415  (installed with the extra `strict` only)

    return bool(codicefiscale.is_valid(code))


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _province_hint(value: object) -> str:
    if value is None or isinstance(value, float) or values.missing_value_name(value):
        return "pandas reads NA (Napoli) as a missing value: read the column as text"
    return "YAML reads NO (Novara) as false: put it in quotes" if isinstance(value, bool) else ""


def _postal_code_hint(value: object) -> str:
    if isinstance(value, SupportsIndex | float) and not values.missing_value_name(value):
        return "give five digits as text, because a number loses its leading zeros (00100 is Roma)"
    return ""


def _rules_by_field(
    model: type, names: Mapping[str, str], limits: Limits, special: Mapping[str, Rule]
) -> dict[str, Rule]:
    """Return a rule for each field that is sent: the special one, or else the rule for its type."""
    text = Text(single_line=limits.single_line)
    by_type: Mapping[object, Rule] = {
        str: text,
        str | None: Optional(evolve(text, may_be_blank=True)),
        bool | None: Optional(Boolean()),
        date | None: Optional(Day()),
    }
    fields = [each for each in attrs.fields(model) if each.name in names]
    return {each.name: special[each.name] if each.name in special else by_type[each.type] for each in fields}


def _make_approval_rules(limits: Limits) -> Mapping[str, Rule]:
    text = partial(Text, single_line=limits.single_line)
    special: dict[str, Rule] = {
        "amount": Number(limits.amount_min, limits.amount_max, "euro cents", "125.50 euros are 12550 cents"),
        "instalments": Number(limits.instalments_min, limits.instalments_max),
        # spec §2.1: a valid e-mail address; only the service can check that it exists
        "email": text(r"[^@\s]+@[^@\s]+", "an e-mail address: one @ with text on both sides, and no spaces"),
        "mobile_phone": text(
            limits.mobile_phone,
            "a valid mobile number",
            "it does not match limits.mobile_phone",
            excluded=r"^[\s(]*(\+|00)",
            excluded_rule="prefix",
            exclusion="must not contain the international prefix",
            exclusion_hint="put it into country_calling_code",
        ),
        "address": text(
            excluded=",",
            excluded_rule="comma",
            exclusion="must be the street name without commas",
            exclusion_hint="put the number into street_number",
        ),
        "province": text(limits.province, "two upper-case letters, such as RM", hint=_province_hint),
        "postal_code": text(
            limits.postal_code,
            "five digits",
            "if it is shorter, it may have lost leading zeros",
            hint=_postal_code_hint,
        ),
        "citizenship": Choice((*Citizenship, "Italian")),
        "payment_day_of_month": Optional(_DAY_OF_MONTH),
    }
    if limits.country_calling_code is not None:
        special["country_calling_code"] = Optional(
            text(
                limits.country_calling_code,
                "a valid calling code",
                "it does not match limits.country_calling_code",
            )
        )
    if limits.street_number is not None:
        special["street_number"] = text(
            limits.street_number, "a valid street number", "it does not match limits.street_number"
        )
    return _rules_by_field(ApprovalRequest, APPROVAL_NAMES, limits, special)


def _make_additional_rules(limits: Limits) -> Mapping[str, Rule]:
    no_cents = "cents are not sent"
    special: dict[str, Rule] = {
        "residence": Choice(Residence),
        "educational_qualification": Choice(EducationalQualification),
        # The specification's examples do not include "0", but customers without children exist.
        "children": Choice(("0", "1", "2", "3", "4", "5+")),
        "salary_type": Choice(SalaryType),
        "salary": Integer("euros", no_cents)
        if limits.salary_max is None
        else Number(0, limits.salary_max, "euros", no_cents),
    }
    special = {field: Optional(rule) for field, rule in special.items()}
    return _rules_by_field(AdditionalData, APPROVAL_NAMES, limits, special)


def _make_user_data_rules(limits: Limits) -> Mapping[str, Rule]:
    text = Text(single_line=limits.single_line)  # spec §7: blank values are refused on PATCH
    special: dict[str, Rule] = {
        "document_type": Choice(DocumentType),
        "document_code": text,
        "document_city": text,
        "payment_day_of_month": _DAY_OF_MONTH,
    }
    special = {field: Optional(rule) for field, rule in special.items()}
    return _rules_by_field(UserData, USER_DATA_NAMES, limits, special)


# The rules of a model by field, without the rules that concern a dialect or several fields.
# Not decorators, because mutation testing skips decorated functions.
approval_rules = lru_cache(maxsize=32)(_make_approval_rules)
additional_rules = lru_cache(maxsize=32)(_make_additional_rules)
user_data_rules = lru_cache(maxsize=32)(_make_user_data_rules)
_accepts_approval = lru_cache(maxsize=32)(lambda limits: values.quick_check(approval_rules(limits)))
_accepts_additional = lru_cache(maxsize=32)(lambda limits: values.quick_check(additional_rules(limits)))

_DAY_OF_MONTH = Number(1, 31)
_WRONG_CHECK_LETTER = Violation(
    "check_letter", "has a wrong check letter", "ask the customer to type it again"
)
_ASKED_FOR = Violation("required", "is required", "the service asked for additional data")
_FISCAL_CODE = re.compile("[A-Z0-9]{16}")

APPROVAL_MEMBERS = frozenset((*APPROVAL_NAMES.values(), *READ_ALIASES))
_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
