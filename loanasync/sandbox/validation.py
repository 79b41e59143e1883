"""The service's own checks, with the messages of spec §7, as tables of fields and checks."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any

Errors = dict[str, list[str]]
Check = Callable[[Any], str | None]

# spec §7
BLANK = "This value should not be blank."
CHOICE = "This value should be one of the available options."
AMOUNT = "This value should be between 5000 and 1500000"
INSTALMENTS = "The number of installments must be between 3 and 60"
FISCAL_CODE = "Invalid fiscal code"
PRIVACY = "This value should be equal to 'true'."
DATE = "Invalid date format"
# Assumed: the specification has no message for a wrong format.
FORMAT = "This value is not valid."
# spec §7: on PATCH, messages may be localized, and the documented samples are in Italian. Wording assumed.
BLANK_IN_ITALIAN = "Questo valore non dovrebbe essere vuoto."
DATE_IN_ITALIAN = "Questo valore non è una data valida."
CHOICE_IN_ITALIAN = "Questo valore dovrebbe essere una delle opzioni disponibili."
TYPE_IN_ITALIAN = "Questo valore non è del tipo giusto."

_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MONTH = re.compile("(0[1-9]|1[0-2])/[0-9]{4}")
_FISCAL_CODE = re.compile("[A-Z0-9]{16}")


def is_fiscal_code(value: object) -> bool:
    """Whether a value has the shape of a fiscal code."""
    return isinstance(value, str) and _FISCAL_CODE.fullmatch(value) is not None


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value.strip() else BLANK


def _matching(pattern: str) -> Check:
    fullmatch = re.compile(pattern).fullmatch

    def check(value: object) -> str | None:
        return None if isinstance(value, str) and fullmatch(value) else _text(value) or FORMAT

    return check


def _one_of(*options: str) -> Check:
    def check(value: object) -> str | None:
        return BLANK if value is None else None if value in options else CHOICE

    return check


def _between(least: int, most: int, message: str) -> Check:
    def check(value: object) -> str | None:
        return None if type(value) is int and least <= value <= most else message

    return check


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _boolean(value: object) -> str | None:
    return None if type(value) is bool else FORMAT


# spec §2.1 and §8
_APPROVAL: Mapping[str, Check] = {
    "amount": _between(5_000, 1_500_000, AMOUNT),
    "instalments": _between(3, 60, INSTALMENTS),
    "loanFinality": _text,
    "email": _matching(r"[^@\s]+@[^@\s]+"),
    "lastname": _text,
    "firstname": _text,
    "mobilePhone": _text,
    "countryCallingCode": _optional(_text),
    "city": _text,
    "address": _text,
    "province": _matching("[A-Z]{2}"),
    "postalCode": _matching("[0-9]{5}"),
    "streetNumber": _text,
    "citizenship": _one_of("italian", "Italian", "eu", "outside_eu"),
    "iban": _optional(_text),
    "zeroInterestRate": _optional(_boolean),
    "orderToken": _optional(_text),
    "paymentDayOfMonth": _optional(_matching("[1-9]|[12][0-9]|3[01]")),
}

_CONDITIONAL: Mapping[str, Check] = {
    "residence": _one_of(
        "rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"
    ),
    "residenceStartDate": _matching(_MONTH.pattern),
    "educationalQualification": _one_of("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": _one_of("0", "1", "2", "3", "4", "5+"),  # "0" is assumed
    "salaryType": _one_of("net-monthly", "gross-yearly"),
    "salary": lambda value: BLANK if value is None else None if type(value) is int and value >= 0 else FORMAT,
}


def _is_day(value: object) -> bool:
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_day_or_month(value: object) -> bool:
    return _is_day(value) or (isinstance(value, str) and _MONTH.fullmatch(value) is not None)


def _italian_text(value: object) -> str | None:
    return None if isinstance(value, str) and value.strip() else BLANK_IN_ITALIAN


def _italian_day(value: object) -> str | None:
    return None if _is_day(value) else DATE_IN_ITALIAN


def _italian_boolean(value: object) -> str | None:
    return None if type(value) is bool else TYPE_IN_ITALIAN


# spec §2.2; whether a field is mandatory is not shown, so none is.
_USER_DATA: Mapping[str, Check] = {
    "documentOfType": lambda value: (
        None if value in ("identity_card", "driving_license", "passport") else CHOICE_IN_ITALIAN
    ),
    "documentCode": _italian_text,
    "documentCity": _italian_text,
    "documentIssueDate": _italian_day,
    "documentExpirationDate": _italian_day,
    "iban": _italian_text,
    "politicallyExposed": _italian_boolean,
    "usPerson": _italian_boolean,
    "marketing": _italian_boolean,
    "paymentDayOfMonth": lambda value: (
        None if type(value) is int and 1 <= value <= 31 else TYPE_IN_ITALIAN  # noqa: PLR2004  (days)
    ),
    "profession": _italian_text,
}

_APPROVAL_WITH_CONDITIONAL = {**_APPROVAL, **_CONDITIONAL}

APPROVAL_FIELDS = tuple(_APPROVAL_WITH_CONDITIONAL)
USER_DATA_FIELDS = tuple(_USER_DATA)


def asked_to_be_wrong(fields: Iterable[str], *, completing: bool) -> Errors:
    """Fields that a tag wants wrong, with what the service says of them when they are blank."""
    checks = _USER_DATA if completing else _APPROVAL_WITH_CONDITIONAL
    return {name: [checks[name](None) or FORMAT] for name in fields if name in checks}


def _found(checks: Mapping[str, Check], body: Mapping[str, Any]) -> Errors:
    return {name: [message] for name, check in checks.items() if (message := check(body.get(name)))}


def street_number_of(body: Mapping[str, Any], dialect: str | None) -> tuple[str, Any]:
    """The street number under the spelling that was used; a fixed dialect accepts its own only."""
    if dialect == "civic_number" or (dialect is None and "civicNumber" in body):
        return "civicNumber", body.get("civicNumber")
    return "streetNumber", body.get("streetNumber")


def instalments_of(body: Mapping[str, Any], dialect: str | None) -> object:
    """The number of instalments under the spelling that was used."""
    # spec §2.1: one description spells the field `installments`. That it is the one with `civicNumber` is
    # assumed, so `instalments` is accepted there, too.
    if dialect != "street_number" and "installments" in body:
        return body["installments"]
    return body.get("instalments")


def wrong_in_approval(body: Mapping[str, Any], dialect: str | None, *, additional: bool) -> Errors:
    """What is wrong with an approval's body, all at once, and its two fields with two spellings."""
    known = {
        **body,
        # spec §7: the validation errors name `streetNumber` and `instalments`, whatever was sent.
        "streetNumber": street_number_of(body, dialect)[1],
        "instalments": instalments_of(body, dialect),
    }
    wrong = _found(_APPROVAL, known)
    if dialect == "civic_number" and body.get("orderToken") is None:
        wrong["orderToken"] = [BLANK]  # spec §2.1: required in one description; in which one is assumed
    conditional = _CONDITIONAL
    if not additional:  # sent without need: the formats count, the blanks do not
        conditional = {name: check for name, check in _CONDITIONAL.items() if body.get(name) is not None}
    return wrong | _found(conditional, body)


def wrong_in_creation(body: Mapping[str, Any]) -> Errors:
    """What is wrong with a creation's body. Its shape is not shown (spec §4.3): four fields are assumed.

    Spec §7 has messages for three of them, which no table of inputs has. A date is accepted in either of
    the two formats that the specification has: MM/YYYY (§2.1) and YYYY-MM-DD (§2.2).
    """
    wrong: Errors = {}
    if not is_fiscal_code(body.get("fiscalCode")):
        wrong["fiscalCode"] = [FISCAL_CODE]
    if body.get("privacy", True) is not True and body["privacy"] != "true":
        wrong["privacy"] = [PRIVACY]
    if "actualJobEndingDate" in body and not _is_day_or_month(body["actualJobEndingDate"]):
        wrong["actualJobEndingDate"] = [DATE]
    if type(body.get("additionalDataNeeded", False)) is not bool:
        wrong["additionalDataNeeded"] = [FORMAT]
    return wrong


def wrong_in_user_data(body: Mapping[str, Any]) -> Errors:
    """What is wrong with a completion's body, field by field."""
    given = {name: check for name, check in _USER_DATA.items() if name in body}
    return _found(given, body)
