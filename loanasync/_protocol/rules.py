"""Checks of requests against the rules of the specification, run before anything is sent."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import SupportsIndex

import attrs

from loanasync._models import values
from loanasync._models.characters import is_blank, seen
from loanasync._models.decisions import Problem
from loanasync._models.enumerations import (
    Citizenship,
    DocumentType,
    EducationalQualification,
    Residence,
    SalaryType,
)
from loanasync._models.masking import EMPTY_BODY
from loanasync._models.requests import (
    APPROVAL_NAMES,
    DATE_TYPE,
    READ_ALIASES,
    USER_DATA_NAMES,
    AdditionalData,
    ApprovalRequest,
    UserData,
)
from loanasync._settings import Dialect, Limits


def normalize_fiscal_code(value: str) -> str:
    """Return a fiscal code in upper case, without surrounding spaces and without invisible characters.

    Example:
        >>> normalize_fiscal_code(" tstxyz00a00a000a ")
        'TSTXYZ00A00A000A'
    """
    return seen(value).strip().upper()


def check_fiscal_code(value: object, *, strict: bool = False) -> tuple[Problem, ...]:
    """Return the problem of a fiscal code, if it has one (spec §7, "Invalid fiscal code").

    The check letter is only verified if `strict` is True.
    """
    violation = values.check_text(value.strip() if isinstance(value, str) else value)
    if violation is None:
        code = normalize_fiscal_code(str(value))
        # `upper()` turns some non-ASCII letters, such as the dotless i, into ASCII: check the original text.
        if not seen(str(value)).isascii() or not _FISCAL_CODE.fullmatch(code):
            violation = values.Violation("format", "must be 16 letters and digits")
        elif strict and not _has_right_check_letter(code):
            violation = _WRONG_CHECK_LETTER
    return () if violation is None else (violation.problem("fiscal_code", "fiscalCode"),)


def read_fiscal_code(value: object, *, strict: bool = False) -> tuple[str, tuple[Problem, ...]]:
    """Return a fiscal code as `normalize_fiscal_code` does, and its problem if it has one."""
    if type(value) is str and not strict and _FISCAL_CODE.fullmatch(value):  # the usual case
        return value, ()
    problems = check_fiscal_code(value, strict=strict)
    return "" if problems else normalize_fiscal_code(str(value)), problems


def check_approval(
    request: object, *, additional_data_needed: bool, dialect: Dialect, limits: Limits
) -> list[Problem]:
    """Return the problems of an approval request (spec §2.1, §8), in the order of its fields."""
    if not isinstance(request, ApprovalRequest):
        return [_wrong_type(ApprovalRequest, request)]
    names, additional = dialect.approval_names, request.additional
    if type(additional) is AdditionalData and not additional_data_needed and whole_check(limits)(request):
        problems, additional = [], None  # both are valid
    else:
        problems = approval_check(limits)(request, names)
    if dialect.order_token_required and _is_blank(request.order_token):
        required = values.Violation("required", "is required", "this dialect requires it")
        problems.append(required.problem("order_token", names["order_token"]))
    for field, is_sent in (
        ("iban", dialect.sends_iban),
        ("payment_day_of_month", dialect.sends_payment_day_of_month),
    ):
        if not is_sent and getattr(request, field) is not None:
            hint = f"omit it, or set sends_{field}=True in the Dialect"
            problems.append(
                values.Violation("dialect", "is not part of this dialect", hint).problem(field, names[field])
            )
    if additional is not None or additional_data_needed:
        problems += check_additional(additional, needed=additional_data_needed)
    if request.extra is not EMPTY_BODY:
        problems += check_extra(request.extra, APPROVAL_MEMBERS)
    return problems


def check_order_id(order_id: object) -> tuple[Problem, ...]:
    """Return the problem of the number of an order, if it has one. An empty number has none.

    None would bypass the ledger and the client's memory. 7 and "7", or "A-1" and "A-1 ", would be different
    orders, and the customer would be evaluated for each of them.
    """
    if not isinstance(order_id, str):
        hint = f"use a str, not {values.type_name(order_id)}"
        violation: values.Violation | None = values.Violation("type", "must be text", hint)
    else:
        violation = values.check_text(order_id) if order_id else None
        has_other_spaces = any(each.isspace() and each != " " for each in order_id)
        if violation is None and (has_other_spaces or order_id != normalize_order_id(order_id)):
            violation = _NOT_AS_SEEN
    return () if violation is None else (violation.problem("order_id", ""),)


def normalize_order_id(order_id: str) -> str:
    """Return the number of an order in a file, in NFC, without outer spaces and invisible characters."""
    return seen(order_id).strip()


def check_user_data(data: object, **_: object) -> list[Problem]:
    """Return the problems of additional user data (spec §2.2)."""
    if not isinstance(data, UserData):
        return [_wrong_type(UserData, data)]
    problems = user_data_check()(data, USER_DATA_NAMES)
    if data.extra is not EMPTY_BODY:
        problems += check_extra(data.extra, _USER_DATA_MEMBERS)
    return problems


def check_payload(payload: object, *, name: str = "payload", **_: object) -> list[Problem]:
    """Return the problems of a payload. Each body is a JSON object (spec §4)."""
    if not isinstance(payload, Mapping):
        return [_wrong_object(name, "must be a mapping", payload)]
    problems = []
    try:
        text = json.dumps(dict(payload), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):  # their messages may quote personal values
        hint = "use str, int, finite float, bool, None, list and dict"
        problems.append(values.Violation("json", "must contain only JSON values", hint).problem(name, ""))
    else:
        if "\\u0000" in text and _ESCAPED_NUL.search(text):
            problems.append(values.HAS_NUL.problem(name, ""))
    if not all(isinstance(member, str) for member in payload):
        problems.append(values.Violation("keys", "must have only texts as keys").problem(name, ""))
    return problems


def check_additional(additional: object, *, needed: bool) -> list[Problem]:
    """Return the problems of the additional data of an approval (spec §2.1)."""
    if additional is not None and not isinstance(additional, AdditionalData):
        return [_wrong_object("additional", "must be an AdditionalData", additional)]
    # spec §2.1: each field is required when additionalDataNeeded is true, and only then
    missing = _ASKED_FOR if needed else None
    return additional_check()(additional or AdditionalData(), APPROVAL_NAMES, missing)


def check_extra(extra: object, known: frozenset[str]) -> list[Problem]:
    """Return the problems of further members, which must not have the name of a known one."""
    problems = check_payload(extra, name="extra")
    if isinstance(extra, Mapping):
        for member in sorted(known.intersection(extra)):
            message, hint = f"must not contain {member}", "extra is for members without a field"
            violation = values.Violation("known", message, hint, {"member": member})
            problems.append(violation.problem("extra", member))
    return problems


def _wrong_type(model: type, value: object) -> Problem:
    name = "data" if model is UserData else "request"
    return _wrong_object(name, f"must be an instance of {model.__name__}", value)


def _wrong_object(name: str, message: str, value: object) -> Problem:
    return values.Violation("object", message, f"not {values.type_name(value)}").problem(name, "")


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and is_blank(value))


def _has_right_check_letter(code: str) -> bool:
    from stdnum.it import codicefiscale  # noqa: PLC0415  (installed with the extra `strict` only)

    return bool(codicefiscale.is_valid(code))


def _province_hint(value: object) -> str:
    if value is None or isinstance(value, float) or values.missing_value_name(value):
        return "pandas reads NA (Napoli) as a missing value: read the column as text"
    return "YAML reads NO (Novara) as false: put it in quotes" if isinstance(value, bool) else ""


def _postal_code_hint(value: object) -> str:
    if isinstance(value, SupportsIndex | float) and not values.missing_value_name(value):
        return "give five digits as text, because a number loses its leading zeros (00100 is Roma)"
    return ""


def _rules_by_field(
    model: type, names: Mapping[str, str], special: Mapping[str, values.ValueRule]
) -> dict[str, values.Rule]:
    """Return a rule for each field that is sent: the special one, or else the rule for its type."""
    rules: dict[str, values.Rule] = {}
    for each in attrs.fields(model):
        if each.name in names:
            rule = special[each.name] if each.name in special else _BY_TYPE[each.type]
            rules[each.name] = values.Optional(rule) if each.default is None else rule
    return rules


def approval_rules(limits: Limits) -> Mapping[str, values.Rule]:
    """Return the rules of an approval by field, without those of a dialect or of several fields."""
    special: dict[str, values.ValueRule] = {
        "amount": values.Number(
            limits.amount_min, limits.amount_max, "euro cents", "125.50 euros are 12550 cents"
        ),
        "instalments": values.Number(limits.instalments_min, limits.instalments_max),
        # spec §2.1: a valid e-mail address; only the service can check that it exists
        "email": values.Text(
            r"[^@\s]+@[^@\s]+", "an e-mail address: one @ with text on both sides, and no spaces"
        ),
        "mobile_phone": values.Text(
            limits.mobile_phone,
            "a valid mobile number",
            "it does not match limits.mobile_phone",
            excluded=r"^[\s\x00-\x1f\x7f-\x9f(]*(\+|00)",
            exclusion=_PREFIX,
        ),
        "address": values.Text(excluded=",", exclusion=_COMMA),
        "province": values.Text(limits.province, "two upper-case letters, such as RM", hint=_province_hint),
        "postal_code": values.Text(
            limits.postal_code,
            "five digits",
            "if it is shorter, it may have lost leading zeros",
            hint=_postal_code_hint,
        ),
        "citizenship": values.Choice((*Citizenship, "Italian")),
        "payment_day_of_month": _DAY_OF_MONTH,
    }
    return _rules_by_field(ApprovalRequest, APPROVAL_NAMES, special)


def additional_rules() -> Mapping[str, values.Rule]:
    """Return the rules of the additional data by field."""
    special: dict[str, values.ValueRule] = {
        "residence": values.Choice(Residence),
        "educational_qualification": values.Choice(EducationalQualification),
        # The specification's examples do not include "0", but customers without children exist.
        "children": values.Choice(("0", "1", "2", "3", "4", "5+")),
        "salary_type": values.Choice(SalaryType),
        "salary": values.Integer("euros", "cents are not sent"),
    }
    return _rules_by_field(AdditionalData, APPROVAL_NAMES, special)


def user_data_rules() -> Mapping[str, values.Rule]:
    """Return the rules of the user data by field."""
    special: dict[str, values.ValueRule] = {
        "document_type": values.Choice(DocumentType),
        "document_code": _TEXT,  # spec §7: blank values are refused on PATCH
        "document_city": _TEXT,
        "payment_day_of_month": _DAY_OF_MONTH,
    }
    return _rules_by_field(UserData, USER_DATA_NAMES, special)


def _whole_check(limits: Limits) -> Callable[[object], bool]:
    """Return a quick check of an approval with its additional data."""
    nested = {f"additional.{name}": rule for name, rule in additional_rules().items()}
    return values.quick_checker({**approval_rules(limits), **nested})


_DAY_OF_MONTH = values.Number(1, 31)
_TEXT = values.Text()
_BY_TYPE: Mapping[object, values.ValueRule] = {
    str: _TEXT,
    str | None: values.Text(may_be_blank=True),
    bool | None: values.Boolean(),
    DATE_TYPE: values.Day(),
}
# Not decorators, because mutation testing skips decorated functions.
whole_check = lru_cache(maxsize=32)(_whole_check)
approval_check = lru_cache(maxsize=32)(lambda limits: values.checker(approval_rules(limits)))
additional_check = cache(lambda: values.checker(additional_rules()))
user_data_check = cache(lambda: values.checker(user_data_rules()))

_PREFIX = values.Violation(
    "prefix", "must not contain the international prefix", "put it into country_calling_code"
)
_COMMA = values.Violation(
    "comma", "must be the street name without commas", "put the number into street_number"
)
_WRONG_CHECK_LETTER = values.Violation(
    "check_letter", "has a wrong check letter", "ask the customer to type it again"
)
_NOT_AS_SEEN = values.Violation(
    "format", "must be as a person sees it: NFC, without invisible characters and unusual or outer spaces"
)
_ASKED_FOR = values.Violation("required", "is required", "the service asked for additional data")
_FISCAL_CODE = re.compile("[A-Z0-9]{16}")
plain_order_id = re.compile("[!-~](?:[ -~]*[!-~])?").fullmatch  # printable ASCII, no space at its ends
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

APPROVAL_MEMBERS = frozenset((*APPROVAL_NAMES.values(), *READ_ALIASES))
_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
