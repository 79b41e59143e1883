"""Fields of the request bodies and their validation (spec §2, §4.3, §7, §8)."""

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import date
from typing import Any

from attrs import frozen

Errors = dict[str, list[str]]

# spec §7
BLANK = "This value should not be blank."
CHOICE = "This value should be one of the available options."
INVALID_FISCAL_CODE = "Invalid fiscal code"
# Assumed: the specification has no message for a wrong format.
FORMAT = "This value is not valid."
# spec §7: on PATCH, messages may be localized, and the documented samples are in Italian. Wording assumed.
BLANK_IN_ITALIAN = "Questo valore non dovrebbe essere vuoto."
DATE_IN_ITALIAN = "Questo valore non è una data valida."
CHOICE_IN_ITALIAN = "Questo valore dovrebbe essere una delle opzioni disponibili."
TYPE_IN_ITALIAN = "Questo valore non è del tipo giusto."


@frozen
class Field:
    """A field of a request body.

    Args:
        accepts: Returns whether a value is accepted.
        wrong: Message for other values.
        blank: Message for a missing value or a blank text; empty for `wrong`.
        nullable: Whether the field may be null or missing.
    """

    accepts: Callable[[Any], bool]
    wrong: str = FORMAT
    blank: str = ""
    nullable: bool = False

    def check(self, value: object) -> str | None:
        """Return the message for a value; None if it is accepted. A missing field has the value None."""
        if self.accepts(value) or (value is None and self.nullable):
            return None
        is_blank = value is None or (isinstance(value, str) and not value.strip())
        return (is_blank and self.blank) or self.wrong


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _is_day(value: object) -> bool:
    try:
        return _matches("[0-9]{4}-[0-9]{2}-[0-9]{2}")(value) and date.fromisoformat(str(value)) is not None
    except ValueError:
        return False


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


_is_month = _matches("(0[1-9]|1[0-2])/[0-9]{4}")


def _is_in(least: int, most: float) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _choice(*options: str) -> Field:
    return Field(lambda value: value in options, CHOICE, BLANK)


_TEXT = Field(_is_text, BLANK)
FISCAL_CODE = Field(_matches("[A-Z0-9]{16}"), INVALID_FISCAL_CODE)  # assumed: capital letters and digits

# spec §4.3 does not show the fields of a creation. Spec §7 has messages for three of them, which are in no
# table of inputs. Assumed: only the fiscal code is required, and `privacy` may be the text "true".
CREATION: Mapping[str, Field] = {
    "fiscalCode": FISCAL_CODE,
    "privacy": Field(lambda value: value is True or value == "true", "This value should be equal to 'true'."),
    # Both date formats of the specification: MM/YYYY (§2.1) and YYYY-MM-DD (§2.2).
    "actualJobEndingDate": Field(lambda value: _is_day(value) or _is_month(value), "Invalid date format"),
    "additionalDataNeeded": Field(_is_flag),
}

_OPTIONAL_TEXT = Field(_is_text, BLANK, nullable=True)
# spec §2.1 and §8
APPROVAL: Mapping[str, Field] = {
    "amount": Field(_is_in(5_000, 1_500_000), "This value should be between 5000 and 1500000"),
    "instalments": Field(_is_in(3, 60), "The number of installments must be between 3 and 60"),
    "loanFinality": _TEXT,  # assumed: any purpose, as one description gives no values
    "email": Field(_matches(r"[^@\s]+@[^@\s]+"), blank=BLANK),  # assumed: anything around one @
    "lastname": _TEXT,
    "firstname": _TEXT,
    # spec §2.1: without the international prefix, so it begins neither with + nor with 00
    "mobilePhone": Field(_matches(r"\s*([^+0\s].*|0([^0].*)?)"), blank=BLANK),
    "countryCallingCode": _OPTIONAL_TEXT,
    "city": _TEXT,
    "address": Field(lambda value: _is_text(value) and "," not in value, blank=BLANK),  # spec §2.1: no commas
    "province": Field(_matches("[A-Z]{2}"), blank=BLANK),
    "postalCode": Field(_matches("[0-9]{5}"), blank=BLANK),
    "streetNumber": _TEXT,  # assumed: more than the 5 digits of one description
    "citizenship": _choice("italian", "Italian", "eu", "outside_eu"),  # both spellings of `italian`
    "iban": _OPTIONAL_TEXT,
    "zeroInterestRate": Field(_is_flag, nullable=True),
    "orderToken": _OPTIONAL_TEXT,  # as in one description; the other requires it, whatever its spellings
    "paymentDayOfMonth": Field(_matches("[1-9]|[12][0-9]|3[01]"), blank=BLANK, nullable=True),
}

# spec §2.1: required when additionalDataNeeded, which is not a field of this body, is true
ADDITIONAL: Mapping[str, Field] = {
    "residence": _choice(
        "rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"
    ),
    "residenceStartDate": Field(_is_month, blank=BLANK),
    "educationalQualification": _choice("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": _choice("0", "1", "2", "3", "4", "5+"),  # assumed: 0 is one of the options
    "salaryType": _choice("net-monthly", "gross-yearly"),
    "salary": Field(_is_in(0, math.inf), blank=BLANK),
}

DOCUMENT_TYPES = ("identity_card", "driving_license", "passport")
# spec §2.2: whether fields are mandatory is not shown. Assumed: all are optional.
USER_DATA: Mapping[str, Field] = {
    "documentOfType": Field(lambda value: value in DOCUMENT_TYPES, CHOICE_IN_ITALIAN),
    **dict.fromkeys(
        ("documentCode", "documentCity", "iban", "profession"), Field(_is_text, BLANK_IN_ITALIAN)
    ),
    **dict.fromkeys(("documentIssueDate", "documentExpirationDate"), Field(_is_day, DATE_IN_ITALIAN)),
    **dict.fromkeys(("politicallyExposed", "usPerson", "marketing"), Field(_is_flag, TYPE_IN_ITALIAN)),
    "paymentDayOfMonth": Field(_is_in(1, 31), TYPE_IN_ITALIAN),
}

# By operation; a body of documents has no known fields (spec §4.3).
FIELDS: Mapping[str, Mapping[str, Field]] = {
    "create_request": CREATION,
    "approve": {**APPROVAL, **ADDITIONAL},
    "upload_documents": {},
    "complete": USER_DATA,
}
# spec §2.1, response: fields of the approval that a decision returns
ECHOED = [name for name in APPROVAL if name not in ("loanFinality", "countryCallingCode")]


def requested_errors(names: Iterable[str], fields: Mapping[str, Field]) -> Errors:
    """Return the errors of blank values for the named fields, as requested by a tag or a fault."""
    return {name: [fields[name].check(None) or FORMAT] for name in names if name in fields}


def body_errors(
    fields: Mapping[str, Field], body: Mapping[str, Any], required: Container[str] = ()
) -> Errors:
    """Return the errors of a body, by field; of a missing field only if it is required."""
    return {
        name: [message]
        for name, field in fields.items()
        if (name in required or name in body) and (message := field.check(body.get(name)))
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
    sent = ADDITIONAL if additional else [name for name in ADDITIONAL if body.get(name) is not None]
    conditional = {name: ADDITIONAL[name] for name in sent}
    return body_errors({**APPROVAL, **conditional}, known, {**APPROVAL, **conditional})
