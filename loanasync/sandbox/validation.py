"""Fields of the request bodies and their validation (spec §2, §4.3, §7, §8).

Each field defines its accepted values twice: as a check and as a JSON Schema for the OpenAPI document.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from attrs import evolve, frozen

Errors = dict[str, list[str]]
Check = Callable[[Any], str | None]

# spec §7
BLANK = "This value should not be blank."
CHOICE = "This value should be one of the available options."
AMOUNT = "This value should be between 5000 and 1500000"
INSTALMENTS = "The number of installments must be between 3 and 60"
INVALID_FISCAL_CODE = "Invalid fiscal code"
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
_MONTH = "(0[1-9]|1[0-2])/[0-9]{4}"
_SPACE = r"\s\x1c-\x1f\x85"  # `str.strip` removes more characters than \s matches in JSON Schema


@frozen
class Field:
    """A field of a request body.

    Args:
        check: Returns the message for a value; None if it is accepted. A missing field has the value None.
        schema: JSON Schema of the accepted values.
        required: Whether the field must be sent.
        assumed: Assumption about the accepted values where the specification is silent.
        other_name: Spelling in the other description (spec §2.1).
    """

    check: Check
    schema: Mapping[str, Any]
    required: bool = True
    assumed: str = ""
    other_name: str = ""


def _optional(field: Field) -> Field:
    return evolve(field, required=False)


def _nullable(field: Field) -> Field:
    """Return an optional field for which null means "not sent"."""
    return evolve(field, check=lambda value: None if value is None else field.check(value), required=False)


def _is_day(value: object) -> bool:
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _text(blank: str = BLANK) -> Field:
    def check(value: object) -> str | None:
        return None if isinstance(value, str) and value.strip() else blank

    return Field(check, {"type": "string", "pattern": f"[^{_SPACE}]"})


def _matching(pattern: str, blank: str = BLANK, wrong: str = FORMAT) -> Field:
    fullmatch = re.compile(pattern).fullmatch

    def check(value: object) -> str | None:
        if not isinstance(value, str) or not value.strip():
            return blank
        return None if fullmatch(value) else wrong

    return Field(check, {"type": "string", "pattern": f"^{pattern}$"})


def _choice(*options: str, blank: str = BLANK, wrong: str = CHOICE, names: Sequence[str] = ()) -> Field:
    def check(value: object) -> str | None:
        return None if value in options else blank if value is None else wrong

    named = {"x-enum-varnames": list(names)} if names else {}
    return Field(check, {"type": "string", "enum": list(options), **named})


def _integer(least: int, most: int | None, wrong: str, *, blank: str = "") -> Field:
    def check(value: object) -> str | None:
        accepted = type(value) is int and least <= value and (most is None or value <= most)
        return None if accepted else blank or wrong if value is None else wrong

    limits = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return Field(check, {"type": "integer", **limits})


def _boolean(wrong: str = FORMAT) -> Field:
    return Field(lambda value: None if type(value) is bool else wrong, {"type": "boolean"})


def _day(wrong: str) -> Field:
    return Field(lambda value: None if _is_day(value) else wrong, {"type": "string", "format": "date"})


def _day_or_month(wrong: str) -> Field:
    month = _matching(_MONTH)
    schema = {"type": "string", "pattern": f"^({_MONTH}|{_DAY.pattern})$"}
    return Field(lambda value: month.check(value) and (None if _is_day(value) else wrong), schema)


FISCAL_CODE = evolve(
    _matching("[A-Z0-9]{16}", INVALID_FISCAL_CODE, INVALID_FISCAL_CODE),
    assumed="16 capital letters and digits",
)

# spec §4.3 does not show the fields of a creation. Spec §7 has messages for three of them, which are in no
# table of inputs.
CREATION: Mapping[str, Field] = {
    "fiscalCode": FISCAL_CODE,
    "privacy": Field(
        lambda value: None if value is True or value == "true" else PRIVACY,
        {"type": "boolean", "const": True},
        required=False,
        assumed='the text "true" is accepted, too',
    ),
    # Both date formats of the specification: MM/YYYY (§2.1) and YYYY-MM-DD (§2.2).
    "actualJobEndingDate": evolve(_day_or_month(DATE), required=False, assumed="a month or a day"),
    "additionalDataNeeded": _optional(_boolean()),
}

# spec §2.1 and §8
APPROVAL: Mapping[str, Field] = {
    "amount": _integer(5_000, 1_500_000, AMOUNT),
    "instalments": evolve(_integer(3, 60, INSTALMENTS), other_name="installments"),
    "loanFinality": evolve(_text(), assumed="any purpose, as one description gives no values"),
    "email": evolve(_matching(f"[^@{_SPACE}]+@[^@{_SPACE}]+"), assumed="anything around one @ is an address"),
    "lastname": _text(),
    "firstname": _text(),
    "mobilePhone": _text(),
    "countryCallingCode": _nullable(_text()),
    "city": _text(),
    "address": _text(),
    "province": _matching("[A-Z]{2}"),
    "postalCode": _matching("[0-9]{5}"),
    "streetNumber": evolve(
        _text(), other_name="civicNumber", assumed="more than the 5 digits of one description"
    ),
    # Both spellings of `italian`, with names, since client generators would use one name for both.
    "citizenship": _choice(
        *("italian", "Italian", "eu", "outside_eu"), names=("ITALIAN", "ITALIAN_CAPITAL", "EU", "OUTSIDE_EU")
    ),
    "iban": _nullable(_text()),
    "zeroInterestRate": _nullable(_boolean()),
    "orderToken": _nullable(_text()),  # as in one description; the other requires it
    "paymentDayOfMonth": _nullable(_matching("([1-9]|[12][0-9]|3[01])")),
}

# spec §2.1: required when additionalDataNeeded, which is not a field of this body, is true
ADDITIONAL: Mapping[str, Field] = {
    "residence": _choice(
        "rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"
    ),
    "residenceStartDate": _matching(_MONTH),
    "educationalQualification": _choice("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": evolve(_choice("0", "1", "2", "3", "4", "5+"), assumed="0 is one of the options"),
    "salaryType": _choice("net-monthly", "gross-yearly"),
    "salary": _integer(0, None, FORMAT, blank=BLANK),
}

# spec §2.2: whether fields are mandatory is not shown. Assumed: all are optional.
USER_DATA: Mapping[str, Field] = {
    name: _optional(field)
    for name, field in {
        "documentOfType": _choice(
            *("identity_card", "driving_license", "passport"),
            blank=CHOICE_IN_ITALIAN,
            wrong=CHOICE_IN_ITALIAN,
        ),
        "documentCode": _text(BLANK_IN_ITALIAN),
        "documentCity": _text(BLANK_IN_ITALIAN),
        "documentIssueDate": _day(DATE_IN_ITALIAN),
        "documentExpirationDate": _day(DATE_IN_ITALIAN),
        "iban": _text(BLANK_IN_ITALIAN),
        "politicallyExposed": _boolean(TYPE_IN_ITALIAN),
        "usPerson": _boolean(TYPE_IN_ITALIAN),
        "marketing": _boolean(TYPE_IN_ITALIAN),
        "paymentDayOfMonth": _integer(1, 31, TYPE_IN_ITALIAN),
        "profession": _text(BLANK_IN_ITALIAN),
    }.items()
}

# A made-up customer. Members are valid bodies of the operations.
EXAMPLE_CODE = "TSTXYZ00A00A000A"
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "create_request": {"fiscalCode": EXAMPLE_CODE},
    "approve": {
        "amount": 45_000,
        "instalments": 12,
        "loanFinality": "ecommerce_shop",
        "email": "anna@example.com",
        "firstname": "Anna",
        "lastname": "Prova",
        "mobilePhone": "3330000000",
        "city": "Roma",
        "address": "Via Prova",
        "province": "RM",
        "postalCode": "00100",
        "streetNumber": "12/A",
        "citizenship": "italian",
    },
    "upload_documents": {"front": "...", "back": "..."},
    "complete": {
        "documentOfType": "identity_card",
        "documentCode": "CA00000AA",
        "documentCity": "Roma",
        "documentIssueDate": "2024-05-31",
        "documentExpirationDate": "2034-05-31",
        "politicallyExposed": False,
        "usPerson": False,
        "marketing": False,
        "paymentDayOfMonth": 15,
    },
}

APPROVAL_FIELDS = (*APPROVAL, *ADDITIONAL)
USER_DATA_FIELDS = tuple(USER_DATA)


def is_fiscal_code(value: object) -> bool:
    """Return whether a value has the shape of a fiscal code."""
    return FISCAL_CODE.check(value) is None


def requested_errors(names: Iterable[str], fields: Mapping[str, Field]) -> Errors:
    """Return the errors of blank values for the named fields, as requested by a tag or rule."""
    return {name: [fields[name].check(None) or FORMAT] for name in names if name in fields}


def body_errors(fields: Mapping[str, Field], body: Mapping[str, Any]) -> Errors:
    """Return the errors of a body, by field."""
    return {
        name: [message]
        for name, field in fields.items()
        if (field.required or name in body) and (message := field.check(body.get(name)))
    }


def street_number_of(body: Mapping[str, Any], dialect: str | None) -> tuple[str, Any]:
    """Return name and value of the street number; a fixed dialect accepts its own name only."""
    if dialect == "civic_number" or (dialect is None and "civicNumber" in body):
        return "civicNumber", body.get("civicNumber")
    return "streetNumber", body.get("streetNumber")


def instalments_of(body: Mapping[str, Any], dialect: str | None) -> object:
    """Return the number of instalments, sent under either spelling."""
    # spec §2.1: one description spells the field `installments`. It is assumed to be the one with
    # `civicNumber`, so both spellings are accepted there.
    if dialect != "street_number" and "installments" in body:
        return body["installments"]
    return body.get("instalments")


def approval_errors(body: Mapping[str, Any], dialect: str | None, *, additional: bool) -> Errors:
    """Return the errors of an approval's body, by field."""
    known = {
        **body,
        # spec §7: validation errors use the names `streetNumber` and `instalments` for either spelling.
        "streetNumber": street_number_of(body, dialect)[1],
        "instalments": instalments_of(body, dialect),
    }
    wrong = body_errors(APPROVAL, known)
    if dialect == "civic_number" and body.get("orderToken") is None:
        wrong["orderToken"] = [BLANK]  # spec §2.1: required in one description, assumed to be this one
    conditional = ADDITIONAL
    if not additional:  # not required: check only the fields that were sent
        conditional = {name: field for name, field in ADDITIONAL.items() if body.get(name) is not None}
    return wrong | body_errors(conditional, body)
