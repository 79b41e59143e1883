"""Fields of the request bodies and their validation (spec §2, §4.3, §7, §8)."""

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from attrs import evolve, frozen

Errors = dict[str, list[str]]

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


@frozen(kw_only=True)
class Field:
    """A field of a request body.

    Args:
        schema: JSON Schema of the accepted values.
        wrong: Message for other values.
        blank: Message for a missing value or a blank text; empty for `wrong`.
        required: Whether the field must be sent.
        nullable: Whether null means "not sent".
        also: Accepted values that the schema does not have.
        has_days: Whether values are days, or may be if there is a pattern. Days must exist.
    """

    schema: Mapping[str, Any]
    wrong: str = FORMAT
    blank: str = ""
    required: bool = True
    nullable: bool = False
    also: tuple[str, ...] = ()
    has_days: bool = False

    def check(self, value: object) -> str | None:
        """Return the message for a value; None if it is accepted. A missing field has the value None."""
        if self._accepts(value) or (value is None and self.nullable):
            return None
        is_blank = value is None or (isinstance(value, str) and not value.strip())
        return (is_blank and self.blank) or self.wrong

    def _accepts(self, value: object) -> bool:
        schema = self.schema
        if isinstance(value, str):
            pattern = schema.get("pattern", f"^{_DAY.pattern}$" if self.has_days else "")
            # `$` of Python also matches before a final line break.
            is_matching = re.search(pattern.replace("$", r"\Z"), value) is not None
            is_listed = schema["type"] == "string" and value in schema.get("enum", (value,))
            return value in self.also or (is_listed and is_matching and (not self.has_days or _exists(value)))
        if type(value) is int and schema["type"] == "integer":
            return bool(schema["minimum"] <= value <= schema.get("maximum", value))
        return type(value) is bool and schema["type"] == "boolean" and value is schema.get("const", value)


def _exists(day: str) -> bool:
    try:
        return not _DAY.fullmatch(day) or date.fromisoformat(day) is not None
    except ValueError:
        return False


def _text(wrong: str = BLANK, **more: Any) -> Field:
    return Field(schema={"type": "string", "pattern": f"[^{_SPACE}]"}, wrong=wrong, **more)


def _matching(pattern: str, wrong: str = FORMAT, blank: str = BLANK, **more: Any) -> Field:
    return Field(schema={"type": "string", "pattern": f"^{pattern}$"}, wrong=wrong, blank=blank, **more)


def _choice(*options: str, wrong: str = CHOICE, blank: str = BLANK, **more: Any) -> Field:
    return Field(schema={"type": "string", "enum": [*options]}, wrong=wrong, blank=blank, **more)


def _integer(least: int, most: int | None, wrong: str, **more: Any) -> Field:
    limits = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return Field(schema={"type": "integer", **limits}, wrong=wrong, **more)


def _boolean(wrong: str = FORMAT, **more: Any) -> Field:
    return Field(schema={"type": "boolean"}, wrong=wrong, **more)


FISCAL_CODE = _matching("[A-Z0-9]{16}", INVALID_FISCAL_CODE, "")  # assumed: 16 capital letters and digits

# spec §4.3 does not show the fields of a creation. Spec §7 has messages for three of them, which are in no
# table of inputs.
CREATION: Mapping[str, Field] = {
    "fiscalCode": FISCAL_CODE,
    "privacy": Field(
        schema={"type": "boolean", "const": True},
        wrong=PRIVACY,
        required=False,
        also=("true",),  # assumed
    ),
    # Both date formats of the specification: MM/YYYY (§2.1) and YYYY-MM-DD (§2.2).
    "actualJobEndingDate": _matching(f"({_MONTH}|{_DAY.pattern})", DATE, "", required=False, has_days=True),
    "additionalDataNeeded": _boolean(required=False),
}

_PHONE = f"[{_SPACE}]*([^+0{_SPACE}].*|0([^0].*)?)"  # it begins neither with + nor with 00
_OPTIONAL: Any = {"required": False, "nullable": True}
# spec §2.1 and §8
APPROVAL: Mapping[str, Field] = {
    "amount": _integer(5_000, 1_500_000, AMOUNT),
    "instalments": _integer(3, 60, INSTALMENTS),
    "loanFinality": _text(),  # assumed: any purpose, as one description gives no values
    "email": _matching(f"[^@{_SPACE}]+@[^@{_SPACE}]+"),  # assumed: anything around one @ is an address
    "lastname": _text(),
    "firstname": _text(),
    "mobilePhone": _matching(_PHONE),  # spec §2.1: without the international prefix
    "countryCallingCode": _text(**_OPTIONAL),
    "city": _text(),
    "address": _matching(f"[^,]*[^,{_SPACE}][^,]*"),  # spec §2.1: without commas
    "province": _matching("[A-Z]{2}"),
    "postalCode": _matching("[0-9]{5}"),
    "streetNumber": _text(),  # assumed: more than the 5 digits of one description
    "citizenship": _choice("italian", "Italian", "eu", "outside_eu"),  # both spellings of `italian`
    "iban": _text(**_OPTIONAL),
    "zeroInterestRate": _boolean(**_OPTIONAL),
    "orderToken": _text(**_OPTIONAL),  # as in one description; the other requires it, whatever its spellings
    "paymentDayOfMonth": _matching("([1-9]|[12][0-9]|3[01])", **_OPTIONAL),
}

# spec §2.1: required when additionalDataNeeded, which is not a field of this body, is true
ADDITIONAL: Mapping[str, Field] = {
    "residence": _choice(
        "rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"
    ),
    "residenceStartDate": _matching(_MONTH),
    "educationalQualification": _choice("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": _choice("0", "1", "2", "3", "4", "5+"),  # assumed: 0 is one of the options
    "salaryType": _choice("net-monthly", "gross-yearly"),
    "salary": _integer(0, None, FORMAT, blank=BLANK),
}

_DATE = Field(schema={"type": "string", "format": "date"}, wrong=DATE_IN_ITALIAN, has_days=True)
# spec §2.2: whether fields are mandatory is not shown. Assumed: all are optional.
USER_DATA: Mapping[str, Field] = {
    name: evolve(field, required=False)
    for name, field in {
        "documentOfType": _choice(
            "identity_card", "driving_license", "passport", wrong=CHOICE_IN_ITALIAN, blank=""
        ),
        "documentCode": _text(BLANK_IN_ITALIAN),
        "documentCity": _text(BLANK_IN_ITALIAN),
        "documentIssueDate": _DATE,
        "documentExpirationDate": _DATE,
        "iban": _text(BLANK_IN_ITALIAN),
        "politicallyExposed": _boolean(TYPE_IN_ITALIAN),
        "usPerson": _boolean(TYPE_IN_ITALIAN),
        "marketing": _boolean(TYPE_IN_ITALIAN),
        "paymentDayOfMonth": _integer(1, 31, TYPE_IN_ITALIAN),
        "profession": _text(BLANK_IN_ITALIAN),
    }.items()
}

# A valid approval of a made-up customer.
EXAMPLE: Mapping[str, Any] = {
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


def is_fiscal_code(value: object) -> bool:
    """Return whether a value has the shape of a fiscal code."""
    return FISCAL_CODE.check(value) is None


def requested_errors(names: Iterable[str], fields: Mapping[str, Field]) -> Errors:
    """Return the errors of blank values for the named fields, as requested by a tag or a fault."""
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
    conditional = ADDITIONAL
    if not additional:  # not required: check only the fields that were sent
        conditional = {name: field for name, field in ADDITIONAL.items() if body.get(name) is not None}
    return wrong | body_errors(conditional, body)
